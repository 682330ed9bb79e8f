"""Source of each step of a series: the closest one to the machine that reported at that time."""

from typing import Any

import msgspec
import pytest

from gpufleet.fleet.attribution.bindings import BoundInterval
from gpufleet.hub.query.series_sources import fetch_parts, sources_of
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.reading import Provenance
from gpufleet.model.time import NANOS
from tests.fakes.batches import gpu_sample, gpu_view
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept

MINUTE = 60 * NANOS
T0 = 1_700_000_040 * NANOS
PROBE, NETDATA, IMPORTED = Provenance.HOST_LOCAL_PROBE, Provenance.HOST_NETDATA, Provenance.IMPORTED
POWER, CLOCK = "gpu_power_watts", "gpu_sm_clock_hertz"


class History:
    """Store of one machine whose sources report minute by minute."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def report(self, source: Provenance, minutes: range, value: float, **more: Any) -> None:
        values = {POWER: value, **more}
        for minute in minutes:
            at = T0 + minute * MINUTE
            sample = gpu_sample(gpu_view(1), at, **values)
            sample = msgspec.structs.replace(sample, reader=source.value, provenance=source)
            self.store.write([accept("c", "m", [sample], received_at=at)], f"{source}{minute}")

    def read(self, minutes: int, *metrics: str, stale_after: float = 120.0) -> tuple[list[Any], dict[str, list[Any]]]:
        """Return the parts as source and range of minutes, and the value of each minute by metric."""
        interval = BoundInterval("m", None, T0, T0 + minutes * MINUTE)
        sources = sources_of(self.store.latest("c", "m"), T0)
        parts = fetch_parts(self.store, "c", interval, metrics or (POWER,), MINUTE, sources, stale_after)
        shown: dict[str, list[Any]] = {}
        for part in parts:
            for (_, metric), points in part.stored.points.items():
                cells = shown.setdefault(metric, [None] * minutes)
                for at, value in points:
                    assert part.window.start <= at < part.window.end
                    cells[(at - T0) // MINUTE] = value
        windows = [((one.window.start - T0) // MINUTE, (one.window.end - T0) // MINUTE) for one in parts]
        return [(one.source, *window) for one, window in zip(parts, windows, strict=True)], shown


def test_past_of_a_stopped_agent_stays() -> None:
    history = History()
    history.report(PROBE, range(5), 1.0, gpu_sm_clock_hertz=7)
    history.report(IMPORTED, range(10), 2.0)
    parts, shown = history.read(10, POWER, CLOCK)
    assert parts == [(PROBE, 0, 6), (IMPORTED, 6, 10)]  # the agent was live for two minutes after its last report
    assert shown == {POWER: [1.0] * 5 + [None] + [2.0] * 4, CLOCK: [7] * 5 + [None] * 5}


def test_exporter_fills_the_time_before_and_between_agents() -> None:
    history = History()
    history.report(IMPORTED, range(20), 2.0)
    history.report(PROBE, range(3, 6), 1.0)
    history.report(PROBE, range(12, 20), 1.0)
    parts, shown = history.read(20)
    assert parts == [(IMPORTED, 0, 3), (PROBE, 3, 7), (IMPORTED, 7, 12), (PROBE, 12, 20)]
    assert shown[POWER] == [2.0] * 3 + [1.0] * 3 + [None] + [2.0] * 5 + [1.0] * 8


def test_short_gap_of_an_agent_is_not_filled() -> None:
    history = History()
    history.report(IMPORTED, range(10), 2.0)
    history.report(PROBE, range(4), 1.0)
    history.report(PROBE, range(6, 10), 1.0)
    assert history.read(10, stale_after=180.0)[0] == [(PROBE, 0, 10)]
    assert history.read(10, stale_after=60.0)[0] == [(PROBE, 0, 4), (IMPORTED, 4, 6), (PROBE, 6, 10)]


@pytest.mark.parametrize("absent", [Reason.GPU_LOST, Reason.TIMEOUT])
def test_agent_without_values_is_not_replaced(absent: Reason) -> None:
    """An exporter repeats old values of a GPU that the agent reports as lost."""
    history = History()
    history.report(IMPORTED, range(5), 2.0)
    history.report(PROBE, range(5), Absent(absent), gpu_state="lost")  # type: ignore[arg-type]
    assert history.read(5) == ([(PROBE, 0, 5)], {})


def test_netdata_has_precedence_over_an_exporter() -> None:
    history = History()
    history.report(IMPORTED, range(6), 3.0)
    history.report(NETDATA, range(3), 2.0)
    assert history.read(6)[0] == [(NETDATA, 0, 4), (IMPORTED, 4, 6)]


def test_machine_without_reports_has_one_gap_of_its_closest_source() -> None:
    history = History()
    history.report(IMPORTED, range(1), 2.0)
    history.report(PROBE, range(1), 2.0)
    later = BoundInterval("m", None, T0 + 60 * MINUTE, T0 + 62 * MINUTE)
    (part,) = fetch_parts(history.store, "c", later, (POWER,), MINUTE, (PROBE, IMPORTED), 120.0)
    assert (part.source, part.window.start, part.window.end) == (PROBE, later.start, later.end)
    assert sources_of((), T0) == (PROBE,)


def test_source_that_stopped_before_the_interval_is_left_out() -> None:
    history = History()
    history.report(PROBE, range(3), 1.0)
    history.report(IMPORTED, range(6), 2.0)
    stored = history.store.latest("c", "m")
    assert sources_of(stored, T0 + 2 * MINUTE) == (PROBE, IMPORTED)
    assert sources_of(stored, T0 + 2 * MINUTE + 1) == (IMPORTED,)
