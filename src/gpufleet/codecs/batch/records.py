"""Validation of the records beside the columns: machines, views, heartbeat, parts of machines, cluster part."""

import math
from collections.abc import Iterable

import msgspec

from gpufleet.codecs.batch.limits import name_place
from gpufleet.model.errors import WireError
from gpufleet.model.event import Event
from gpufleet.model.holdings import (
    MAX_DEVICE_STATES,
    MAX_STATE_TEXT,
    MAX_UNRESOLVED_NAMES,
    MAX_UNRESOLVED_SOURCES,
    DeviceState,
    Holder,
    Holding,
    UnresolvedCount,
)
from gpufleet.model.machine import ATTRIBUTES, Machine, PciFunction
from gpufleet.model.status import Heartbeat, ReaderStatus
from gpufleet.model.view import View
from gpufleet.model.wire.batch import ClusterPart, MachinePart, WireBatch

MAX_NAME = 253
MAX_MESSAGE = 4096
MAX_ATTRIBUTES = 64

MAX_HOLDER_TEXT = 1024
"""Maximum length of a text of a holder; a pod without UID is identified by namespace and name."""

_HOLDER_TEXTS = (
    *("id", "name", "namespace", "user", "account", "queue", "qos", "array_job", "array_task", "slurm_cluster"),
)

_MACHINE_NAMES = (
    *("machine_id", "system_uuid", "boot_id", "k8s_node_uid", "instance_id", "hypervisor"),
    *ATTRIBUTES,
)

_ENCODER = msgspec.msgpack.Encoder()
_PART_DECODER = msgspec.msgpack.Decoder(ClusterPart)

_INT64_MAX = 2**63 - 1
_UINT32_MAX = 2**32 - 1
_LONGEST_INTERVAL_SECONDS = 366 * 86_400.0


def check_head(wire: WireBatch) -> None:
    """Check sender, batch number and heartbeat. Raises WireError naming the field."""
    _check_required("cluster", wire.cluster)
    _check_required("sender", wire.sender)
    _check_number("seq", wire.seq, 1, _INT64_MAX)
    _check_instant("sent_at", wire.sent_at)
    if wire.heartbeat is not None:
        _check_heartbeat("heartbeat", wire.heartbeat)


def check_machines(machines: list[Machine]) -> None:
    """Check the evidence of every machine. Raises WireError naming the field."""
    for index, machine in enumerate(machines):
        field = f"machines[{index}]"
        _check_required(f"{field}.name", machine.name)
        for name in _MACHINE_NAMES:
            text = getattr(machine, name)
            if text is not None:
                _check_required(f"{field}.{name}", text)


def check_views(views: list[View]) -> None:
    """Check that every view has an identity. Raises WireError naming the field."""
    for index, view in enumerate(views):
        _check_view(f"views[{index}]", view)


def check_parts(parts: list[MachinePart], machines: int) -> None:
    """Check the parts of machines: everything except processes. Raises WireError naming the field."""
    seen: set[int] = set()
    for index, part in enumerate(parts):
        field = f"parts[{index}]"
        if part.machine >= machines:
            raise WireError(f"{field}.machine", f"{part.machine} points past the {machines} machines")
        if part.machine in seen:
            raise WireError(f"{field}.machine", f"machine {part.machine} already has a part")
        seen.add(part.machine)
        for at, event in enumerate(part.events):
            _check_event(f"{field}.events[{at}]", event)
        for at, status in enumerate(part.readers):
            _check_status(f"{field}.readers[{at}]", status)
        for at, holding in enumerate(part.holdings):
            _check_holding(f"{field}.holdings[{at}]", holding)
        for at, function in enumerate(part.inventory or ()):
            _check_function(f"{field}.inventory[{at}]", function)
        _check_device_holders(f"{field}.device_holders", part.device_holders or [])
        _check_unresolved(f"{field}.unresolved", part.unresolved)


def check_cluster_part(field: str, part: ClusterPart) -> None:
    """Check the contents and identities of every object of a part that was not decoded.

    Raises as `check_identities`.
    """
    try:
        _PART_DECODER.decode(_ENCODER.encode(part))
    except msgspec.ValidationError as error:
        place, reason = name_place(error, ClusterPart)
        raise WireError(f"{field}.{place}", reason) from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise WireError(field, f"cannot be encoded: {error}") from error
    check_identities(field, part)


def check_identities(field: str, part: ClusterPart) -> None:
    """Check the UID and name of every object of a decoded part. Raises WireError naming the field."""
    for name in ("nodes", "pods", "slices", "claims", "vmis"):
        for at, one in enumerate(getattr(part, name)):
            for identity in ("uid", "name"):
                text = getattr(one, identity)
                if not text or len(text) > MAX_NAME or "\0" in text:
                    _check_required(f"{field}.{name}[{at}].{identity}", text)


def _check_heartbeat(field: str, heartbeat: Heartbeat) -> None:
    _check_interval(f"{field}.interval_seconds", heartbeat.interval_seconds)
    _check_text(f"{field}.version", heartbeat.version, MAX_NAME)
    _check_text(f"{field}.config_hash", heartbeat.config_hash, MAX_NAME)
    _check_instant(f"{field}.started_at", heartbeat.started_at)
    _check_instant(f"{field}.oldest_unsent", heartbeat.oldest_unsent)
    if heartbeat.answered_at is not None:
        _check_number(f"{field}.answered_at", heartbeat.answered_at, 0, _INT64_MAX)
    for name in ("queue_records", "queue_bytes", "dropped_total"):
        number = getattr(heartbeat, name)
        if number is not None:
            _check_number(f"{field}.{name}", number, 0, _INT64_MAX)


def _check_view(field: str, view: View) -> None:
    if not (view.uuid or view.pci_address or view.instance):
        raise WireError(field, "has neither uuid nor pci_address nor instance")
    for name in ("uuid", "pci_address", "instance", "parent"):
        text = getattr(view, name)
        if text is not None:
            _check_required(f"{field}.{name}", text)
    if view.index is not None:
        _check_number(f"{field}.index", view.index, 0, _UINT32_MAX)


def _check_event(field: str, event: Event) -> None:
    if event.view is not None:
        _check_view(f"{field}.view", event.view)
    _check_required(f"{field}.kind", event.kind)
    _check_number(f"{field}.code", event.code, -(2**63), _INT64_MAX)
    _check_instant(f"{field}.at", event.at)
    if len(event.attributes) > MAX_ATTRIBUTES:
        raise WireError(f"{field}.attributes", f"{len(event.attributes)} attributes, more than {MAX_ATTRIBUTES}")
    for name, text in event.attributes.items():
        _check_required(f"{field}.attributes", name)
        _check_text(f"{field}.attributes", text, MAX_MESSAGE)


def _check_status(field: str, status: ReaderStatus) -> None:
    _check_required(f"{field}.reader", status.reader)
    if status.interval_seconds is not None:
        _check_interval(f"{field}.interval_seconds", status.interval_seconds)
    _check_instant(f"{field}.last_attempt", status.last_attempt)
    _check_instant(f"{field}.last_success", status.last_success)
    if status.duration_seconds is not None and not 0 <= status.duration_seconds <= _LONGEST_INTERVAL_SECONDS:
        raise WireError(f"{field}.duration_seconds", "not a number of seconds from 0 to a year")
    _check_number(f"{field}.failures", status.failures, 0, _INT64_MAX)
    _check_text(f"{field}.error_class", status.error_class, MAX_NAME)
    _check_text(f"{field}.last_error", status.last_error, MAX_MESSAGE)


def _check_holding(field: str, holding: Holding) -> None:
    _check_required(f"{field}.view", holding.view)
    _check_holder(f"{field}.holder", holding.holder)
    if holding.parent is not None:
        _check_holder(f"{field}.parent", holding.parent)
    for name in ("container", "container_id", "claim"):
        _check_text(f"{field}.{name}", getattr(holding, name), MAX_HOLDER_TEXT)
    for step in holding.steps:
        _check_text(f"{field}.steps", step, MAX_NAME)
    _check_instant(f"{field}.since", holding.since)
    _check_instant(f"{field}.until", holding.until)
    if holding.certain is not None:
        _check_instant(f"{field}.certain.until", holding.certain.until)
    _check_names(f"{field}.methods", holding.methods)


def _check_holder(field: str, holder: Holder) -> None:
    _check_required(f"{field}.id", holder.id, MAX_HOLDER_TEXT)
    for name in _HOLDER_TEXTS:
        _check_text(f"{field}.{name}", getattr(holder, name), MAX_HOLDER_TEXT)
    for owner in holder.owners:
        for name in ("kind", "name", "uid", "api_version"):
            _check_text(f"{field}.owners.{name}", getattr(owner, name), MAX_HOLDER_TEXT)
    for name, texts in (("labels", holder.labels), ("annotations", holder.annotations)):
        for key, text in texts.items():
            _check_text(f"{field}.{name}", key, MAX_HOLDER_TEXT)
            _check_text(f"{field}.{name}", text, MAX_MESSAGE)


def _check_device_holders(field: str, states: list[DeviceState]) -> None:
    if len(states) > MAX_DEVICE_STATES:
        raise WireError(field, f"{len(states)} devices, more than {MAX_DEVICE_STATES}")
    for at, one in enumerate(states):
        _check_required(f"{field}[{at}].view", one.view)
        _check_text(f"{field}[{at}].detail", one.detail, MAX_MESSAGE)


def _check_unresolved(field: str, counts: list[UnresolvedCount]) -> None:
    if len(counts) > MAX_UNRESOLVED_SOURCES:
        raise WireError(field, f"{len(counts)} sources, more than {MAX_UNRESOLVED_SOURCES}")
    for at, one in enumerate(counts):
        _check_required(f"{field}[{at}].source", one.source)
        if one.names is not None:
            _check_number(f"{field}[{at}].names", one.names, 0, _INT64_MAX)
        if len(one.examples) > MAX_UNRESOLVED_NAMES:
            raise WireError(f"{field}[{at}].examples", f"{len(one.examples)} names, more than {MAX_UNRESOLVED_NAMES}")
        for number, name in enumerate(one.examples):
            _check_text(f"{field}[{at}].examples[{number}]", name, MAX_STATE_TEXT)


def _check_function(field: str, function: PciFunction) -> None:
    _check_required(f"{field}.address", function.address)
    for name in ("driver", "physical_function"):
        text = getattr(function, name)
        if text is not None:
            _check_required(f"{field}.{name}", text)
    for name in ("vendor", "device", "class_code"):
        _check_number(f"{field}.{name}", getattr(function, name), 0, _UINT32_MAX)
    if function.numa_node is not None:
        _check_number(f"{field}.numa_node", function.numa_node, 0, _UINT32_MAX)


def _check_names(field: str, names: Iterable[str]) -> None:
    for count, name in enumerate(names):
        if count >= MAX_ATTRIBUTES:
            raise WireError(field, f"more than {MAX_ATTRIBUTES} entries")
        _check_required(f"{field}[{count}]", name)


def _check_required(field: str, text: str, limit: int = MAX_NAME) -> None:
    if not text:
        raise WireError(field, "empty")
    if "\0" in text:
        raise WireError(field, "a NUL character in a name")  # PostgreSQL texts cannot hold it
    _check_text(field, text, limit)


def _check_text(field: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise WireError(field, f"{len(text)} characters, more than {limit}")


def _check_number(field: str, number: int, low: int, high: int) -> None:
    if not low <= number <= high:
        raise WireError(field, f"{number} is not from {low} to {high}")


def _check_instant(field: str, at: int | None) -> None:
    if at is not None and not 1 <= at <= _INT64_MAX:
        raise WireError(field, f"{at} is not an instant in nanoseconds since 1970")


def _check_interval(field: str, seconds: float) -> None:
    if not math.isfinite(seconds) or not 0 < seconds <= _LONGEST_INTERVAL_SECONDS:
        raise WireError(field, "not a number of seconds above 0, up to a year")
