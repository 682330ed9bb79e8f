"""Process tables of a machine. Pure."""

from collections.abc import Sequence

from gpufleet.fleet.readings import process_report
from gpufleet.model.api.answer import MachineRecord, ProcessesAnswer, ProcessTable
from gpufleet.model.process import most_memory_first
from gpufleet.model.reading import READER_PRECEDENCE
from gpufleet.model.stored.samples import StoredProcesses
from gpufleet.model.time import NANOS, to_datetime

LOOK_BACK_SECONDS = 3600.0
"""Maximum age of a table in an answer; older ones are found by a query for their time."""

REPORT_SECONDS = 60.0
"""Interval at which agents repeat a table without new or ended processes."""

MISSED_REPORTS = 3
"""Reports that may be missed before the last table is stale."""


def answer(
    machine: MachineRecord, stored: Sequence[StoredProcesses], now: int, *, stale_after_seconds: float
) -> ProcessesAnswer:
    """Return the newest table of each device; of several readers, that of the first in precedence.

    Args:
        machine: the machine.
        stored: the newest table of each view and reader.
        now: reference time, in nanoseconds since 1970: the hub's clock, or the instant of the query.
        stale_after_seconds: the hub's freshness limit.
    """
    limit = max(stale_after_seconds, MISSED_REPORTS * REPORT_SECONDS)
    chosen: dict[str, StoredProcesses] = {}
    for one in sorted(stored, key=lambda one: (_age(one, now) > limit, _rank(one))):
        chosen.setdefault(one.view, one)
    return ProcessesAnswer(
        machine=machine.id,
        node=machine.machine.name,
        devices=tuple(_table(chosen[view], now, limit) for view in sorted(chosen)),
    )


def _rank(one: StoredProcesses) -> tuple[int, str]:
    known = one.reader in READER_PRECEDENCE
    return (READER_PRECEDENCE.index(one.reader) if known else len(READER_PRECEDENCE), one.reader)


def _age(one: StoredProcesses, now: int) -> float:
    return max(0, now - one.received_at) / NANOS


def _table(one: StoredProcesses, now: int, limit: float) -> ProcessTable:
    age = _age(one, now)
    return ProcessTable(
        device=one.view,
        reader=one.reader,
        source=one.provenance,
        measured_at=to_datetime(one.measured_at),
        received_at=to_datetime(one.received_at),
        age_seconds=age,
        stale=age > limit,
        total=one.total,
        processes=tuple(process_report(process) for process in sorted(one.processes, key=most_memory_first)),
    )
