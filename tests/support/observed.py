"""A node as `gpufleet top` sees it: whole GPUs, MIG devices, vGPU instances, processes and holders."""

import datetime as dt

from gpufleet.model.absence import Reason
from gpufleet.model.holdings import (
    DeviceHolders,
    Holder,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    Owner,
    Share,
)
from gpufleet.model.machine import NVIDIA_VENDOR, Machine, PciFunction
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Aggregate, Device, Host, ProcessReport, Snapshot
from gpufleet.model.view import Side, ViewKind

AT = dt.datetime(2026, 1, 1, 12, 0, 5, tzinfo=dt.UTC)
GIB = 1 << 30
VM = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"
OTHER_VM = "77c546c0-c5a2-4093-bc1b-8051983e7a61"

ALICE = Holder(kind=HolderKind.JOB, id="4711", name="train", user="alice", account="physics")
SERVE = Holder(
    kind=HolderKind.POD, id="pod-1", name="serve-0", namespace="ml", owners=(Owner(kind="Deployment", name="serve"),)
)
BATCH = Holder(
    kind=HolderKind.POD, id="pod-2", name="batch-7", namespace="ml", owners=(Owner(kind="Job", name="batch"),)
)


def readings(**values: Value | Reason | None) -> dict[str, Reading]:
    """Return readings; a reason is an absence, and None leaves the reading out."""
    return {
        name: Reading(absent=value) if isinstance(value, Reason) else Reading(value=value)
        for name, value in values.items()
        if value is not None
    }


def held(*holders: Holder, share: Share = Share.EXCLUSIVE) -> DeviceHolders:
    return DeviceHolders(
        state=HolderState.HELD if holders else HolderState.FREE,
        holdings=tuple(
            Holding(view="", holder=one, share=share, since=1, methods=("kubelet",), verdict=HoldingVerdict.AGREED)
            for one in holders
        ),
    )


def process(pid: int, memory: int | None, name: str = "python", sm: float | None = None) -> ProcessReport:
    found = readings(memory_bytes=Reason.NOT_PERMITTED if memory is None else memory, sm_utilization_ratio=sm)
    return ProcessReport(pid=pid, kinds=("compute",), start_time=pid * 10, name=name, readings=found)


def gpu(
    number: int,
    found: dict[str, Reading],
    holders: DeviceHolders | None = None,
    processes: tuple[ProcessReport, ...] | None = None,
    name: str = "NVIDIA H200",
    dimensions: tuple[DimReading, ...] = (),
) -> Device:
    return Device(
        key=f"gpu/GPU-{number:08x}-0000",
        kind=ViewKind.GPU,
        side=Side.HOST,
        uuid=f"GPU-{number:08x}-0000",
        pci_address=f"0000:{number + 16:02x}:00.0",
        index=number,
        name=name,
        readings=found,
        dimensions=dimensions,
        holders=holders,
        processes=processes,
    )


def linked(active: int = 18, width: int = 16, **values: Value | Reason | None) -> dict[str, Reading]:
    """Return the readings of the links of a GPU with 18 NVLinks to NVSwitches; `values` replace some."""
    return readings(
        **{
            "gpu_pcie_link_generation": 5,
            "gpu_pcie_link_width": width,
            "gpu_pcie_link_generation_max": 5,
            "gpu_pcie_link_width_max": 16,
            "gpu_nvlinks": 18,
            "gpu_nvlinks_active": active,
            "gpu_nvswitch_links": active,
            "gpu_fabric_state": "completed",
            "gpu_fabric_health_status": "healthy",
            **values,
        }
    )


def nvlinks(*down: int, peers: int = 0) -> tuple[DimReading, ...]:
    """Return the state of each of 18 NVLinks, and the number of those that end at a GPU."""
    links = [DimReading(metric="gpu_nvlink_up", labels={"link": str(n)}, value=int(n not in down)) for n in range(18)]
    return (*links, DimReading(metric="gpu_nvlink_peers", labels={"peer": "gpu"}, value=peers))


def part(
    kind: ViewKind,
    number: int,
    parent: int,
    found: dict[str, Reading],
    holders: DeviceHolders | None = None,
    processes: tuple[ProcessReport, ...] | None = None,
) -> Device:
    """Return a MIG device or vGPU instance of a GPU."""
    name = {ViewKind.MIG: "NVIDIA H200 MIG 3g.71gb", ViewKind.VGPU: None}[kind]
    uuid = f"{'MIG-' if kind is ViewKind.MIG else ''}{number:08x}"
    return Device(
        key=f"{kind}/{uuid}",
        kind=kind,
        side=Side.HOST if kind is ViewKind.MIG else Side.VGPU_HOST,
        uuid=uuid,
        instance=f"{number}/0" if kind is ViewKind.MIG else str(number),
        parent=f"gpu/GPU-{parent:08x}-0000",
        name=name,
        readings=found,
        holders=holders,
        processes=processes,
    )


def h200(used: int, utilization: float | Reason, power: float, state: str = "ok") -> dict[str, Reading]:
    return readings(
        gpu_utilization_ratio=utilization,
        gpu_memory_used_bytes=used * GIB,
        gpu_memory_total_bytes=141 * GIB,
        gpu_temperature_celsius=40 + used // 5,
        gpu_power_watts=power,
        gpu_power_limit_watts=700.0,
        gpu_state=state,
    )


def devices() -> tuple[Device, ...]:
    """Return the devices in an order in which parts and GPUs are mixed."""
    vgpu: dict[str, Value] = {"gpu_memory_total_bytes": 24 * GIB, "vgpu_type": "NVIDIA L40S-24C"}
    return (
        part(
            ViewKind.VGPU,
            20,
            2,
            readings(**vgpu, gpu_utilization_ratio=Reason.NOT_SUPPORTED, vgpu_vm_id=OTHER_VM, vgpu_active=0),
        ),
        gpu(
            0,
            h200(120, 0.93, 612.0) | linked(active=16, gpu_fabric_clique="3"),
            held(ALICE),
            (process(4100, 80 * GIB, sm=0.9), process(4101, 38 * GIB, sm=0.03)),
            dimensions=nvlinks(3, 11),
        ),
        gpu(
            1,
            h200(60, Reason.NOT_IN_MIG_MODE, 300.0)
            | linked(width=8, gpu_nvlinks=Reason.NOT_SUPPORTED, gpu_nvlinks_active=None, gpu_nvswitch_links=None),
        ),
        part(
            ViewKind.MIG,
            2,
            1,
            readings(gpu_memory_used_bytes=50 * GIB, gpu_memory_total_bytes=70 * GIB, gpu_graphics_activity_ratio=0.5),
            held(SERVE, share=Share.MIG),
            (process(5200, 49 * GIB, "tritonserver"),),
        ),
        part(
            ViewKind.MIG,
            1,
            1,
            readings(gpu_memory_used_bytes=10 * GIB, gpu_memory_total_bytes=70 * GIB),
            held(SERVE, BATCH, share=Share.TIMESLICE),
            (process(5300, None), process(5301, 4 * GIB)),
        ),
        gpu(
            2,
            readings(
                gpu_state="ok",
                gpu_utilization_ratio=0.4,
                gpu_vgpu_host_mode="sriov",
                gpu_vgpu_scheduler_policy="fixed_share",
                gpu_vgpu_scheduler_arr_mode="enabled",
                gpu_vgpu_scheduler_arr_supported=1,
                gpu_vgpu_instances=2,
            ),
            name="NVIDIA L40S",
        ),
        part(
            ViewKind.VGPU,
            3,
            2,
            readings(**vgpu, gpu_utilization_ratio=0.38, gpu_memory_used_bytes=12 * GIB, vgpu_vm_id=VM, vgpu_active=1),
            held(Holder(kind=HolderKind.VM, id=VM, name="render"), share=Share.VGPU),
        ),
        gpu(3, readings(gpu_state="lost", gpu_utilization_ratio=Reason.GPU_LOST), held()),
    )


def host() -> Host:
    def dim(metric: str, value: Value, **labels: str) -> DimReading:
        return DimReading(metric=metric, labels=labels, value=value)

    return Host(
        readings=readings(
            host_cpu_utilization_ratio=0.37,
            host_cpus=96,
            host_load_1m=35.2,
            host_memory_total_bytes=1024 * GIB,
            host_memory_available_bytes=768 * GIB,
            nvidia_driver_version="580.95.05",
            nvidia_cuda_version="13.0",
        ),
        dimensions=(
            dim("host_pressure_ratio", 0.25, resource="cpu", share="some", window="10s"),
            dim("host_pressure_ratio", 0.0, resource="memory", share="some", window="10s"),
            dim("host_pressure_ratio", 0.9, resource="memory", share="some", window="60s"),
            dim("host_network_receive_bytes_per_second", 3_000_000.0, **{"interface": "eth0", "class": "physical"}),
            dim("host_network_transmit_bytes_per_second", 1000.0, **{"interface": "eth0", "class": "physical"}),
            dim("host_network_receive_bytes_per_second", 9e9, **{"interface": "lo", "class": "loopback"}),
            dim("host_filesystem_size_bytes", 100 * GIB, mountpoint="/", device="/dev/sda", fstype="ext4"),
            dim("host_filesystem_available_bytes", 40 * GIB, mountpoint="/", device="/dev/sda", fstype="ext4"),
            dim("host_filesystem_size_bytes", 900 * GIB, mountpoint="/scratch", device="/dev/sdb", fstype="xfs"),
            dim("host_filesystem_available_bytes", 9 * GIB, mountpoint="/scratch", device="/dev/sdb", fstype="xfs"),
        ),
        pci=tuple(
            PciFunction(
                address=f"0000:{number + 16:02x}:00.0",
                vendor=NVIDIA_VENDOR,
                device=0x2335,
                class_code=0x030200,
                numa_node=number // 2 if number < 3 else None,
            )
            for number in range(4)
        ),
    )


def node_snapshot(name: str = "gpu-node-17", found: tuple[Device, ...] | None = None) -> Snapshot:
    """Return the snapshot of the node; `found` replaces its devices."""
    return Snapshot(
        schema="gpufleet.snapshot/1",
        catalogue=1,
        version="0.1.0",
        node=Machine(name=name),
        measured_at=AT,
        devices=devices() if found is None else found,
        host=host(),
        guests=(),
        readers=(),
        capabilities={},
        aggregate=Aggregate(coverage="", reporting=0, devices=0, metrics={}),
    )
