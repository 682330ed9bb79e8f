"""The snapshot under dcgm-exporter's names, for its dashboards and rules.

Labels are in the order of releases up to 4.8. The host name is written as `Hostname` and, as in newer releases,
`hostname`. A reading without a value has no series, as in dcgm-exporter. Names come from `dialects/dcgm_exporter`.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from gpufleet.dialects.dcgm_exporter import CLOCK_COUNT, CLOCK_EVENTS, DCGM_EXPORTER, WINDOW_MS, XID_COUNT
from gpufleet.dialects.dialect import FamilyMapping
from gpufleet.exporters.clock_counts import ClockCounts
from gpufleet.exporters.exposition import MetricsPage, format_labels
from gpufleet.exporters.families import (
    SUBJECTS,
    LabelledSubject,
    add_families,
    devices_with_gpus,
    reading_text,
    without_duplicates,
)
from gpufleet.exporters.holders import join_labels, pod_metadata
from gpufleet.exporters.prometheus import guest_labels
from gpufleet.fleet.attribution.reported import is_certain, may_label
from gpufleet.model.event import RECENT_EVENTS, EventKind, EventReport
from gpufleet.model.holdings import Holding
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.time import LATEST, to_ns
from gpufleet.model.view import Side, ViewKind
from gpufleet.model.xid import xid

LAST_XID, ANY_XID = "gpu_last_xid", "gpu_xid_events_total"
LAST_XID_FAMILY = "DCGM_FI_DEV_XID_ERRORS"
NO_XID = {"err_code": "0", "err_msg": "No Error"}
"""Labels with which dcgm-exporter reports that no XID occurred."""


def add_dcgm(
    page: MetricsPage, snapshot: Snapshot, clocks: ClockCounts | None = None, *, pod_labels: bool = False
) -> None:
    """Add the dcgm-exporter families to a page.

    Args:
        page: the page.
        snapshot: the source of the readings.
        clocks: clock event counts, or None to omit them.
        pod_labels: add UID and labels of pods, as with dcgm-exporter's options.
    """
    name = _names_and_metadata if pod_labels else _names
    shown = list(_host_subjects(snapshot, name))
    add_families(page, DCGM_EXPORTER, [*shown, *_guest_subjects(snapshot)], write=format_dcgm_value, label=_label)
    # Counts of events cover this machine only: a guest may claim any UUID.
    _add_zero_xids(page, shown)
    windows = list(_window_subjects(snapshot, name))
    _add_xid_counts(page, snapshot, windows)
    if clocks is not None:
        _add_clock_counts(page, clocks, windows)


def format_dcgm_value(family: FamilyMapping, value: Value) -> str | None:
    """Convert a value to dcgm-exporter's unit and format: a whole number, or six decimals."""
    if isinstance(value, str):
        return None
    theirs = value * family.over / family.times
    if family.real:
        return f"{theirs:f}"
    whole = value * family.over // family.times if isinstance(value, int) else round(theirs)
    return str(int(whole))


def _host_devices(snapshot: Snapshot, side: Side) -> Iterator[tuple[Device, dict[str, str]]]:
    """Yield GPUs and MIG devices of a side with their labels. A MIG device has the labels of its GPU."""
    driver = reading_text(snapshot.host.readings, "nvidia_driver_version")
    for device, gpu in devices_with_gpus(snapshot):
        if gpu.side is not side or device.kind is ViewKind.VGPU:
            continue
        minor = reading_text(gpu.readings, "gpu_minor_number")
        labels = {
            "gpu": "" if gpu.index is None else str(gpu.index),
            "UUID": gpu.uuid or "",
            "pci_bus_id": bus_id(gpu.pci_address),
            "device": f"nvidia{minor}" if minor else "",
            "modelName": gpu.name or "",
        }
        if device is not gpu:
            number = (
                reading_text(device.readings, "mig_gpu_instance")
                or (device.instance or "").partition("/")[0].partition("@")[0]
            )
            if not number:
                continue  # an empty label equals a missing one: the series would be that of the GPU
            labels["GPU_I_PROFILE"] = reading_text(device.readings, "mig_profile")
            labels["GPU_I_ID"] = number
        labels |= {"Hostname": snapshot.node.name, "hostname": snapshot.node.name, "DCGM_FI_DRIVER_VERSION": driver}
        yield device, labels


def _host_subjects(snapshot: Snapshot, name: "_Namer", side: Side = Side.HOST) -> Iterator[LabelledSubject]:
    """Yield the devices of a side, each once for each holder, as with dcgm-exporter's option for time-slicing.

    A value has the labels of the holders that had the device when it was measured, or of none.
    """
    for device, labels in _host_devices(snapshot, side):
        holders = _holders(device, name)
        for names, holdings in holders:
            yield _subject(device, _joined(labels, names), functools.partial(_is_held, holdings))
        every = [holding for _, holdings in holders for holding in holdings]
        rest = _subject(device, labels, functools.partial(_is_free, every))
        if not holders or rest.readings or rest.dimensions:
            yield rest


def _window_subjects(snapshot: Snapshot, name: "_Namer") -> Iterator[LabelledSubject]:
    """Yield the devices as `_host_subjects` does, for counts over a window: with holders that had them throughout."""
    start = to_ns(snapshot.measured_at) - WINDOW_MS * 1_000_000
    for device, labels in _host_devices(snapshot, Side.HOST):
        held = [names for names, holdings in _holders(device, name) if _is_held(holdings, start)]
        for names in held or [{}]:
            yield _subject(device, _joined(labels, names), lambda _: True)


def _subject(device: Device, labels: Mapping[str, str], includes: Callable[[int], bool]) -> LabelledSubject:
    """Return a device with the readings that were measured at included instants."""
    readings, dimensions = device.readings, device.dimensions
    if not all(map(includes, _instants(device))):
        readings = {name: reading for name, reading in readings.items() if _is_included(reading, includes)}
        dimensions = tuple([dim for dim in dimensions if _is_included(dim, includes)])
    return LabelledSubject(subject=SUBJECTS[device.kind], readings=readings, dimensions=dimensions, labels=labels)


def _instants(device: Device) -> set[int]:
    """Return the different times of measurement of a device's readings, nanoseconds since 1970."""
    measured = {reading.measured_at for reading in device.readings.values()}
    measured |= {dim.measured_at for dim in device.dimensions}
    return {to_ns(at) for at in measured if at is not None}


def _is_included(reading: Reading | DimReading, includes: Callable[[int], bool]) -> bool:
    return includes(LATEST if reading.measured_at is None else to_ns(reading.measured_at))


def _is_held(holdings: Iterable[Holding], at: int) -> bool:
    return any(may_label(holding, at) for holding in holdings)


def _is_free(holdings: Iterable[Holding], at: int) -> bool:
    return not _is_held(holdings, at)


def _holders(device: Device, name: "_Namer") -> list[tuple[dict[str, str], list[Holding]]]:
    """Return the labels of each certain holder of a device, with its holdings."""
    found: list[tuple[dict[str, str], list[Holding]]] = []
    for holding in device.holders.holdings if device.holders else ():
        names = name(holding)
        if names and is_certain(holding):
            same = next((holdings for known, holdings in found if known == names), None)
            if same is None:
                found.append((names, [holding]))
            else:
                same.append(holding)
    return found


_Namer = Callable[[Holding], dict[str, str]]
"""Returns the labels of a holder."""


def _joined(labels: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a device, and those of a holder that are not labels of the device."""
    return {**labels, **{name: text for name, text in names.items() if name not in labels}}


def _names(holding: Holding) -> dict[str, str]:
    """Return dcgm-exporter's labels of a holder: `container`, `namespace` and `pod`, or `hpc_job` of SLURM."""
    names = join_labels(holding)
    labels = {name: names[name] for name in ("container", "namespace", "pod") if names.get(name)}
    return labels | ({"hpc_job": names["job_id"]} if "job_id" in names else {})


def _names_and_metadata(holding: Holding) -> dict[str, str]:
    """Return the same labels, with UID and labels of a pod."""
    return {**pod_metadata(holding), **_names(holding)}


def _guest_subjects(snapshot: Snapshot) -> Iterator[LabelledSubject]:
    """Yield GPUs and MIG devices of virtual machines. The guest's labels come last."""
    for guest in snapshot.guests:
        inside = msgspec.structs.replace(snapshot, devices=guest.devices, host=guest.host)
        for one in without_duplicates(_host_subjects(inside, _names, Side.GUEST)):
            yield msgspec.structs.replace(one, labels={**one.labels, **guest_labels(guest)})


def _label(family: FamilyMapping, one: LabelledSubject, value: Value) -> Mapping[str, str]:
    if family.metric != LAST_XID or isinstance(value, str):
        return one.labels
    return {**one.labels, "err_code": str(value), "err_msg": xid(int(value)).name}


def _add_zero_xids(page: MetricsPage, shown: Sequence[LabelledSubject]) -> None:
    """Add an XID of 0 for GPUs that are watched and had none. GPUs that are not watched have no series."""
    for one in shown:
        count, last = one.readings.get(ANY_XID), one.readings.get(LAST_XID)
        if count is not None and count.value == 0 and (last is None or last.value is None):
            page.add_text(LAST_XID_FAMILY, format_labels({**one.labels, **NO_XID}), "0")


def _add_xid_counts(page: MetricsPage, snapshot: Snapshot, shown: Sequence[LabelledSubject]) -> None:
    """Add the number of XIDs of each GPU in the window before the snapshot. A GPU without XIDs has one series of 0.

    Only the newest events are kept. If they do not cover the window, no series is added.
    """
    page.declare(XID_COUNT, "gauge", "XIDs of the GPU by number, in the last window")
    ages = [(snapshot.measured_at - event.at).total_seconds() * 1000 for event in snapshot.events]
    if len(ages) >= RECENT_EVENTS and ages[-1] < WINDOW_MS:
        return
    window = {"window_size_in_ms": str(WINDOW_MS)}
    for one in shown:
        count = one.readings.get(ANY_XID)
        if count is None or count.value is None:
            continue
        counts: dict[int, int] = {}
        for event, age in zip(snapshot.events, ages, strict=True):
            if event.kind == EventKind.XID and event.uuid == one.labels["UUID"] and age <= WINDOW_MS:
                counts[event.code] = counts.get(event.code, 0) + _event_count(event)
        for code, times in sorted(counts.items()):
            page.add(XID_COUNT, format_labels({**one.labels, **window, "xid": str(code)}), times)
        if not counts:
            page.add(XID_COUNT, format_labels({**one.labels, **window}), 0)


def _add_clock_counts(page: MetricsPage, clocks: ClockCounts, shown: Sequence[LabelledSubject]) -> None:
    page.declare(CLOCK_COUNT, "gauge", "Samples in the last window with reduced clocks, by reason")
    window = {"window_size_in_ms": str(WINDOW_MS)}
    for one in shown:
        for reason, samples in clocks.of(one.labels["UUID"]).items():
            event = {"clock_event": CLOCK_EVENTS[reason]}
            page.add(CLOCK_COUNT, format_labels({**one.labels, **event, **window}), samples)


def _event_count(event: EventReport) -> int:
    count = event.attributes.get("count", "1")
    return int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 1


def bus_id(address: str | None) -> str:
    """Write a PCI address as NVML does: a domain of eight digits, upper case."""
    return f"0000{address}".upper() if address else ""
