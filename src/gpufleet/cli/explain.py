"""What `gpufleet why` says, as records. Pure.

What `gpufleet why` says of a virtual machine, and of a device inside one. Pure.

What `gpufleet why` says, on a terminal.
"""

import datetime as dt
import io
from collections.abc import Iterable

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpufleet.exporters.words import guest_facts, seconds_words, value_words
from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AllocationAnswer
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Device, Guest, Snapshot
from gpufleet.model.view import ViewKind


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading, explained.

    Attributes:
        metric: catalogue name, with its dimensions in braces if it has some.
        value, unit: as measured, in the catalogue's unit.
        words: the value as people write it; empty when absent.
        absent, detail: why there is none.
        catalogue: what the catalogue says of that absence.
        reader, side, scope: who read it, from where, about what.
        age_seconds: since it was measured; in a hub's answer, since the hub received it.
    """

    metric: str
    value: Value | None = None
    unit: str = ""
    words: str = ""
    absent: Reason | None = None
    detail: str = ""
    catalogue: str = ""
    reader: str = ""
    side: str = ""
    scope: str = ""
    age_seconds: float | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of one device, or of the machine."""

    title: str
    lines: tuple[Line, ...]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything said of what was asked about.

    Attributes:
        subject: what it is.
        facts: sentences about it as a whole.
        parts: its readings.
    """

    subject: str
    facts: tuple[str, ...]
    parts: tuple[Part, ...]


def explain_device(snapshot: Snapshot, device: Device, how: str, now: dt.datetime) -> Explanation:
    """Explain one device; `how` says how it was recognised."""
    title = f"{device.name or device.kind} {device.uuid or device.pci_address or device.key}"
    facts = [f"recognised by {how}", f"seen from side {device.side} of {snapshot.node.name}"]
    facts += [f"its driver: {function.driver or 'none bound'}" for function in snapshot.host.pci or ()
              if function.address == device.pci_address]  # fmt: skip
    facts += _failing(snapshot)
    lines = [*_lines(device.readings, now), *_untold(device), *_dimension_lines(device.dimensions, now)]
    return Explanation(subject=title, facts=tuple(facts), parts=(Part(title=device.key, lines=tuple(lines)),))


def explain_host(snapshot: Snapshot, now: dt.datetime) -> Explanation:
    """Explain the machine's own readings."""
    lines = explain_readings(snapshot.host.readings, snapshot.host.dimensions, now)
    return Explanation(
        subject=snapshot.node.name, facts=tuple(_failing(snapshot)), parts=(Part(title="host", lines=lines),)
    )


def explain_answer(answer: AllocationAnswer) -> Explanation:
    """Explain a hub's answer about an allocation."""
    spec = answer.allocation.spec
    facts = [f"{spec.kind}, generation {answer.allocation.generation}", f"answered by {answer.source}"]
    if answer.reason is not None:
        facts.append(f"unavailable because {_reason(answer.reason, answer.detail)}")
    if answer.age_seconds is not None:
        facts.append(f"newest reading received {answer.age_seconds:.0f} s ago")
    facts.append(f"{answer.aggregate.coverage} report")
    if answer.last_error:
        facts.append(f"newest error of its readers: {answer.last_error}")
    parts = [
        Part(
            title=f"{device.name or device.kind} {device.uuid or device.pci_address or device.id} ({device.side})",
            lines=(*_lines(device.readings, None), *_dimension_lines(device.dimensions, None)),
        )
        for device in answer.devices
    ]
    if answer.host:
        lines = (*_lines(answer.host, None), *_dimension_lines(answer.host_dimensions, None))
        parts.append(Part(title="host", lines=lines))
    return Explanation(subject=f"allocation {answer.allocation.id}", facts=tuple(facts), parts=tuple(parts))


def explain_readings(
    readings: dict[str, Reading], dimensions: Iterable[DimReading], now: dt.datetime
) -> tuple[Line, ...]:
    """Explain the readings of one subject of an agent."""
    return (*_lines(readings, now), *_dimension_lines(dimensions, now))


def _lines(readings: dict[str, Reading], now: dt.datetime | None) -> Iterable[Line]:
    for metric, reading in readings.items():
        yield Line(
            metric=metric,
            value=reading.value,
            unit=CATALOGUE[metric].unit if metric in CATALOGUE else "",
            words=_words(metric, reading.value),
            absent=reading.absent,
            detail=reading.detail,
            catalogue=_catalogue(metric, reading.absent),
            reader=reading.reader,
            side=reading.side,
            scope=reading.scope,
            age_seconds=reading.age_seconds if now is None else _age(reading.measured_at, now),
        )


def _dimension_lines(dimensions: Iterable[DimReading], now: dt.datetime | None) -> Iterable[Line]:
    for dim in dimensions:
        yield Line(
            metric=f"{dim.metric}{{{','.join(f'{name}={value}' for name, value in dim.labels.items())}}}",
            value=dim.value,
            unit=CATALOGUE[dim.metric].unit if dim.metric in CATALOGUE else "",
            words=_words(dim.metric, dim.value),
            absent=dim.absent,
            detail=dim.detail,
            catalogue=_catalogue(dim.metric, dim.absent),
            reader=dim.reader,
            age_seconds=None if now is None else _age(dim.measured_at, now),
        )


def _untold(device: Device) -> Iterable[Line]:
    """Give the metrics that such a device can have and that no reader has said anything of.

    What only GPUs in some role have is told by whoever finds them in it.
    """
    for metric in CATALOGUE.values():
        if device.kind is ViewKind.GPU and metric.role is not None:
            continue
        if Subject(device.kind) in metric.subjects and not metric.dims and metric.name not in device.readings:
            detail = "no reader has told of it"
            yield Line(metric=metric.name, unit=metric.unit, absent=Reason.NOT_COLLECTED, detail=detail)


def _failing(snapshot: Snapshot) -> list[str]:
    told = {
        f"reader {report.reader} {report.state}: {report.last_error}": None
        for report in snapshot.readers
        if report.last_error
    }
    return list(told)


def _catalogue(metric: str, absent: Reason | None) -> str:
    cases = CATALOGUE[metric].absent_when if metric in CATALOGUE else ()
    return "; ".join(case.when for case in cases if case.reason is absent)


def _words(metric: str, value: Value | None) -> str:
    if value is None:
        return ""
    return value_words(metric, value) if metric in CATALOGUE else str(value)


def _reason(reason: Reason, detail: str) -> str:
    return f"{reason}: {detail}" if detail else str(reason)


def _age(at: dt.datetime | None, now: dt.datetime) -> float | None:
    return None if at is None else max(0.0, (now - at).total_seconds())


def explain_guest(guest: Guest, now: dt.datetime) -> Explanation:
    """Explain a virtual machine: how it is doing, the ways into it, when it got how far, and its readings."""
    parts = [Part(title="the machine", lines=explain_readings(guest.host.readings, guest.host.dimensions, now))]
    parts += [
        Part(
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
    """Explain one device inside a virtual machine, and how the agent gets on with that."""
    found = explain_device(snapshot, device, f"UUID, as virtual machine {guest.machine.name} claims it", now)
    return Explanation(subject=found.subject, facts=guest_facts(guest, now), parts=found.parts)


def render_explanation(explanation: Explanation, *, width: int, colour: bool) -> str:
    """Return the screen."""
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


def _table(part: Part) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("reading", "value or reason", "reader", "side", "age"):
        table.add_column(title, justify="right" if title == "age" else "left", overflow="fold")
    for line in part.lines:
        table.add_row(
            line.metric,
            _value(line),
            line.reader,
            line.side if line.scope in ("", "own") else f"{line.side} ({line.scope})",
            "" if line.age_seconds is None else seconds_words(line.age_seconds),
        )
    return table


def _value(line: Line) -> Text:
    if line.absent is None:
        return Text(line.words)
    text = Text(str(line.absent), style="yellow")
    if line.detail:
        text.append(f": {line.detail}")
    if line.catalogue:
        text.append(f" [catalogue: {line.catalogue}]", style="dim")
    return text
