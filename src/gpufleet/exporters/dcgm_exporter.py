"""The snapshot under dcgm-exporter's names, for dashboards and rules that were written for it.

Labels stand in the order of releases up to 4.8, with the host's name both as `Hostname` and, as newer ones have it,
`hostname`. A reading without a value has no series, as there. Names are those of `dialects/dcgm_exporter`.
"""

from collections.abc import Iterable

from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.dialect import Family
from gpufleet.exporters.exposition import Page, labelled
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.view import Side, ViewKind
from gpufleet.model.xid import xid

LAST_XID = "gpu_last_xid"


def add_dcgm(page: Page, snapshot: Snapshot) -> None:
    """Add the families to a page."""
    driver = _text(snapshot.host.readings.get("nvidia_driver_version"))
    devices = list(_labelled_devices(snapshot, driver))
    for family in DCGM_EXPORTER.families.values():
        words = CATALOGUE[family.metric].help
        page.declare(family.name, "counter" if family.counter else "gauge", words)
        for device, labels in devices:
            reading = device.readings.get(family.metric)
            if reading is None or reading.value is None or isinstance(reading.value, str):
                continue
            if family.metric == LAST_XID:
                more = labelled({"err_code": str(reading.value), "err_msg": xid(int(reading.value)).name})
                page.add_text(family.name, f"{labels},{more}", written(family, reading.value))
            else:
                page.add_text(family.name, labels, written(family, reading.value))


def written(family: Family, value: float) -> str:
    """Return a value of ours in their unit, as they write it: whole numbers, or six decimals."""
    theirs = value * family.over / family.times
    if family.real:
        return f"{theirs:f}"
    whole = value * family.over // family.times if isinstance(value, int) else round(theirs)
    return str(int(whole))


def _labelled_devices(snapshot: Snapshot, driver: str) -> Iterable[tuple[Device, str]]:
    """Return GPUs and MIG devices that a driver here shows, each with its labels; an instance bears its GPU's."""
    gpus = {device.key: device for device in snapshot.devices if device.kind is ViewKind.GPU}
    for device in snapshot.devices:
        gpu = device if device.kind is ViewKind.GPU else gpus.get(device.parent or "")
        if gpu is None or gpu.side is not Side.HOST or device.kind is ViewKind.VGPU:
            continue
        minor = _text(gpu.readings.get("gpu_minor_number"))
        labels = {
            "gpu": "" if gpu.index is None else str(gpu.index),
            "UUID": gpu.uuid or "",
            "pci_bus_id": _bus_id(gpu.pci_address),
            "device": f"nvidia{minor}" if minor else "",
            "modelName": gpu.name or "",
        }
        if device is not gpu:
            labels["GPU_I_PROFILE"] = _text(device.readings.get("mig_profile"))
            labels["GPU_I_ID"] = _text(device.readings.get("mig_gpu_instance"))
        labels |= {"Hostname": snapshot.node.name, "hostname": snapshot.node.name, "DCGM_FI_DRIVER_VERSION": driver}
        yield device, labelled(labels)


def _bus_id(address: str | None) -> str:
    """Write an address as NVML does: a domain of eight digits, upper case."""
    return f"0000{address}".upper() if address else ""


def _text(reading: Reading | None) -> str:
    return "" if reading is None or reading.value is None else str(reading.value)
