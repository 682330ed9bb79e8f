"""The snapshot under all-smi's names, for its viewer and for dashboards that were written for it.

GPUs carry both generations of its labels. Its families of vGPU and MIG are filled from the driver, which its own server
does not do: a vGPU's utilisation is the present one, and a MIG device's is what the driver measures of one, activity.
"""

from collections.abc import Iterator, Mapping

from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dialect import Family
from gpufleet.exporters.exposition import Page, labelled
from gpufleet.exporters.families import SUBJECTS, Shown, add_families, parts, plain, text
from gpufleet.model.catalogue import Subject
from gpufleet.model.reading import Value
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.view import ViewKind

INFO = "all_smi_gpu_info"
_CORE = ("gpu", "instance", "gpu_uuid", "gpu_index", "uuid", "index")
_CUT = ("gpu_index", "gpu_uuid", "gpu", "instance", "host")
_LABELS: dict[str, tuple[str, ...]] = {
    "all_smi_vgpu_host_mode": (*_CUT, "host_mode"),
    "all_smi_vgpu_scheduler_state": (*_CUT, "arr_supported"),
    "all_smi_vgpu_scheduler_policy": _CUT,
    "all_smi_gpu_mig_mode": _CUT,
    "all_smi_energy_consumed_joules_total": ("host", "scope", "gpu_index", "gpu_uuid"),
}
"""Labels of families of a GPU that do not have the usual ones, in its order."""

_OF_KIND = {
    Subject.GPU: _CORE,
    Subject.VGPU: (*_CUT, "vgpu_id", "vgpu_uuid", "vgpu_type", "vgpu_vm_id"),
    Subject.MIG: (*_CUT, "mig_instance", "mig_uuid", "mig_profile", "gpu_instance_id", "compute_instance_id"),
}
_OF_MACHINE = ("instance", "hostname", "index")
_CPU = ("cpu_model", *_OF_MACHINE)

_DETAILS = (
    ("driver_version", "nvidia_driver_version"),
    ("cuda_version", "nvidia_cuda_version"),
    ("architecture", "gpu_architecture"),
    ("compute_mode", "gpu_compute_mode"),
    ("ecc_mode_current", "gpu_ecc_mode"),
    ("ecc_mode_pending", "gpu_ecc_mode_pending"),
    ("mig_mode_current", "gpu_mig_mode"),
    ("mig_mode_pending", "gpu_mig_mode_pending"),
    ("vbios_version", "gpu_vbios_version"),
)
"""Labels of `all_smi_gpu_info`, and the readings that they show; what has no value has no label."""


def add_all_smi(page: Page, snapshot: Snapshot) -> None:
    """Add the families to a page."""
    node = snapshot.node.name
    page.declare("all_smi_up", "gauge", "1 once the first pass has ended")
    page.add("all_smi_up", labelled({"instance": node, "hostname": node}), 1)
    shown = list(_shown(snapshot))
    page.declare(INFO, "gauge", "Texts and modes of one GPU; always 1")
    for one in shown:
        if one.subject is Subject.GPU:
            known = {**snapshot.host.readings, **one.readings}
            details = {label: _detail(text(known, name)) for label, name in _DETAILS}
            said = {label: word for label, word in details.items() if word}
            page.add(INFO, labelled({**_chosen(_CORE, one), "type": "GPU", **said}), 1)
    add_families(page, ALL_SMI, shown, write=_written, label=_label)


def _detail(word: str) -> str:
    """Write a state as it does: `Enabled`, `Exclusive Process`; a text stays."""
    return word.replace("_", " ").title() if word.islower() and not any(map(str.isdigit, word)) else word


def _shown(snapshot: Snapshot) -> Iterator[Shown]:
    node = {"instance": snapshot.node.name, "host": snapshot.node.name, "hostname": snapshot.node.name}
    for device, gpu in parts(snapshot):
        if gpu.uuid is None:
            continue  # there is no other name there
        index = "" if gpu.index is None else str(gpu.index)
        uuid = gpu.uuid or ""
        labels = {**node, "gpu": gpu.name or "", "gpu_uuid": uuid, "gpu_index": index, "uuid": uuid, "index": index}
        yield Shown(
            subject=SUBJECTS[device.kind],
            readings=device.readings,
            dimensions=device.dimensions,
            labels={**labels, **_own(device)},
        )
    model = text(snapshot.host.readings, "host_cpu_model")
    yield Shown(
        subject=Subject.MACHINE, readings=snapshot.host.readings, labels={**node, "index": "0", "cpu_model": model}
    )


def _own(device: Device) -> dict[str, str]:
    """Return what only some families need, or only instances have."""
    readings = device.readings
    if device.kind is ViewKind.VGPU:
        return {
            "vgpu_id": device.instance or "",
            "vgpu_uuid": device.uuid or "",
            "vgpu_type": text(readings, "vgpu_type"),
            "vgpu_vm_id": text(readings, "vgpu_vm_id"),
        }
    if device.kind is ViewKind.MIG:
        return {
            "mig_instance": "" if device.index is None else str(device.index),
            "mig_uuid": device.uuid or "",
            "mig_profile": text(readings, "mig_profile"),
            "gpu_instance_id": text(readings, "mig_gpu_instance"),
            "compute_instance_id": text(readings, "mig_compute_instance"),
        }
    supported = {"1": "true", "0": "false"}.get(text(readings, "gpu_vgpu_scheduler_arr_supported"), "")
    mode = {"sriov": "Sriov", "non_sriov": "NonSriov"}.get(text(readings, "gpu_vgpu_host_mode"), "")
    return {"arr_supported": supported, "host_mode": mode, "scope": "gpu"}


def _label(family: Family, one: Shown, _: Value) -> Mapping[str, str]:
    if one.subject is Subject.MACHINE:
        return _chosen(_CPU if family.name.startswith("all_smi_cpu_") else _OF_MACHINE, one)
    return _chosen(_LABELS.get(family.name, _OF_KIND[one.subject]), one)


def _chosen(names: tuple[str, ...], one: Shown) -> dict[str, str]:
    return {name: one.labels[name] for name in names}


def _written(family: Family, value: Value) -> str | None:
    if family.name == "all_smi_vgpu_active" and not isinstance(value, str):
        return str(int(value > 0))  # whether a process runs there, not how many
    return plain(family, value)
