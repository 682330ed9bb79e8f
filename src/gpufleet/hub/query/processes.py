"""Answers about who uses the devices of a machine. Pure."""

from collections.abc import Sequence

from gpufleet.model.absence import Absent
from gpufleet.model.api.answer import MachineRecord, ProcessesAnswer, ProcessTable
from gpufleet.model.process import Process, most_memory_first
from gpufleet.model.reading import READER_PRECEDENCE, Reading
from gpufleet.model.snapshot import ProcessReport
from gpufleet.model.stored.samples import StoredProcesses
from gpufleet.model.time import NANOS, to_datetime

LOOK_BACK_SECONDS = 3600.0
"""A table that was read longer ago is not answered: whoever wants it asks about that time."""

TOLD_SECONDS = 60.0
"""Agents tell a table that names the same processes as the one before once in so long."""

MISSED = 3
"""Tables that may be missed before the last one is stale."""


def answer(
    machine: MachineRecord, stored: Sequence[StoredProcesses], now: int, *, stale_after_seconds: float
) -> ProcessesAnswer:
    """Return the newest table of each device, of the reader that comes first where several told one.

    Args:
        machine: whose.
        stored: the newest of each view and reader.
        now: what is judged by, in nanoseconds since 1970: the hub's clock, or the instant that was asked about.
        stale_after_seconds: the hub's freshness limit.
    """
    limit = max(stale_after_seconds, MISSED * TOLD_SECONDS)
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
        processes=tuple(_report(process) for process in sorted(one.processes, key=most_memory_first)),
    )


def _report(process: Process) -> ProcessReport:
    return ProcessReport(
        pid=process.pid,
        kinds=process.kinds,
        start_time=process.start_time,
        name=process.name,
        readings={
            name: Reading(absent=value.reason, detail=value.detail)
            if isinstance(value, Absent)
            else Reading(value=value)
            for name, value in process.values.items()
        },
    )
