"""Explanations of readings for `gpufleet why`, as records and as a table. Pure."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.exporters.display import guest_facts, holder_text, seconds_text, share_text, value_text
from gpufleet.exporters.themes import theme_of, theme_order
from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AllocationAnswer, GpuRecord
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.holdings import DeviceHolders, HolderKind, HolderState, Holding
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Device, Guest, Snapshot
from gpufleet.model.text import printable
from gpufleet.model.time import to_datetime
from gpufleet.model.view import ViewKind

NOT_REPORTED = "no reader has reported it"
"""Detail of metrics without any report; left out on a terminal."""


class ExplainedReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Explanation of one reading.

    Attributes:
        metric: catalogue name, followed by its dimensions in braces.
        value, unit: measured value, in the unit of the catalogue.
        text: value for display; empty if absent.
        absent, detail: absence reason.
        catalogue: description of the absence case in the catalogue.
        reader, side, scope: provenance of the reading.
        age_seconds: time since the measurement; in a hub's answer, since its receipt.
    """

    metric: str
    value: Value | None = None
    unit: str = ""
    text: str = ""
    absent: Reason | None = None
    detail: str = ""
    catalogue: str = ""
    reader: str = ""
    side: str = ""
    scope: str = ""
    age_seconds: float | None = None


class ExplainedSubject(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of a device, or of the machine."""

    title: str
    lines: tuple[ExplainedReading, ...]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of a device, machine or allocation.

    Attributes:
        subject: its name.
        facts: statements about it.
        parts: its readings, by device.
    """

    subject: str
    facts: tuple[str, ...]
    parts: tuple[ExplainedSubject, ...]


def explain_device(
    snapshot: Snapshot, device: Device, how: str, now: dt.datetime, began: dt.datetime | None = None
) -> Explanation:
    """Explain a device.

    Args:
        snapshot: the document.
        device: a device in it.
        how: kind of match, see `find_device`.
        now: the current time.
        began: as in `who_tables`.
    """
    title = f"{device.name or device.kind} {device.uuid or device.pci_address or device.key}"
    facts = [f"matched by {how}", f"read from the {device.side} side on {snapshot.node.name}"]
    facts += [f"bound driver: {function.driver or 'none'}" for function in snapshot.host.pci or ()
              if function.address == device.pci_address]  # fmt: skip
    facts += _holder_facts(device.holders, now, began)
    facts += _reader_errors(snapshot)
    lines = [
        *_lines(device.readings, now),
        *_unreported(device.kind, device.readings),
        *_dimension_lines(device.dimensions, now),
    ]
    return Explanation(
        subject=title, facts=tuple(facts), parts=(ExplainedSubject(title=device.key, lines=tuple(lines)),)
    )


def explain_host(snapshot: Snapshot, now: dt.datetime) -> Explanation:
    """Explain the readings of the machine."""
    lines = explain_readings(snapshot.host.readings, snapshot.host.dimensions, now)
    return Explanation(
        subject=snapshot.node.name,
        facts=tuple(_reader_errors(snapshot)),
        parts=(ExplainedSubject(title="host", lines=lines),),
    )


def explain_answer(answer: AllocationAnswer) -> Explanation:
    """Explain the readings of an allocation in a hub's answer."""
    spec = answer.allocation.spec
    facts = [f"{spec.kind}, generation {answer.allocation.generation}", f"source {answer.source}"]
    if answer.reason is not None:
        facts.append(f"unavailable: {_reason(answer.reason, answer.detail)}")
    if answer.age_seconds is not None:
        facts.append(f"newest reading received {answer.age_seconds:.0f} s ago")
    facts.append(f"GPUs reporting: {answer.aggregate.coverage}")
    if answer.last_error:
        facts.append(f"newest reader error: {answer.last_error}")
    parts = [
        ExplainedSubject(
            title=f"{device.name or device.kind} {device.uuid or device.pci_address or device.id} ({device.side})",
            lines=(*_lines(device.readings, None), *_dimension_lines(device.dimensions, None)),
        )
        for device in answer.devices
    ]
    if answer.host:
        lines = (*_lines(answer.host, None), *_dimension_lines(answer.host_dimensions, None))
        parts.append(ExplainedSubject(title="host", lines=lines))
    return Explanation(subject=f"allocation {answer.allocation.id}", facts=tuple(facts), parts=tuple(parts))


def explain_readings(
    readings: dict[str, Reading], dimensions: Iterable[DimReading], now: dt.datetime
) -> tuple[ExplainedReading, ...]:
    """Explain the readings of a device or machine of an agent."""
    return (*_lines(readings, now), *_dimension_lines(dimensions, now))


def _lines(readings: dict[str, Reading], now: dt.datetime | None) -> Iterable[ExplainedReading]:
    for metric, reading in readings.items():
        yield ExplainedReading(
            metric=metric,
            value=reading.value,
            unit=CATALOGUE[metric].unit if metric in CATALOGUE else "",
            text=_value_text(metric, reading.value),
            absent=reading.absent,
            detail=reading.detail,
            catalogue=_catalogue(metric, reading.absent),
            reader=reading.reader,
            side=reading.side,
            scope=reading.scope,
            age_seconds=reading.age_seconds if now is None else _age(reading.measured_at, now),
        )


def _dimension_lines(dimensions: Iterable[DimReading], now: dt.datetime | None) -> Iterable[ExplainedReading]:
    for dim in dimensions:
        yield ExplainedReading(
            metric=f"{dim.metric}{{{','.join(f'{name}={value}' for name, value in dim.labels.items())}}}",
            value=dim.value,
            unit=CATALOGUE[dim.metric].unit if dim.metric in CATALOGUE else "",
            text=_value_text(dim.metric, dim.value),
            absent=dim.absent,
            detail=dim.detail,
            catalogue=_catalogue(dim.metric, dim.absent),
            reader=dim.reader,
            age_seconds=None if now is None else _age(dim.measured_at, now),
        )


def _unreported(kind: ViewKind, readings: Mapping[str, Reading]) -> Iterable[ExplainedReading]:
    """Yield metrics of the device's kind that no reader has reported.

    Metrics that apply only to GPUs in some role are left out, because the reader of that role reports their absence.
    """
    for metric in CATALOGUE.values():
        if kind is ViewKind.GPU and metric.role is not None:
            continue
        if Subject(kind) in metric.subjects and not metric.dims and metric.name not in readings:
            absent = Reason.NOT_COLLECTED
            yield ExplainedReading(metric=metric.name, unit=metric.unit, absent=absent, detail=NOT_REPORTED)


def _reader_errors(snapshot: Snapshot) -> list[str]:
    errors = {
        f"reader {report.reader} {report.state}: {report.last_error}": None
        for report in snapshot.readers
        if report.last_error
    }
    return list(errors)


def _catalogue(metric: str, absent: Reason | None) -> str:
    cases = CATALOGUE[metric].absent_when if metric in CATALOGUE else ()
    return "; ".join(case.when for case in cases if case.reason is absent)


def _value_text(metric: str, value: Value | None) -> str:
    if value is None:
        return ""
    return value_text(metric, value) if metric in CATALOGUE else str(value)


def _reason(reason: Reason, detail: str) -> str:
    return f"{reason}: {detail}" if detail else str(reason)


def _age(at: dt.datetime | None, now: dt.datetime) -> float | None:
    return None if at is None else max(0.0, (now - at).total_seconds())


def explain_guest(guest: Guest, now: dt.datetime) -> Explanation:
    """Explain a virtual machine: its state, access to it, and its readings."""
    parts = [
        ExplainedSubject(title="the machine", lines=explain_readings(guest.host.readings, guest.host.dimensions, now))
    ]
    parts += [
        ExplainedSubject(
            title=f"{device.name or device.kind} {device.uuid or device.pci_address or device.key}",
            lines=explain_readings(device.readings, device.dimensions, now),
        )
        for device in guest.devices
    ]
    return Explanation(
        subject=f"virtual machine {guest.machine.name} {guest.vm_uuid}",
        facts=guest_facts(guest, now),
        parts=tuple(parts),
    )


def explain_guest_device(snapshot: Snapshot, guest: Guest, device: Device, now: dt.datetime) -> Explanation:
    """Explain a device inside a virtual machine, with the state of that machine."""
    found = explain_device(snapshot, device, f"the UUID claimed by virtual machine {guest.machine.name}", now)
    return Explanation(subject=found.subject, facts=guest_facts(guest, now), parts=found.parts)


def explain_gpu(record: GpuRecord, now: dt.datetime) -> Explanation:
    """Explain the readings of a device in a hub's answer."""
    device = record.device
    facts = [f"{device.id}, source {device.source}", f"read from the {device.side} side on {record.node}"]
    if record.liveness is not None:
        unverified = ", not verified" if record.liveness.unverified else ""
        facts.append(f"state {record.liveness.state}{unverified}, newest sample {seconds_text(record.age_seconds)} ago")
        facts += [*record.liveness.partial, *record.liveness.suspect]
    facts += _holder_facts(record.holders, now)
    for place in record.history.places if record.history is not None else ():
        if not place.is_newest:
            facts.append(f"before in {place.node or place.machine}, slot {place.pci_address}")
    lines = (
        *_lines(device.readings, None),
        *_unreported(device.kind, device.readings),
        *_dimension_lines(device.dimensions, None),
    )
    name = device.uuid or device.pci_address or device.id
    return Explanation(
        subject=f"{device.name or device.kind} {name}",
        facts=tuple(facts),
        parts=(ExplainedSubject(title=device.id, lines=lines),),
    )


def _holder_facts(holders: DeviceHolders | None, now: dt.datetime, began: dt.datetime | None = None) -> list[str]:
    """Return a sentence for each holder of a device, with its evidence, and one if not all holders are known."""
    if holders is None:
        return []
    facts = [_holding_fact(one, now, began) for one in holders.holdings]
    if holders.state is not HolderState.HELD or holders.detail:
        facts.append(printable(f"holders are {holders.state}{f': {holders.detail}' if holders.detail else ''}"))
    return facts


def _holding_fact(holding: Holding, now: dt.datetime, began: dt.datetime | None) -> str:
    container = f", container {holding.container}" if holding.container else ""
    since, duration = to_datetime(holding.since), ""
    if began is None or since < began:
        duration = f", for {seconds_text(max(0.0, (now - since).total_seconds()))}"
    methods = ", ".join(holding.methods) or "unknown"
    kind = "" if holding.holder.kind is HolderKind.JOB else f"{holding.holder.kind} "  # part of the text of a job
    share = share_text(holding.share, holding.replicas, holding.total_replicas)
    return printable(
        f"holder: {kind}{holder_text(holding.holder, holding.parent)}{container}{duration}, "
        f"{share}; verdict {holding.verdict}, evidence: {methods}"
    )


def select_readings(explanation: Explanation, metrics: Sequence[str], *, absent: bool) -> Explanation:
    """Return the explanation with only some readings.

    Args:
        explanation: the explanation.
        metrics: names of metrics, or parts of names; empty selects all.
        absent: select only absent readings.
    """

    def selects(line: ExplainedReading) -> bool:
        return (not absent or line.absent is not None) and (not metrics or any(one in line.metric for one in metrics))

    parts = tuple(
        msgspec.structs.replace(part, lines=tuple(line for line in part.lines if selects(line)))
        for part in explanation.parts
    )
    return msgspec.structs.replace(explanation, parts=parts)


def explanation_tables(explanation: Explanation) -> list[TextTable | str]:
    """Return a table with a row per reading, by device and theme, and notes."""
    several = len(explanation.parts) > 1
    rows = [
        (
            part.title,
            Cell(theme_of(line.metric), key=f"{part.title}: {theme_of(line.metric)}" if several else None),
            line.metric,
            _value(line),
            line.reader,
            line.side if line.scope in ("", "own") else f"{line.side} ({line.scope})",
            Cell() if line.age_seconds is None else Cell(seconds_text(line.age_seconds), key=line.age_seconds),
        )
        for part in explanation.parts
        for line in sorted(part.lines, key=lambda line: theme_order(line.metric))
    ]
    longest = max((len(line.metric.partition("{")[0]) for part in explanation.parts for line in part.lines), default=0)
    columns = (
        TextColumn("device", wide=True),
        TextColumn("theme"),
        TextColumn("reading", wrap=True, least=longest + 1),  # names are not folded, labels are
        TextColumn("value-or-reason", wrap=True),
        TextColumn("reader", rank=2),
        TextColumn("side", rank=3),
        TextColumn("age", rank=1, right=True),
    )
    unreported = any(line.detail == NOT_REPORTED for part in explanation.parts for line in part.lines)
    notes = [f"not_collected without details: {NOT_REPORTED}."] if unreported else []
    return [TextTable(columns, rows, "readings", group="theme"), *notes]


def _value(line: ExplainedReading) -> Cell:
    if line.absent is None:
        return Cell(line.text)
    text = f"{line.absent}: {line.detail}" if line.detail else str(line.absent)
    full = f"{text} [catalogue: {line.catalogue}]" if line.catalogue else text
    return Cell(str(line.absent) if line.detail == NOT_REPORTED else full, full=full)
