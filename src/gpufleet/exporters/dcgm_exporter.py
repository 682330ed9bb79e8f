"""The snapshot under dcgm-exporter's names, for dashboards and rules that were written for it.

Labels stand in the order of releases up to 4.8, with the host's name both as `Hostname` and, as newer ones have it,
`hostname`. A reading without a value has no series, as there. Names are those of `dialects/dcgm_exporter`.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gpufleet.dialects.dcgm_exporter import CLOCK_COUNT, CLOCK_EVENTS, DCGM_EXPORTER, WINDOW_MS, XID_COUNT
from gpufleet.dialects.dialect import Family
from gpufleet.exporters.clock_counts import ClockCounts
from gpufleet.exporters.exposition import Page, labelled
from gpufleet.exporters.families import SUBJECTS, Shown, add_families, each_once, parts, text
from gpufleet.exporters.prometheus import guest_labels
from gpufleet.model.event import RECENT_EVENTS, EventKind, EventReport
from gpufleet.model.reading import Value
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import Side, ViewKind
from gpufleet.model.xid import xid

LAST_XID, ANY_XID = "gpu_last_xid", "gpu_xid_events_total"
LAST_XID_FAMILY = "DCGM_FI_DEV_XID_ERRORS"
NO_XID = {"err_code": "0", "err_msg": "No Error"}
"""How it says that there was none."""


def add_dcgm(page: Page, snapshot: Snapshot, clocks: ClockCounts | None = None) -> None:
    """Add the families to a page.

    Args:
        page: the page.
        snapshot: what is shown.
        clocks: what was seen of clock events before, or None: then they are not counted.
    """
    shown = list(_shown(snapshot))
    add_families(page, DCGM_EXPORTER, [*shown, *_guests(snapshot)], write=written, label=_label)
    # What is counted from events is of this machine alone: a guest may claim any UUID.
    _no_xids(page, shown)
    _xid_counts(page, snapshot, shown)
    if clocks is not None:
        _clock_counts(page, clocks, shown)


def written(family: Family, value: Value) -> str | None:
    """Return a value of ours in their unit, as they write it: whole numbers, or six decimals."""
    if isinstance(value, str):
        return None
    theirs = value * family.over / family.times
    if family.real:
        return f"{theirs:f}"
    whole = value * family.over // family.times if isinstance(value, int) else round(theirs)
    return str(int(whole))


def _shown(snapshot: Snapshot, side: Side = Side.HOST) -> Iterator[Shown]:
    """Return GPUs and MIG devices that a driver here shows; an instance bears its GPU's labels."""
    driver = text(snapshot.host.readings, "nvidia_driver_version")
    for device, gpu in parts(snapshot):
        if gpu.side is not side or device.kind is ViewKind.VGPU:
            continue
        minor = text(gpu.readings, "gpu_minor_number")
        labels = {
            "gpu": "" if gpu.index is None else str(gpu.index),
            "UUID": gpu.uuid or "",
            "pci_bus_id": bus_id(gpu.pci_address),
            "device": f"nvidia{minor}" if minor else "",
            "modelName": gpu.name or "",
        }
        if device is not gpu:
            told = text(device.readings, "mig_gpu_instance")
            number = told or (device.instance or "").partition("/")[0].partition("@")[0]
            if not number:
                continue  # without it the series would be the GPU's own: an empty label is none
            labels["GPU_I_PROFILE"] = text(device.readings, "mig_profile")
            labels["GPU_I_ID"] = number
        labels |= {"Hostname": snapshot.node.name, "hostname": snapshot.node.name, "DCGM_FI_DRIVER_VERSION": driver}
        yield Shown(
            subject=SUBJECTS[device.kind], readings=device.readings, dimensions=device.dimensions, labels=labels
        )


def _guests(snapshot: Snapshot) -> Iterator[Shown]:
    """Return GPUs and MIG devices of virtual machines, with who they are behind the labels."""
    for guest in snapshot.guests:
        inside = msgspec.structs.replace(snapshot, devices=guest.devices, host=guest.host)
        for one in each_once(_shown(inside, Side.GUEST)):
            yield msgspec.structs.replace(one, labels={**one.labels, **guest_labels(guest)})


def _label(family: Family, one: Shown, value: Value) -> Mapping[str, str]:
    if family.metric != LAST_XID or isinstance(value, str):
        return one.labels
    return {**one.labels, "err_code": str(value), "err_msg": xid(int(value)).name}


def _no_xids(page: Page, shown: Sequence[Shown]) -> None:
    """Say of GPUs whose XIDs are watched that there was none; of others nothing."""
    for one in shown:
        count, last = one.readings.get(ANY_XID), one.readings.get(LAST_XID)
        if count is not None and count.value == 0 and (last is None or last.value is None):
            page.add_text(LAST_XID_FAMILY, labelled({**one.labels, **NO_XID}), "0")


def _xid_counts(page: Page, snapshot: Snapshot, shown: Sequence[Shown]) -> None:
    """Count the XIDs of each GPU in the window before the snapshot; a GPU without any has one series of 0.

    Only the newest events are kept. Where they do not reach back far enough, nothing is said.
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
                counts[event.code] = counts.get(event.code, 0) + _times(event)
        for code, times in sorted(counts.items()):
            page.add(XID_COUNT, labelled({**one.labels, **window, "xid": str(code)}), times)
        if not counts:
            page.add(XID_COUNT, labelled({**one.labels, **window}), 0)


def _clock_counts(page: Page, clocks: ClockCounts, shown: Sequence[Shown]) -> None:
    page.declare(CLOCK_COUNT, "gauge", "Samples in the last window in which clocks were held down, by reason")
    window = {"window_size_in_ms": str(WINDOW_MS)}
    for one in shown:
        for reason, samples in clocks.of(one.labels["UUID"]).items():
            event = {"clock_event": CLOCK_EVENTS[reason]}
            page.add(CLOCK_COUNT, labelled({**one.labels, **event, **window}), samples)


def _times(event: EventReport) -> int:
    told = event.attributes.get("count", "1")
    return int(told) if told.isascii() and told.isdigit() and len(told) < 10 else 1


def bus_id(address: str | None) -> str:
    """Write an address as NVML does: a domain of eight digits, upper case."""
    return f"0000{address}".upper() if address else ""
