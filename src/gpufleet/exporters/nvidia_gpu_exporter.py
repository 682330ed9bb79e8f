"""The snapshot under the names of utkuozdemir's nvidia_gpu_exporter. GPUs only, as in that exporter.

UUIDs omit the prefix `GPU-`, as there. MIG devices have no labels there: its MIG families are per GPU instance.
"""

from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER, PREFIX, UUID_PREFIX
from gpufleet.exporters.dcgm_exporter import bus_id
from gpufleet.exporters.exposition import MetricsPage, format_labels
from gpufleet.exporters.families import LabelledSubject, add_families, devices_with_gpus, reading_text
from gpufleet.model.catalogue import Subject
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import Side

INFO = PREFIX + "gpu_info"
NONE = "[N/A]"
"""The text that nvidia-smi prints for an unknown value."""


def add_nvidia_gpu_exporter(page: MetricsPage, snapshot: Snapshot) -> None:
    """Add the nvidia_gpu_exporter families to a page."""
    host = snapshot.host.readings
    page.declare(INFO, "gauge", "Texts of one GPU; always 1")
    shown = []
    for device, gpu in devices_with_gpus(snapshot):
        if device is not gpu or gpu.uuid is None or gpu.side is Side.PCI_ONLY:
            continue
        uuid = gpu.uuid.removeprefix(UUID_PREFIX)
        readings = gpu.readings
        about = {
            "compute_cap": reading_text(readings, "gpu_compute_capability"),
            "cuda_version": reading_text(host, "nvidia_cuda_version"),
            "driver_version": reading_text(host, "nvidia_driver_version"),
            "index": "" if gpu.index is None else str(gpu.index),
            "name": gpu.name or "",
            "pci_bus_id": bus_id(gpu.pci_address),
            "serial": reading_text(readings, "gpu_serial"),
            "uuid": uuid,
            "vbios_version": reading_text(readings, "gpu_vbios_version"),
        }
        page.add(INFO, format_labels({name: value or NONE for name, value in about.items()}), 1)
        shown.append(
            LabelledSubject(subject=Subject.GPU, readings=readings, dimensions=gpu.dimensions, labels={"uuid": uuid})
        )
    add_families(page, NVIDIA_GPU_EXPORTER, shown)
