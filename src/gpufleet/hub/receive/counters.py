"""The hub's counters of its own work."""

from collections import Counter
from collections.abc import Callable


class Counters:
    """Counters since the process started. Each is written by one thread only: the event loop's or the writer's.

    Attributes:
        received_bodies, received_bytes: bodies received completely.
        accepted, duplicates: batches acknowledged as new and as already held.
        rejected: batches rejected, by reason.
        unauthenticated: requests without a valid token, by reason.
        forbidden: requests not permitted by the token's role.
        imported_samples: samples received by remote write, OTLP, federation or scrape.
        unrecognised_samples: imported samples of no known project.
        unrecognised_metrics: the same by metric name; see `count_bounded`.
        unattributed_samples: imported samples whose labels identify no device or machine.
        import_problems: imported samples that could not be used, by reason.
        uncached_series: series decoded again because the series cache had no room, by writer; see `count_bounded`.
        flushed_batches, flushed_rows: written to the store.
        flush_failures: failed flushes.
        quarantined: batches quarantined, by step.
        unknown_labels: labels of known projects' series that no table has, by name; see `count_bounded`.
        unknown_metrics, invalid_values: cells dropped or made absent, by metric name; see `count_bounded`.
        future_rows: rows, events and holdings dropped because their time is in the future.
        other_name_rows: imported rows, events and holdings dropped because the machine with their host name had another
            name then.
        repeated_rows: rows dropped because their batch has another row of the same subject and instant.
        dropped_objects: objects of Kubernetes dropped because their identity is invalid or repeated in their batch.
        rolled_hours, rerolled_hours: hours rolled up, and those that were rolled up again for late data.
        rollup_failures: failed rollups.
        task_restarts: restarts of background tasks other than the flusher, by task.
        last_flush_at: nanoseconds since 1970 of the last successful flush, 0 before the first.
        last_flush_seconds: duration of the last successful flush.
    """

    def __init__(self) -> None:
        self.received_bodies = 0
        self.received_bytes = 0
        self.accepted = 0
        self.duplicates = 0
        self.rejected: Counter[str] = Counter()
        self.unauthenticated: Counter[str] = Counter()
        self.forbidden = 0
        self.imported_samples = 0
        self.unrecognised_samples = 0
        self.unrecognised_metrics: Counter[str] = Counter()
        self.unattributed_samples = 0
        self.import_problems: Counter[str] = Counter()
        self.uncached_series: Counter[str] = Counter()
        self.flushed_batches = 0
        self.flushed_rows = 0
        self.flush_failures = 0
        self.quarantined: Counter[str] = Counter()
        self.unknown_metrics: Counter[str] = Counter()
        self.unknown_labels: Counter[str] = Counter()
        self.invalid_values: Counter[str] = Counter()
        self.future_rows = 0
        self.repeated_rows = 0
        self.other_name_rows = 0
        self.dropped_objects = 0
        self.rolled_hours = 0
        self.rerolled_hours = 0
        self.rollup_failures = 0
        self.task_restarts: Counter[str] = Counter()
        self.last_flush_at = 0
        self.last_flush_seconds = 0.0

    def restart_counter(self, task: str) -> Callable[[str], None]:
        """Return an `on_end` callback for `supervise` that counts restarts of a task."""

        def count(_: str) -> None:
            self.task_restarts[task] += 1

        return count


MAX_NAMES = 200
"""Maximum number of external names counted individually; further names are counted together as `_other`."""


def count_bounded(counter: Counter[str], name: str, count: int) -> None:
    """Count under an external name without unbounded growth of the counter; see `MAX_NAMES`."""
    counter[name if name in counter or len(counter) < MAX_NAMES else "_other"] += count
