"""Current speed of this machine, needed to compare figures of different hours."""

import time


def yardstick_ms(times: int = 7) -> float:
    """Return the processor time of a fixed piece of plain Python in milliseconds, as the median of several runs.

    It makes 100,000 additions and lookups, which take about 5 ms on a core of 2024.
    """
    spans = []
    numbers = dict.fromkeys(range(1000), 1)
    for _ in range(times):
        began, total = time.process_time(), 0
        for step in range(100_000):
            total += numbers[step % 1000]
        spans.append(time.process_time() - began)
        assert total == 100_000
    return sorted(spans)[times // 2] * 1e3
