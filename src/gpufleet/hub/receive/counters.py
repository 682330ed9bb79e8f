"""What the hub counts of itself."""

from collections import Counter
from collections.abc import Callable


class Counters:
    """Plain numbers since the process started. Each is written by one thread only: the loop's or the writer's.

    Attributes:
        received_bodies, received_bytes: bodies that arrived whole.
        accepted, duplicates: batches acknowledged as new, and as held already.
        rejected: batches refused, by reason.
        unauthenticated: requests without a token that is taken, by reason.
        forbidden: requests that the token's role does not cover.
        written_samples: samples that arrived by remote write.
        written_others: those of them that are of no project that is known here.
        other_metrics: the same by metric name; see `bounded`.
        written_nameless: those of which the labels do not tell whose they are.
        written_problems: those that could not be taken, by why.
        unremembered_series: series that were read anew for want of room to remember them, by writer; see `bounded`.
        flushed_batches, flushed_rows: written to the store.
        flush_failures: attempts to flush that failed.
        quarantined: batches put aside, by step.
        unknown_labels: labels of known projects' series that no table has, by name; see `bounded`.
        unknown_metrics, invalid_values: what normalising found, by metric name; see `bounded`.
        future_rows: rows dropped because they say that they were measured in the future.
        repeated_rows: rows dropped because their batch had another of the same subject and instant.
        rolled_hours, rolled_again: hours made, and those of them that had been made before, for something came late.
        rollup_failures: attempts to make one that failed.
        task_defects: times that a task beside the flushing ended and was begun again, by what it does.
        last_flush_at: nanoseconds since 1970 of the last flush that succeeded, 0 before.
        last_flush_seconds: how long it took.
    """

    def __init__(self) -> None:
        self.received_bodies = 0
        self.received_bytes = 0
        self.accepted = 0
        self.duplicates = 0
        self.rejected: Counter[str] = Counter()
        self.unauthenticated: Counter[str] = Counter()
        self.forbidden = 0
        self.written_samples = 0
        self.written_others = 0
        self.other_metrics: Counter[str] = Counter()
        self.written_nameless = 0
        self.written_problems: Counter[str] = Counter()
        self.unremembered_series: Counter[str] = Counter()
        self.flushed_batches = 0
        self.flushed_rows = 0
        self.flush_failures = 0
        self.quarantined: Counter[str] = Counter()
        self.unknown_metrics: Counter[str] = Counter()
        self.unknown_labels: Counter[str] = Counter()
        self.invalid_values: Counter[str] = Counter()
        self.future_rows = 0
        self.repeated_rows = 0
        self.rolled_hours = 0
        self.rolled_again = 0
        self.rollup_failures = 0
        self.task_defects: Counter[str] = Counter()
        self.last_flush_at = 0
        self.last_flush_seconds = 0.0

    def defect(self, task: str) -> Callable[[str], None]:
        """Return what counts that a task ended."""

        def ended(_: str) -> None:
            self.task_defects[task] += 1

        return ended


NAMES_KEPT = 200
"""Names from outside that are counted one by one; further ones are counted together."""


def bounded(counter: Counter[str], name: str, count: int) -> None:
    """Count under a name from outside, without letting the outside grow the counter."""
    counter[name if name in counter or len(counter) < NAMES_KEPT else "_other"] += count
