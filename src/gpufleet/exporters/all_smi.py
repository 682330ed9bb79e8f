"""The snapshot under all-smi's names, for its viewer and its dashboards.

GPUs carry both generations of all-smi labels. The vGPU and MIG families are filled from the driver, unlike in all-smi's
own server. vGPU utilisation is the current value. MIG utilisation is activity, the only one
that the driver measures for MIG.
"""

from collections.abc import Iterator, Mapping

from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dialect import FamilyMapping
from gpufleet.exporters.exposition import MetricsPage, format_labels
from gpufleet.exporters.families import (
    SUBJECTS,
    LabelledSubject,
    add_families,
    devices_with_gpus,
    reading_text,
)
from gpufleet.model.catalogue import Subject
from gpufleet.model.reading import Value
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.view import ViewKind

INFO = "all_smi_gpu_info"
_CORE = ("gpu", "instance", "gpu_uuid", "gpu_index", "uuid", "index")
_INSTANCE = ("gpu_index", "gpu_uuid", "gpu", "instance", "host")
_LABELS: dict[str, tuple[str, ...]] = {
    "all_smi_vgpu_host_mode": (*_INSTANCE, "host_mode"),
    "all_smi_vgpu_scheduler_state": (*_INSTANCE, "arr_supported"),
    "all_smi_vgpu_scheduler_policy": _INSTANCE,
    "all_smi_gpu_mig_mode": _INSTANCE,
    "all_smi_energy_consumed_joules_total": ("host", "scope", "gpu_index", "gpu_uuid"),
}
"""Labels of GPU families whose labels differ from `_CORE`, in all-smi's order."""

_OF_KIND = {
    Subject.GPU: _CORE,
    Subject.VGPU: (*_INSTANCE, "vgpu_id", "vgpu_uuid", "vgpu_type", "vgpu_vm_id"),
    Subject.MIG: (*_INSTANCE, "mig_instance", "mig_uuid", "mig_profile", "gpu_instance_id", "compute_instance_id"),
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
"""Labels of `all_smi_gpu_info` and their readings. A reading without a value has no label."""


def add_all_smi(page: MetricsPage, snapshot: Snapshot) -> None:
    """Add the all-smi families to a page."""
    node = snapshot.node.name
    page.declare("all_smi_up", "gauge", "1 once the first pass is complete")
    page.add("all_smi_up", format_labels({"instance": node, "hostname": node}), 1)
    shown = list(_labelled_subjects(snapshot))
    page.declare(INFO, "gauge", "Texts and modes of one GPU; always 1")
    for one in shown:
        if one.subject is Subject.GPU:
            known = {**snapshot.host.readings, **one.readings}
            details = {label: _detail_text(reading_text(known, name)) for label, name in _DETAILS}
            known_details = {label: detail for label, detail in details.items() if detail}
            page.add(INFO, format_labels({**_select_labels(_CORE, one), "type": "GPU", **known_details}), 1)
    add_families(page, ALL_SMI, shown, label=_label)


def _detail_text(value: str) -> str:
    """Write a state as all-smi does: `Enabled`, `Exclusive Process`. Other texts are unchanged."""
    is_state = value.islower() and not any(map(str.isdigit, value))
    return value.replace("_", " ").title() if is_state else value


def _labelled_subjects(snapshot: Snapshot) -> Iterator[LabelledSubject]:
    node = {"instance": snapshot.node.name, "host": snapshot.node.name, "hostname": snapshot.node.name}
    for device, gpu in devices_with_gpus(snapshot):
        if gpu.uuid is None:
            continue  # all-smi identifies a GPU by UUID only
        index = "" if gpu.index is None else str(gpu.index)
        uuid = gpu.uuid or ""
        labels = {**node, "gpu": gpu.name or "", "gpu_uuid": uuid, "gpu_index": index, "uuid": uuid, "index": index}
        yield LabelledSubject(
            subject=SUBJECTS[device.kind],
            readings=device.readings,
            dimensions=device.dimensions,
            labels={**labels, **_specific_labels(device)},
        )
    model = reading_text(snapshot.host.readings, "host_cpu_model")
    yield LabelledSubject(
        subject=Subject.MACHINE, readings=snapshot.host.readings, labels={**node, "index": "0", "cpu_model": model}
    )


def _specific_labels(device: Device) -> dict[str, str]:
    """Return the labels used by only some families, or specific to MIG devices and vGPUs."""
    readings = device.readings
    if device.kind is ViewKind.VGPU:
        return {
            "vgpu_id": device.instance or "",
            "vgpu_uuid": device.uuid or "",
            "vgpu_type": reading_text(readings, "vgpu_type"),
            "vgpu_vm_id": reading_text(readings, "vgpu_vm_id"),
        }
    if device.kind is ViewKind.MIG:
        return {
            "mig_instance": "" if device.index is None else str(device.index),
            "mig_uuid": device.uuid or "",
            "mig_profile": reading_text(readings, "mig_profile"),
            "gpu_instance_id": reading_text(readings, "mig_gpu_instance"),
            "compute_instance_id": reading_text(readings, "mig_compute_instance"),
        }
    supported = {"1": "true", "0": "false"}.get(reading_text(readings, "gpu_vgpu_scheduler_arr_supported"), "")
    mode = {"sriov": "Sriov", "non_sriov": "NonSriov"}.get(reading_text(readings, "gpu_vgpu_host_mode"), "")
    return {"arr_supported": supported, "host_mode": mode, "scope": "gpu"}


def _label(family: FamilyMapping, one: LabelledSubject, _: Value) -> Mapping[str, str]:
    if one.subject is Subject.MACHINE:
        return _select_labels(_CPU if family.name.startswith("all_smi_cpu_") else _OF_MACHINE, one)
    return _select_labels(_LABELS.get(family.name, _OF_KIND[one.subject]), one)


def _select_labels(names: tuple[str, ...], one: LabelledSubject) -> dict[str, str]:
    return {name: one.labels[name] for name in names}
