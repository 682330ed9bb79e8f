"""The snapshot under the names of utkuozdemir's nvidia_gpu_exporter; GPUs only, as there.

Its UUIDs lack `GPU-`, and so do these. A MIG device is not among its labels: what it has of MIG is by GPU instance.
"""

from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER, PREFIX, UUID_PREFIX
from gpufleet.exporters.dcgm_exporter import bus_id
from gpufleet.exporters.exposition import Page, labelled
from gpufleet.exporters.families import Shown, add_families, parts, text
from gpufleet.model.catalogue import Subject
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import Side

INFO = PREFIX + "gpu_info"
NONE = "[N/A]"
"""As nvidia-smi writes what it cannot tell."""


def add_nvidia_gpu_exporter(page: Page, snapshot: Snapshot) -> None:
    """Add the families to a page."""
    host = snapshot.host.readings
    page.declare(INFO, "gauge", "Texts of one GPU; always 1")
    shown = []
    for device, gpu in parts(snapshot):
        if device is not gpu or gpu.uuid is None or gpu.side is Side.PCI_ONLY:
            continue
        uuid = gpu.uuid.removeprefix(UUID_PREFIX)
        readings = gpu.readings
        about = {
            "compute_cap": text(readings, "gpu_compute_capability"),
            "cuda_version": text(host, "nvidia_cuda_version"),
            "driver_version": text(host, "nvidia_driver_version"),
            "index": "" if gpu.index is None else str(gpu.index),
            "name": gpu.name or "",
            "pci_bus_id": bus_id(gpu.pci_address),
            "serial": text(readings, "gpu_serial"),
            "uuid": uuid,
            "vbios_version": text(readings, "gpu_vbios_version"),
        }
        page.add(INFO, labelled({name: word or NONE for name, word in about.items()}), 1)
        shown.append(Shown(subject=Subject.GPU, readings=readings, dimensions=gpu.dimensions, labels={"uuid": uuid}))
    add_families(page, NVIDIA_GPU_EXPORTER, shown)
