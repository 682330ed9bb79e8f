"""How each reader of a machine was doing when last heard of."""

from gpufleet.model.catalogue import Lane
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.stores.clickhouse.client import Handle

_STATUS = """
SELECT reader, lane, state, interval_seconds, toUnixTimestamp64Nano(last_attempt),
    toUnixTimestamp64Nano(last_success), duration_seconds, failures, error_class, last_error
FROM reader_status FINAL
WHERE cluster = {cluster:String} AND machine = {machine:String}
ORDER BY reader, lane
"""


def fetch_readers(handle: Handle, cluster: str, machine: str) -> tuple[ReaderStatus, ...]:
    """Ask for the newest status of each reader and lane of a machine."""
    rows = handle.query(_STATUS, parameters={"cluster": cluster, "machine": machine}).result_rows
    return tuple(
        ReaderStatus(
            reader=reader,
            lane=Lane(lane),
            state=ReaderState(state),
            interval_seconds=interval,
            last_attempt=last_attempt,
            last_success=last_success,
            duration_seconds=duration,
            failures=failures,
            error_class=error_class,
            last_error=last_error,
        )
        for (
            reader,
            lane,
            state,
            interval,
            last_attempt,
            last_success,
            duration,
            failures,
            error_class,
            last_error,
        ) in rows
    )
