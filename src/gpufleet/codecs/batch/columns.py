"""Rows to columns: samples with the same reader, lane, provenance and metrics become one block."""

from collections.abc import Sequence

import msgspec

from gpufleet.codecs.batch.processes import encode_processes
from gpufleet.codecs.batch.records import MAX_MESSAGE
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE_VERSION
from gpufleet.model.event import Event
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.status import ReaderStatus
from gpufleet.model.view import View
from gpufleet.model.wire.batch import (
    WIRE_VERSION,
    Batch,
    Cell,
    DimBlock,
    MachinePart,
    MachineReport,
    ProcessList,
    SampleBlock,
    WireAbsence,
    WireBatch,
)

MAX_TEXT = 1024
MAX_LABEL = 4096

_LOWEST, _HIGHEST = -(2**63), 2**64 - 1


def to_wire(batch: Batch) -> WireBatch:
    """Convert a batch of rows into columns.

    Values that the format cannot carry (an integer beyond 64 bits, a boolean, a text over its limit) become
    `Absent(invalid_value)`, as on receipt. Messages and labels over their limit are truncated.
    """
    maker = _ColumnBuilder()
    for index, report in enumerate(batch.reports):
        maker.add(index, report)
    return WireBatch(
        version=WIRE_VERSION,
        catalogue=CATALOGUE_VERSION,
        cluster=batch.cluster,
        sender=batch.sender,
        epoch=batch.epoch,
        seq=batch.seq,
        sent_at=batch.sent_at,
        heartbeat=batch.heartbeat,
        machines=[report.machine for report in batch.reports],
        views=list(maker.views),
        absences=[
            [WireAbsence(metric, absent.reason, absent.detail) for metric, absent in entries]
            for entries in maker.absences
        ],
        samples=list(maker.samples.values()),
        dims=list(maker.dims.values()),
        parts=maker.parts,
        cluster_part=batch.cluster_part,
    )


class _ColumnBuilder:
    """Builder of blocks and the lists that they reference. Dicts keep the order of first use."""

    def __init__(self) -> None:
        self.views: dict[View, int] = {}
        self.absences: dict[tuple[tuple[str, Absent], ...], int] = {}
        self.samples: dict[tuple[str, str, str, tuple[str, ...]], SampleBlock] = {}
        self.dims: dict[tuple[str, str, str, str, int], DimBlock] = {}
        self.parts: list[MachinePart] = []

    def add(self, machine: int, report: MachineReport) -> None:
        processes: list[ProcessList] = []
        for sample in report.samples:
            if sample.values or not sample.dims:
                self._add_values(machine, sample)
            for value in sample.dims:
                self._add_dim(machine, sample, value)
            if sample.view is not None and sample.processes is not None:
                view = self.views.setdefault(sample.view, len(self.views))
                processes.append(encode_processes(sample, view, _cell, self._absence))
        part = MachinePart(
            machine,
            [_cut_event(event) for event in report.events],
            [_cut_status(status) for status in report.readers],
            list(report.holdings),
            None if report.inventory is None else list(report.inventory),
            processes,
            None if report.device_holders is None else list(report.device_holders),
            list(report.unresolved),
        )
        if part != MachinePart(machine):
            self.parts.append(part)

    def _add_values(self, machine: int, sample: Sample) -> None:
        key = (sample.reader, sample.lane.value, sample.provenance.value, tuple(sample.values))
        block = self.samples.get(key)
        if block is None:
            block = SampleBlock(*key[:3], list(key[3]), [], [], [], [], [], [[] for _ in key[3]])
            self.samples[key] = block
        absent: list[tuple[str, Absent]] = []
        for column, (metric, value) in zip(block.columns, sample.values.items(), strict=True):
            column.append(_cell(metric, value, absent))
        self._add_subject(block, machine, sample, absent)

    def _add_dim(self, machine: int, sample: Sample, value: DimValue) -> None:
        key = (value.metric, sample.reader, sample.lane.value, sample.provenance.value, len(value.labels))
        block = self.dims.get(key)
        if block is None:
            block = DimBlock(*key[:4], [], [], [], [], [[] for _ in value.labels], [], [])
            self.dims[key] = block
        for labels, label in zip(block.labels, value.labels, strict=True):
            labels.append(label[:MAX_LABEL])
        absent: list[tuple[str, Absent]] = []
        block.values.append(_cell(value.metric, value.value, absent))
        self._add_subject(block, machine, sample, absent)

    def _add_subject(
        self, block: SampleBlock | DimBlock, machine: int, sample: Sample, absent: Sequence[tuple[str, Absent]]
    ) -> None:
        block.machine.append(machine)
        block.view.append(-1 if sample.view is None else self.views.setdefault(sample.view, len(self.views)))
        block.measured_at.append(sample.measured_at)
        block.driver_session.append(sample.driver_session)
        block.absence.append(self._absence(absent) if absent else -1)

    def _absence(self, absent: Sequence[tuple[str, Absent]]) -> int:
        entries = tuple(sorted(absent, key=lambda entry: entry[0]))
        return self.absences.setdefault(entries, len(self.absences)) if entries else -1


def _cell(metric: str, value: Value | Absent, absent: list[tuple[str, Absent]]) -> Cell:
    """Return the cell of a value; for an absence None, with its reason appended to `absent`."""
    problem = ""
    if isinstance(value, Absent):
        absent.append(
            (metric, value if len(value.detail) <= MAX_TEXT else Absent(value.reason, value.detail[:MAX_TEXT]))
        )
        return None
    if isinstance(value, bool):
        problem = "a boolean, not a number"
    elif isinstance(value, int) and not _LOWEST <= value <= _HIGHEST:
        problem = "does not fit in 64 bits"
    elif isinstance(value, str) and len(value) > MAX_TEXT:
        problem = f"longer than {MAX_TEXT} characters"
    if not problem:
        return value
    absent.append((metric, Absent(Reason.INVALID_VALUE, problem)))
    return None


def _cut_status(status: ReaderStatus) -> ReaderStatus:
    if len(status.last_error) <= MAX_MESSAGE:
        return status
    return msgspec.structs.replace(status, last_error=status.last_error[:MAX_MESSAGE])


def _cut_event(event: Event) -> Event:
    if all(len(text) <= MAX_MESSAGE for text in event.attributes.values()):
        return event
    return msgspec.structs.replace(event, attributes={k: text[:MAX_MESSAGE] for k, text in event.attributes.items()})
