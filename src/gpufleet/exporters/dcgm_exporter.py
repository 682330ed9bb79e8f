"""The snapshot under dcgm-exporter's names, for its dashboards and rules.

Labels are in the order of releases up to 4.8. The host name is written as `Hostname` and, as in newer releases,
`hostname`. A reading without a value has no series, as in dcgm-exporter. Names come from `dialects/dcgm_exporter`.
"""

from collections.abc import Iterator, Mapping, Sequence

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
from gpufleet.exporters.holders import join_labels
from gpufleet.exporters.prometheus import guest_labels
from gpufleet.model.event import RECENT_EVENTS, EventKind, EventReport
from gpufleet.model.holdings import DeviceHolders
from gpufleet.model.reading import Value
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import Side, ViewKind
from gpufleet.model.xid import xid

LAST_XID, ANY_XID = "gpu_last_xid", "gpu_xid_events_total"
LAST_XID_FAMILY = "DCGM_FI_DEV_XID_ERRORS"
NO_XID = {"err_code": "0", "err_msg": "No Error"}
"""Labels with which dcgm-exporter reports that no XID occurred."""


def add_dcgm(page: MetricsPage, snapshot: Snapshot, clocks: ClockCounts | None = None) -> None:
    """Add the dcgm-exporter families to a page.

    Args:
        page: the page.
        snapshot: the source of the readings.
        clocks: clock event counts, or None to omit them.
    """
    shown = list(_host_subjects(snapshot))
    add_families(page, DCGM_EXPORTER, [*shown, *_guest_subjects(snapshot)], write=format_dcgm_value, label=_label)
    # Counts of events cover this machine only: a guest may claim any UUID.
    _add_zero_xids(page, shown)
    _add_xid_counts(page, snapshot, shown)
    if clocks is not None:
        _add_clock_counts(page, clocks, shown)


def format_dcgm_value(family: FamilyMapping, value: Value) -> str | None:
    """Convert a value to dcgm-exporter's unit and format: a whole number, or six decimals."""
    if isinstance(value, str):
        return None
    theirs = value * family.over / family.times
    if family.real:
        return f"{theirs:f}"
    whole = value * family.over // family.times if isinstance(value, int) else round(theirs)
    return str(int(whole))


def _host_subjects(snapshot: Snapshot, side: Side = Side.HOST) -> Iterator[LabelledSubject]:
    """Yield GPUs and MIG devices of the local driver. A MIG device has the labels of its GPU."""
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
        # A shared device has one series per holder, as with dcgm-exporter's option for time-slicing.
        for holder in pod_labels(device.holders) or [{}]:
            yield LabelledSubject(
                subject=SUBJECTS[device.kind],
                readings=device.readings,
                dimensions=device.dimensions,
                labels={**labels, **holder},
            )


def pod_labels(holders: DeviceHolders | None) -> list[dict[str, str]]:
    """Return dcgm-exporter's labels of each holder: `container`, `namespace` and `pod`, or `hpc_job` of SLURM."""
    found: list[dict[str, str]] = []
    for holding in holders.holdings if holders else ():
        names = join_labels(holding)
        labels = {name: names[name] for name in ("container", "namespace", "pod") if names.get(name)}
        if "job_id" in names:
            labels["hpc_job"] = names["job_id"]
        if labels and labels not in found:
            found.append(labels)
    return found


def _guest_subjects(snapshot: Snapshot) -> Iterator[LabelledSubject]:
    """Yield GPUs and MIG devices of virtual machines. The guest's labels come last."""
    for guest in snapshot.guests:
        inside = msgspec.structs.replace(snapshot, devices=guest.devices, host=guest.host)
        for one in without_duplicates(_host_subjects(inside, Side.GUEST)):
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
