"""Columns to rows."""

from gpufleet.codecs.batch.processes import decode_processes
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.process import Process
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.wire.batch import Batch, Cell, DimBlock, MachineReport, SampleBlock, WireBatch

_Subject = tuple[int, int, str, str, str, int, int]
_Values = dict[str, Value | Absent]


def to_rows(wire: WireBatch) -> Batch:
    """Convert a checked batch of columns into rows, one report per machine.

    The order of samples, and of dimensions within a sample, is not kept. Samples with the same identity are merged.
    A cell without value and reason is `not_reported`.
    """
    absences = [{a.metric: Absent(a.reason, a.detail) for a in entries} for entries in wire.absences]
    values: dict[_Subject, _Values] = {}
    dims: dict[_Subject, list[DimValue]] = {}
    for block in wire.samples:
        columns = list(block.columns)  # a matrix creates its columns on access
        for row, subject in enumerate(_subjects(block)):
            reasons = absences[block.absence[row]] if block.absence[row] >= 0 else {}
            cells = values.setdefault(subject, {})
            for metric, column in zip(block.metrics, columns, strict=True):
                cells[metric] = _value(metric, column[row], reasons)
    for dim in wire.dims:
        for row, subject in enumerate(_subjects(dim)):
            reasons = absences[dim.absence[row]] if dim.absence[row] >= 0 else {}
            labels = tuple(column[row] for column in dim.labels)
            dims.setdefault(subject, []).append(
                DimValue(dim.metric, labels, _value(dim.metric, dim.values[row], reasons))
            )
    processes = {
        (
            part.machine,
            block.view,
            block.reader,
            block.lane,
            block.provenance,
            block.measured_at,
            block.driver_session,
        ): (decode_processes(block, absences))
        for part in wire.parts
        for block in part.processes
    }
    samples: list[list[Sample]] = [[] for _ in wire.machines]
    for subject in values | dims | processes:
        sample = _sample(wire, subject, values.get(subject, {}), dims.get(subject, []), processes.get(subject))
        samples[subject[0]].append(sample)
    return Batch(
        cluster=wire.cluster,
        sender=wire.sender,
        epoch=wire.epoch,
        seq=wire.seq,
        sent_at=wire.sent_at,
        heartbeat=wire.heartbeat,
        reports=_reports(wire, samples),
        cluster_part=wire.cluster_part,
    )


def _subjects(block: SampleBlock | DimBlock) -> list[_Subject]:
    """Return the identity of each row's sample."""
    shared = block.reader, block.lane, block.provenance
    return [
        (machine, view, *shared, measured_at, session)
        for machine, view, measured_at, session in zip(
            block.machine, block.view, block.measured_at, block.driver_session, strict=True
        )
    ]


def _value(metric: str, cell: Cell, reasons: dict[str, Absent]) -> Value | Absent:
    if cell is not None:
        return cell
    return reasons.get(metric, Absent(Reason.NOT_REPORTED))


def _sample(
    wire: WireBatch, subject: _Subject, values: _Values, dims: list[DimValue], processes: tuple[Process, ...] | None
) -> Sample:
    _, view, reader, lane, provenance, measured_at, session = subject
    return Sample(
        view=None if view < 0 else wire.views[view],
        reader=reader,
        lane=Lane(lane),
        measured_at=measured_at,
        values=values,
        dims=tuple(dims),
        provenance=Provenance(provenance),
        driver_session=session,
        processes=processes,
    )


def _reports(wire: WireBatch, samples: list[list[Sample]]) -> tuple[MachineReport, ...]:
    parts = {part.machine: part for part in wire.parts}
    reports = []
    for index, machine in enumerate(wire.machines):
        part = parts.get(index)
        reports.append(
            MachineReport(
                machine=machine,
                samples=tuple(samples[index]),
                events=tuple(part.events) if part else (),
                readers=tuple(part.readers) if part else (),
                holdings=tuple(part.holdings) if part else (),
                inventory=tuple(part.inventory) if part and part.inventory is not None else None,
                device_holders=tuple(part.device_holders) if part and part.device_holders is not None else None,
                unresolved=tuple(part.unresolved) if part else (),
            )
        )
    return tuple(reports)
