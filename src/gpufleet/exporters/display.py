"""Human-readable texts of values, events and guests, for terminals only. Pure."""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping

from gpufleet.fleet.device_events import RESET_EVENTS
from gpufleet.model.absence import Absent, Reason, worst_absence
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.device_state import (
    ERROR,
    HUNG,
    LOST,
    OK,
    RESET_REQUIRED,
    UNREADABLE,
    has_state_lane,
    is_evidence,
    is_failure,
    state_of_instance,
)
from gpufleet.model.event import EventKind
from gpufleet.model.holdings import DeviceHolders, Holder, HolderKind, HolderState, Share, UnresolvedDevice
from gpufleet.model.reading import Value, dim_value_of, value_of
from gpufleet.model.snapshot import AccessPathReport, AccessPathState, Device, Guest
from gpufleet.model.text import printable
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, ViewKind

ValueFormatter = Callable[[float], str]

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = (("G", 1e9), ("M", 1e6), ("k", 1e3))


def bytes_text(value: float) -> str:
    """Format bytes with three digits and a binary unit."""
    step = 0
    while value >= 999.5 and step < len(_BINARY) - 1:
        value /= 1024
        step += 1
    return f"{value:.3g} {_BINARY[step]}"


def percent_text(value: float) -> str:
    """Format a ratio as percent. A small one is never shown as 0."""
    if 0 < value < 0.001:
        return f"{value * 100:.2g} %"
    return f"{value * 100:.0f} %" if value == 0 or value >= 0.1 else f"{value * 100:.1f} %"


def included_text(count: int, total: int) -> str:
    """Return how many of the devices a mean or sum includes, after it; empty if it includes all of them."""
    return f" ({count}/{total})" if 0 < count < total else ""


def seconds_text(value: float) -> str:
    """Format a duration in seconds with a suitable unit."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h" if value < 48 * 3600 else f"{value / 86400:.0f} days"


def hertz_text(value: float) -> str:
    """Format a frequency."""
    for prefix, size in _DECIMAL:
        if value >= size:
            return f"{value / size:.4g} {prefix}Hz"
    return f"{value:g} Hz"


_UNITS: dict[str, ValueFormatter] = {
    "bytes": bytes_text,
    "bytes_per_second": lambda value: f"{bytes_text(value)}/s",
    "ratio": percent_text,
    "hertz": hertz_text,
    "celsius": lambda value: f"{value:g} °C",
    "watts": lambda value: f"{value:.4g} W",
    "joules": lambda value: f"{value:.6g} J",
    "seconds": lambda value: f"{value:.10g} s",
}


def value_text(metric: str, value: float | str) -> str:
    """Format a value of a metric with its unit."""
    if isinstance(value, str):
        return value
    formatter = _UNITS.get(CATALOGUE[metric].unit)
    if formatter is not None:
        return formatter(value)
    return str(value) if isinstance(value, int) else f"{value:.6g}"


_SHOWN_SEPARATELY = frozenset({"name", "class", "action", "log_seq"})


def event_name(kind: str, code: int) -> str:
    """Format the kind of an event with its code; the code of a reset as its meaning: it looks like an XID."""
    if kind in RESET_EVENTS:
        return f"{kind} (reset)" if code and kind == EventKind.GPU_RECOVERED else kind
    return f"{kind} {code}" if code else kind


def event_text(attributes: Mapping[str, str]) -> str:
    """Format the attributes of an event: name and class, then the advised action, then the rest."""
    first = [attributes[name] for name in ("name", "class") if attributes.get(name)]
    action = attributes.get("action", "")
    advised = [f"advised: {action}"] if action and action != "unknown" else []
    rest = [f"{name} {text}" for name, text in attributes.items() if name not in _SHOWN_SEPARATELY]
    return ", ".join([*first, *advised, *rest])


READINESS_TIMES = (
    ("guest_seen_timestamp_seconds", "discovered"),
    ("guest_channel_open_timestamp_seconds", "first access path open"),
    ("guest_first_answer_timestamp_seconds", "first answer"),
    ("guest_driver_ready_timestamp_seconds", "driver ready"),
)


def guest_facts(guest: Guest, now: dt.datetime) -> tuple[str, ...]:
    """Return texts about a guest: state, source, expected GPUs, access paths and readiness times."""
    expected = guest.host.readings.get("guest_expected_gpus")
    shown = guest.host.readings.get("guest_gpus")
    facts = [f"state {guest.state}: {guest.detail}" if guest.detail else f"state {guest.state}"]
    facts.append(f"found by {guest.found_by}")
    if guest.allocation:
        facts.append(f"for allocation {guest.allocation}")
    if expected is not None and expected.value is not None:
        counted = "unknown" if shown is None or shown.value is None else str(shown.value)
        facts.append(f"expected GPUs {expected.value}, visible GPUs {counted}")
    facts += [access_path_text(way, now) for way in guest.access_paths]
    facts += _stamps(guest, now)
    return tuple(facts)


def access_path_text(way: AccessPathReport, now: dt.datetime) -> str:
    """Return a text about one access path of a guest."""
    text = f"access path for {way.reads}: {way.name}: {way.state.replace('_', ' ')}"
    if way.state is AccessPathState.ANSWERS and way.last_success is not None:
        text += f", last {_age_text(way.last_success, now)}"
    if way.last_failure is not None:
        text += f"; last error {_age_text(way.last_failure, now)}: {way.reason}: {way.last_error}"
    return text


def _stamps(guest: Guest, now: dt.datetime) -> Iterable[str]:
    discovered: float | None = None
    for metric, label in READINESS_TIMES:
        reading = guest.host.readings.get(metric)
        if reading is None or not isinstance(reading.value, int | float):
            yield f"{label}: not yet"
            continue
        at = to_datetime(int(reading.value * NANOS))
        after = "" if discovered is None else f", {seconds_text(max(0.0, reading.value - discovered))} after discovery"
        discovered = reading.value if discovered is None else discovered
        yield f"{label} {_age_text(at, now)} ({at:%Y-%m-%dT%H:%M:%SZ}){after}"


def _age_text(at: dt.datetime, now: dt.datetime) -> str:
    return f"{seconds_text(max(0.0, (now - at).total_seconds()))} ago"


def holder_text(holder: Holder, parent: Holder | None = None) -> str:
    """Return the name of a holder: `namespace/pod`, `job 12`, or a virtual machine's name; then that of its holder."""
    name = holder.name or holder.id
    text = f"{holder.namespace}/{name}" if holder.namespace else name
    if holder.kind is HolderKind.JOB:
        text = f"job {holder.id} {holder.name}".rstrip()
    if parent is not None:
        text += f" ({parent.kind} {parent.name or parent.id})"
    return printable(text)


def unresolved_text(one: UnresolvedDevice) -> str:
    """Return a device name that identifies no device, with its source and holder: `kubelet: X (ml/train-0)`."""
    return printable(f"{one.source}: {one.name} ({holder_text(one.holder)})")


def owner_text(holder: Holder) -> str:
    """Return the last owner of a holder, or an empty text if it is unknown."""
    return printable(f"{holder.owners[-1].kind} {holder.owners[-1].name}") if holder.owners else ""


def share_text(share: Share, replicas: int, total: int = 0) -> str:
    """Return a sharing mode, with the number of replicas of a shared device: `timeslice x2`, or `timeslice 2/4`."""
    if not replicas:
        return str(share)
    return f"{share} {replicas}/{total}" if total else f"{share} x{replicas}"


def holders_text(holders: DeviceHolders | None) -> str:
    """Return the holders of a device in one line: their names, `free`, or `unknown`."""
    if holders is None:
        return ""
    names = list(dict.fromkeys(holder_text(one.holder, one.parent) for one in holders.holdings))
    shown = ", ".join(names[:MAX_HOLDERS]) + (
        f" and {len(names) - MAX_HOLDERS} more" if len(names) > MAX_HOLDERS else ""
    )
    if holders.state is HolderState.HELD:
        return shown
    return f"{holders.state} (last {shown})" if shown else str(holders.state)


MAX_HOLDERS = 3
"""Most holders of a device shown in one line."""


NOTHING = "–"
"""Text of a value that is absent."""


def device_status(device: Device, gpu: Device | None = None) -> tuple[str, bool]:
    """Return the state of a device, or the reason of its absent readings; and whether the state is good.

    Args:
        device: GPU, MIG device or vGPU.
        gpu: the GPU of a part, None if it is unknown.
    """
    if device.kind is not ViewKind.GPU and _has_values(device):
        stated = None if gpu is None else gpu.readings.get("gpu_state")
        return _part_status(device, None if stated is None else stated.value)
    state = device.readings.get("gpu_state")
    if state is None and device.side is not Side.PCI_ONLY and _has_values(device):
        return NOTHING, False  # the reader does not report a state, and absence of another reading is not a state
    if state is None or state.value is None:
        values = [value_of(one) for one in (*([state] if state else []), *device.readings.values())]
        return next((_absent_text(value) for value in values if isinstance(value, Absent)), NOTHING), False
    if state.value == OK:
        actions = _required_actions(device)
        return ", ".join([OK, *actions]), not actions
    found = [value_of(one) for name, one in device.readings.items() if has_state_lane(name)]  # others can be older
    evidence = [one for one in found if isinstance(one, Absent) and is_evidence(one.reason)]
    texts = [str(state.value)] + ([_absent_text(worst_absence(evidence))] if evidence else [])
    return ", ".join(texts), False


def _part_status(device: Device, gpu_state: Value | None) -> tuple[str, bool]:
    """Return the state of a MIG device or vGPU by the state of its GPU, and by its own numbers in the lane of that.

    Constants, such as its profile, show nothing, and slow lanes can have read a loss from which the GPU has recovered.
    No part of a lost or hung GPU works, whatever an older pass read. While the GPU is ok, a failure of a part is of an
    older pass, too: the state of a GPU includes those of its parts.
    """
    if gpu_state in (LOST, RESET_REQUIRED, HUNG):
        return str(gpu_state), False
    values = {name: value_of(one) for name, one in device.readings.items() if has_state_lane(name)}
    dims = [dim_value_of(one) for one in device.dimensions if has_state_lane(one.metric)]
    state = state_of_instance(values, dims)
    if gpu_state == OK and state in (LOST, RESET_REQUIRED, ERROR):
        values = {name: value for name, value in values.items() if not _is_failed(value)}
        state = state_of_instance(values, [dim for dim in dims if not _is_failed(dim.value)])
    absent = [value for value in values.values() if isinstance(value, Absent)]
    has_failed = state != UNREADABLE or any(is_failure(one.reason) for one in absent)
    if isinstance(state, str) and state != OK and has_failed:
        return state, False
    for one in absent if state != OK else ():
        if one.reason is Reason.STALE or is_evidence(one.reason):
            return _absent_text(one), False
    license_ = device.readings.get("vgpu_license_state")
    if license_ is not None and str(license_.value).startswith("unlicensed"):
        return str(license_.value), False
    return (OK, True) if state == OK else (NOTHING, False)


def _is_failed(value: Value | Absent) -> bool:
    return isinstance(value, Absent) and is_failure(value.reason)


def _absent_text(absent: Absent) -> str:
    return f"{absent.reason}: {absent.detail}" if absent.detail else str(absent.reason)


def _has_values(device: Device) -> bool:
    return any(reading.value is not None for reading in device.readings.values())


def _required_actions(device: Device) -> list[str]:
    """Return the operator actions that a responding GPU still needs."""
    actions = []
    action = device.readings.get("gpu_recovery_action")
    if action is not None and action.value not in (None, "none"):
        actions.append(f"needs {action.value}")
    for metric, text in (("gpu_row_remap_pending", "remap pending"), ("gpu_row_remap_failed", "remap failed")):
        pending = device.readings.get(metric)
        if pending is not None and isinstance(pending.value, int | float) and pending.value:
            actions.append(text)
    return actions
