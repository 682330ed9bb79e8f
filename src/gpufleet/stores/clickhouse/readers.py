"""How each reader of machines was doing when last heard of."""

from collections.abc import Sequence
from operator import itemgetter

from gpufleet.model.catalogue import Lane
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.few import fetch_newest

_SELECT = """
SELECT machine, reader, lane, state, interval_seconds, toUnixTimestamp64Nano(last_attempt),
    toUnixTimestamp64Nano(last_success), duration_seconds, failures, error_class, last_error,
    toUnixTimestamp64Nano(reported_at)
"""


def fetch_readers(handle: Handle, cluster: str, machines: Sequence[str]) -> dict[str, tuple[ReaderStatus, ...]]:
    """Ask for the newest status of each reader and lane of each machine."""
    parameters = {"cluster": cluster, "machines": list(machines)}
    found: dict[str, list[ReaderStatus]] = {}
    for (
        machine,
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
        _,
    ) in fetch_newest(handle, _SELECT, "reader_status", parameters, key=3, rank=itemgetter(-1)):
        status = ReaderStatus(
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
        found.setdefault(machine, []).append(status)
    return {machine: tuple(statuses) for machine, statuses in found.items()}
