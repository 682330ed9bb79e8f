"""A request of OTLP logs as events of machines: those that an agent of ours pushes. Pure."""

from collections import Counter

from gpufleet.codecs.otlp.records import LogRecord, LogsRequest, Scalar
from gpufleet.dialects import otel
from gpufleet.dialects.otel_row import OWN
from gpufleet.hub.imported.points import machine_of
from gpufleet.hub.imported.written import Written
from gpufleet.model.event import Event
from gpufleet.model.event_kinds import KINDS
from gpufleet.model.machine import Machine

OF_THE_DEVICE = {otel.KIND, otel.SIDE, otel.PCI, otel.STATE, f"{OWN}code"}
"""Attributes under our own prefix that are no text of the event."""

UNNAMED = "log_record"
"""What records are counted as that do not tell what kind of event they are."""

MAX_TEXT = 1024
MAX_ATTRIBUTES = 64
MAX_DIGITS = 10


def read_request(request: LogsRequest) -> Written:
    """Return the events of a request. Records that are none of our events are not the hub's business."""
    machines: dict[Machine, list[Event]] = {}
    others: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    count = nameless = 0
    for (name, problem), number in request.problems.items():
        if name.startswith(OWN):
            problems[problem.value] += number
        else:
            others[name or UNNAMED] += number
    for resource in request.resources:
        count += len(resource.records)
        machine = machine_of(resource.attributes)
        read = [(record, event_of(record)) for record in resource.records]
        found = [event for _, event in read if event is not None]
        others.update(record.event or UNNAMED for record, event in read if event is None)
        if machine is None:
            nameless += len(found)
        elif found:
            machines.setdefault(machine, []).extend(found)
    return Written(
        machines={},
        events={machine: tuple(found) for machine, found in machines.items()},
        samples=count + sum(request.problems.values()),
        drift={},
        others=others,
        nameless=nameless,
        problems=problems,
    )


def event_of(record: LogRecord) -> Event | None:
    """Return the event that a record is, or None if it is none of ours."""
    kind = record.event.removeprefix(OWN)
    at = record.at or record.observed_at
    if not record.event.startswith(OWN) or kind not in KINDS or at < 1:
        return None
    texts = {name: value for name, value in record.attributes.items() if isinstance(value, str)}
    own = {name.removeprefix(OWN): value[:MAX_TEXT] for name, value in texts.items() if name.startswith(OWN)}
    known = {name.removeprefix(OWN) for name in OF_THE_DEVICE}
    kept = sorted((name, value) for name, value in own.items() if name not in known)[:MAX_ATTRIBUTES]
    return Event(
        view=otel.view_of(texts),
        kind=kind,
        code=_code(record.attributes.get(f"{OWN}code", 0)),
        at=at,
        attributes=dict(kept),
    )


def _code(told: Scalar) -> int:
    """Return a number of 31 bits, or 0. What brings logs here may have made a text of it."""
    if isinstance(told, str):
        told = int(told) if told.isascii() and told.isdigit() and len(told) <= MAX_DIGITS else 0
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 1 << 31 else 0
