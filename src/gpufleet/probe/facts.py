"""Table of the facts in a capture, and of those that make two captures different."""

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.reading import Value
from gpufleet.model.text import bounded
from gpufleet.probe.records import MAX_VALUE, Fact, MeasuredUnit


class FactKind(msgspec.Struct, frozen=True):
    """Kind of a fact.

    Attributes:
        help: meaning.
        unit: of the value.
        compared: whether a difference can explain a difference in performance, so that a comparison lists it.
    """

    help: str
    unit: MeasuredUnit = MeasuredUnit.NONE
    compared: bool = True


FACTS = {
    # machine
    "host_kernel_release": FactKind("kernel release"),
    "host_os_name": FactKind("operating system"),
    "host_cpu_model": FactKind("processor model"),
    "host_virtualization": FactKind("hypervisor, or none; qemu without a hardware accelerator is emulation"),
    "host_container": FactKind("container engine around the capture, or none"),
    "host_system_vendor": FactKind("vendor by DMI"),
    "host_product_name": FactKind("product by DMI"),
    "host_bios_version": FactKind("firmware version by DMI"),
    "host_uptime_seconds": FactKind("time since boot", MeasuredUnit.SECONDS, compared=False),
    "clock_boot_seconds": FactKind(
        "start of the kernel since 1970, by the clock of the probing process", MeasuredUnit.SECONDS, compared=False
    ),
    "clock_boot_uncertainty_seconds": FactKind(
        "uncertainty of that time, in both directions", MeasuredUnit.SECONDS, compared=False
    ),
    "clock_offset_seconds": FactKind(
        "the machine's wall clock minus that of the probing process", MeasuredUnit.SECONDS, compared=False
    ),
    "clock_offset_uncertainty_seconds": FactKind(
        "uncertainty of that difference, in both directions", MeasuredUnit.SECONDS, compared=False
    ),
    # processor and memory
    "host_cpus": FactKind("online logical processors"),
    "host_cpu_sockets": FactKind("processor packages"),
    "host_smt_active": FactKind("whether simultaneous multithreading is active"),
    "host_cpu_governors": FactKind("frequency governors with their processor counts"),
    "host_numa_nodes": FactKind("NUMA nodes"),
    "host_numa_cpus": FactKind("processors of each NUMA node"),
    "host_memory_bytes": FactKind("memory", MeasuredUnit.BYTES),
    "host_hugepages": FactKind("huge pages of each size: reserved number", compared=True),
    "host_hugepages_free": FactKind("huge pages of each size: free number", compared=False),
    "host_transparent_hugepages": FactKind("mode of transparent huge pages"),
    "host_kernel_parameters": FactKind("kernel parameters of tuning, IOMMU and huge pages"),
    # disk
    "host_root_device": FactKind("block device of the root filesystem", compared=False),
    "host_root_disk_model": FactKind("model of the root disk"),
    "host_root_disk_serial": FactKind("serial number of the root disk", compared=False),
    "host_root_disk_bytes": FactKind("size of the root disk", MeasuredUnit.BYTES),
    "host_root_filesystem": FactKind("type of the root filesystem"),
    "host_root_bytes": FactKind("size of the root filesystem", MeasuredUnit.BYTES),
    # devices
    "host_iommu_groups": FactKind("IOMMU groups with devices; 0 without an active IOMMU"),
    "host_iommu_modes": FactKind("IOMMU groups by mode of translation; identity is passthrough"),
    "host_rdma_devices": FactKind("RDMA devices, with and without ports"),
    "host_pci_gpus": FactKind("NVIDIA display controllers on the PCI bus"),
    "host_nvidia_peermem": FactKind("whether the module nvidia_peermem is loaded"),
    "host_gdrcopy": FactKind("whether the module gdrdrv of GDRCopy is loaded"),
    "host_nvidia_fs": FactKind("whether the module nvidia_fs of GPUDirect Storage is loaded"),
    "host_pci_acs": FactKind("PCI bridges by state of Access Control Services; redirect affects GPUDirect"),
    "host_cdi_specifications": FactKind("files of Container Device Interface specifications"),
    "host_pci_links": FactKind("PCIe link of each GPU: lanes, and the maximum speed", compared=False),
    "pci_driver": FactKind("kernel driver of a GPU"),
    "pci_iommu_group": FactKind("IOMMU group of a GPU", compared=False),
    "pci_numa_node": FactKind("NUMA node of a GPU"),
    "pci_link_width": FactKind("lanes of a GPU's PCIe link"),
    "pci_link_width_max": FactKind("maximum lanes of a GPU's PCIe link"),
    "pci_link_speed": FactKind(
        "speed of a GPU's PCIe link; lower while idle", MeasuredUnit.TRANSFERS_PER_SECOND, compared=False
    ),
    "pci_link_speed_max": FactKind("maximum speed of a GPU's PCIe link", MeasuredUnit.TRANSFERS_PER_SECOND),
    # driver
    "host_nvidia_kernel_driver_version": FactKind("version of the loaded kernel module nvidia"),
    "nvidia_module_kind": FactKind("kind of the NVIDIA kernel module: open or proprietary"),
    "nvidia_driver_version": FactKind("driver version by nvidia-smi"),
    "nvidia_cuda_version": FactKind("CUDA version by nvidia-smi"),
    "nvidia_gpus": FactKind("GPUs by nvidia-smi"),
    "nvidia_smi_exit_code": FactKind("exit code of the first plain call of nvidia-smi", compared=False),
    "gpu_persistence_mode": FactKind("persistence mode of a GPU"),
    "gpu_mig_mode": FactKind("MIG mode of a GPU"),
    "gpu_ecc_mode": FactKind("ECC mode of a GPU"),
    "gpu_power_limit_watts": FactKind("enforced power limit of a GPU", MeasuredUnit.WATTS),
    "gpu_sm_clock_max_hertz": FactKind("maximum SM clock of a GPU", MeasuredUnit.HERTZ),
    # containers
    "docker_version": FactKind("version of the Docker command"),
    "docker_default_runtime": FactKind("default runtime in Docker's configuration"),
    "docker_nvidia_runtime": FactKind("whether Docker's configuration has the runtime nvidia"),
    "containerd_version": FactKind("version of containerd"),
    "containerd_runtimes": FactKind("runtimes in containerd's configuration; the default is marked with *"),
    "runc_version": FactKind("version of runc"),
    "nvidia_container_toolkit_version": FactKind("version of the NVIDIA Container Toolkit"),
}
"""Fact to its kind, in the order of reports."""


class FactList:
    """Collector of the facts of a capture."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def add(self, name: str, value: bool | Value | Absent, source: str = "", subject: str = "") -> None:
        """Add a fact. Texts are bounded, implausible numbers are absent. A second fact of a subject is ignored."""
        if any(fact.name == name and fact.subject == subject for fact in self.facts):
            return
        if isinstance(value, int | float) and not abs(value) <= MAX_VALUE:
            value = Absent(Reason.INVALID_VALUE, "the number is out of range")
        fact = Fact(name=name, subject=bounded(subject, 256), source=bounded(source, 256), unit=FACTS[name].unit)
        if isinstance(value, Absent):
            fact = msgspec.structs.replace(fact, absent=value.reason, detail=bounded(value.detail, 1024))
        else:
            fact = msgspec.structs.replace(fact, value=bounded(value, 1024) if isinstance(value, str) else value)
        self.facts.append(fact)

    def value(self, name: str) -> bool | Value | None:
        """Return the value of the machine's fact of that name, or None."""
        return next((fact.value for fact in self.facts if fact.name == name and not fact.subject), None)
