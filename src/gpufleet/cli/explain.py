"""Explanations of readings for `gpufleet why`, as records and as text. Pure."""

import datetime as dt
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from gpufleet.exporters.display import guest_facts, seconds_text, value_text
from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AllocationAnswer
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Device, Guest, Snapshot
from gpufleet.model.view import ViewKind

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


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


def explain_device(snapshot: Snapshot, device: Device, how: str, now: dt.datetime) -> Explanation:
    """Explain a device; `how` is the kind of match, see `find_device`."""
    title = f"{device.name or device.kind} {device.uuid or device.pci_address or device.key}"
    facts = [f"matched by {how}", f"read from the {device.side} side on {snapshot.node.name}"]
    facts += [f"bound driver: {function.driver or 'none'}" for function in snapshot.host.pci or ()
              if function.address == device.pci_address]  # fmt: skip
    facts += _reader_errors(snapshot)
    lines = [*_lines(device.readings, now), *_unreported(device), *_dimension_lines(device.dimensions, now)]
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


def _unreported(device: Device) -> Iterable[ExplainedReading]:
    """Yield metrics of the device's kind that no reader has reported.

    Metrics that apply only to GPUs in some role are left out, because the reader of that role reports their absence.
    """
    for metric in CATALOGUE.values():
        if device.kind is ViewKind.GPU and metric.role is not None:
            continue
        if Subject(device.kind) in metric.subjects and not metric.dims and metric.name not in device.readings:
            detail = "no reader has reported it"
            yield ExplainedReading(metric=metric.name, unit=metric.unit, absent=Reason.NOT_COLLECTED, detail=detail)


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


def render_explanation(explanation: Explanation, *, width: int, colour: bool) -> str:
    """Render an explanation for a terminal of this width, in columns."""
    from rich.console import Console
    from rich.text import Text

    page = io.StringIO()
    console = Console(
        file=page,
        width=width,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(Text(explanation.subject, style="bold"))
    for fact in explanation.facts:
        console.print(Text(f"  {fact}"))
    for part in explanation.parts:
        console.print()
        if len(explanation.parts) > 1:
            console.print(Text(part.title, style="bold"))
        console.print(_table(part))
    return page.getvalue()


def _table(part: ExplainedSubject) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("reading", "value or reason", "reader", "side", "age"):
        table.add_column(title, justify="right" if title == "age" else "left", overflow="fold")
    for line in part.lines:
        table.add_row(
            line.metric,
            _value(line),
            line.reader,
            line.side if line.scope in ("", "own") else f"{line.side} ({line.scope})",
            "" if line.age_seconds is None else seconds_text(line.age_seconds),
        )
    return table


def _value(line: ExplainedReading) -> "Text":
    from rich.text import Text

    if line.absent is None:
        return Text(line.text)
    text = Text(str(line.absent), style="yellow")
    if line.detail:
        text.append(f": {line.detail}")
    if line.catalogue:
        text.append(f" [catalogue: {line.catalogue}]", style="dim")
    return text
