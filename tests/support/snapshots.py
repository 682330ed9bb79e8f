"""Snapshot with every kind of reading, the same on every day."""

import datetime as dt

import msgspec

from gpufleet.agent.collect.assemble import assemble
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
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
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import DimValue, Reading
from gpufleet.model.snapshot import AccessPathReport, AccessPathState, Device, Guest, Host, Snapshot
from gpufleet.model.view import Side, View, ViewKind
from tests.support.passes import World, function, gpu

ALL = (Lane.STATIC, Lane.SLOW, Lane.FAST)


EXAMPLE_GUEST = "6f1ed002-ab5b-4f4f-8f2c-0a2b3c4d5e6f"


def example_guest() -> Guest:
    """Return a virtual machine with a broken driver; some of its access paths answered before, others never did."""
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    later = at + dt.timedelta(seconds=40)
    seen = at.timestamp()

    def reading(value: float) -> Reading:
        return Reading(value=value, measured_at=at, reader="guests")

    return Guest(
        machine=Machine(name="ml/train-0", kind=MachineKind.GUEST, system_uuid=EXAMPLE_GUEST),
        namespace="ml",
        name="train-0",
        vm_uuid=EXAMPLE_GUEST,
        allocation="slice-1",
        state="gpu_lost",
        detail="nvidia-smi, ssh to 10.0.3.7:22: GPU is lost",
        found_by="folder: train-0.toml",
        access_paths=(
            AccessPathReport(
                name="dcgm at vsock://42:5555",
                reads="gpus",
                state=AccessPathState.FAILS,
                last_attempt=at,
                last_failure=at,
                reason=Reason.GUEST_UNREACHABLE,
                last_error="vsock://42:5555: Connection reset by peer",
            ),
            AccessPathReport(
                name="nvidia-smi, ssh to 10.0.3.7:22",
                reads="gpus",
                state=AccessPathState.FAILS,
                last_attempt=later,
                last_success=at,
                last_failure=later,
                reason=Reason.GPU_LOST,
                last_error="GPU is lost",
            ),
            AccessPathReport(name="metrics at vsock://42:9400", reads="gpus"),
            AccessPathReport(
                name="ssh to 10.0.3.7:22", reads="host", state=AccessPathState.ANSWERS, last_success=later
            ),
        ),
        devices=(
            Device(
                key="gpu/GPU-0000abcd",
                kind=ViewKind.GPU,
                side=Side.GUEST,
                uuid="GPU-0000abcd-0000",
                readings={"gpu_power_watts": Reading(absent=Reason.STALE, reader="nvidia_smi")},
            ),
        ),
        host=Host(
            readings={
                "guest_expected_gpus": reading(2),
                "guest_gpus": Reading(absent=Reason.NO_DATA, detail="its GPUs are not read"),
                "guest_seen_timestamp_seconds": reading(seen),
                "guest_channel_open_timestamp_seconds": reading(seen + 12),
                "guest_first_answer_timestamp_seconds": reading(seen + 12.5),
                "guest_driver_ready_timestamp_seconds": Reading(absent=Reason.NO_DATA, detail="not yet"),
            }
        ),
    )


def example_snapshot() -> Snapshot:
    """Return a snapshot with odd names and large counters.

    It has two GPUs, one of them hung, a MIG device without UUID, and one GPU passed through to a guest.
    """
    world = World({"host": ALL, "nvml": ALL})
    mig = View(kind=ViewKind.MIG, side=Side.HOST, instance="1/0", parent=gpu(0).key, pci_address=gpu(0).pci_address)
    world.passed(
        "host",
        Lane.STATIC,
        world.sample(
            "host",
            Lane.STATIC,
            None,
            {"host_hostname": 'no"de\\17\n', "host_system_uuid": Absent(Reason.NOT_PERMITTED, "needs root")},
        ),
        machine=Machine(name='no"de\\17\n', machine_id="a" * 32),
    )
    slow = (
        DimValue("host_filesystem_size_bytes", ("/mnt/a;b,c", "/dev/sda1", "ext4"), 2**60 + 1),
        DimValue("host_filesystem_available_bytes", ("/mnt/a;b,c", "/dev/sda1", "ext4"), 2**59),
        DimValue("host_service_state", ("nvidia-fabricmanager",), "failed"),
    )
    inventory = (function(0, "nvidia"), function(1, "nvidia"), function(9, "vfio-pci"))
    world.passed("host", Lane.SLOW, world.sample("host", Lane.SLOW, None, {}, slow), inventory=inventory)
    fast = (
        DimValue("host_network_receive_bytes_total", ("eth0", "physical"), 2**63 - 1),
        DimValue("host_network_speed_bytes_per_second", ("lo", "loopback"), Absent(Reason.NO_DATA, "no link")),
        DimValue("host_pressure_ratio", ("cpu", "some", "10s"), 0.25),
    )
    host = {"host_cpu_utilization_ratio": 0.5, "host_load_1m": 1e-05, "host_cpus": 2}
    memory = {"host_memory_total_bytes": 2**34, "host_memory_available_bytes": 2**33}
    world.passed("host", Lane.FAST, world.sample("host", Lane.FAST, None, {**host, **memory}, fast))
    names = [
        world.sample("nvml", Lane.STATIC, gpu(0), {"gpu_name": "NVIDIA H200", "gpu_serial": "165"}),
        world.sample(
            "nvml", Lane.STATIC, gpu(1), {"gpu_name": "NVIDIA H200", "gpu_serial": Absent(Reason.TIMEOUT, "x")}
        ),
        world.sample("nvml", Lane.STATIC, None, {"nvidia_driver_version": "580.95.05"}),
    ]
    world.passed("nvml", Lane.STATIC, *names)
    world.passed("nvml", Lane.SLOW, world.sample("nvml", Lane.SLOW, gpu(0), {"gpu_recovery_action": "none"}))
    readings: dict[str, int | float | str] = {
        "gpu_utilization_ratio": 0.0,
        "gpu_memory_used_bytes": 2**30,
        "gpu_memory_total_bytes": 2**37,
        "gpu_power_watts": 312.5,
        "gpu_energy_joules_total": 1234567.25,
        "gpu_state": "ok",
    }
    active = (
        DimValue("gpu_clock_event_active", ("sw_power_cap",), 1),
        DimValue("gpu_clock_event_active", ("hw_slowdown",), Absent(Reason.NOT_SUPPORTED, "n")),
    )
    hung = dict.fromkeys(readings, Absent(Reason.TIMEOUT, "nvmlDeviceGetTemperatureV"))
    world.passed(
        "nvml",
        Lane.FAST,
        world.sample("nvml", Lane.FAST, gpu(0), readings, active),
        world.sample("nvml", Lane.FAST, gpu(1), {**hung, "gpu_state": "hung"}),
        world.sample("nvml", Lane.FAST, mig, {"gpu_memory_used_bytes": 5}),
        errors=("gpu/GPU-00000001-0000: hung in nvmlDeviceGetTemperatureV",),
    )
    world.clock.advance(1)
    return assemble(
        world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={"push": "available"}
    )


def held_snapshot() -> Snapshot:
    """Return the example with holders: a busy pod with a hostile name, two sharers, and a launcher pod of a VM."""
    snapshot = example_snapshot()
    pods = [
        Holder(kind=HolderKind.POD, id=f"0000000{number}-uid", name=name, namespace="ml", owners=(OWNER,))
        for number, name in enumerate(('tr"ain\\0', "infer-a", "infer-b", "virt-launcher-vm-x2x4z"))
    ]
    vm = Holder(kind=HolderKind.VM, id=EXAMPLE_GUEST, name="vm")
    holders = {
        ViewKind.MIG: [holding(pods[1], Share.TIMESLICE), holding(pods[2], Share.TIMESLICE)],
        Side.PCI_ONLY: [holding(pods[3], parent=vm)],
    }

    def held(device: Device) -> Device:
        own = holders.get(device.kind) or holders.get(device.side) or [holding(pods[0])]
        return msgspec.structs.replace(device, holders=DeviceHolders(state=HolderState.HELD, holdings=tuple(own)))

    return msgspec.structs.replace(snapshot, devices=tuple(map(held, snapshot.devices)))


OWNER = Owner(kind="Job", name="train", uid="00000009-uid", api_version="batch/v1")


def holding(holder: Holder, share: Share = Share.EXCLUSIVE, *, parent: Holder | None = None) -> Holding:
    """Return a holding of any view."""
    return Holding(
        view="gpu/any",
        holder=holder,
        parent=parent,
        container="main",
        share=share,
        since=1,
        methods=("kubelet", "process"),
        verdict=HoldingVerdict.AGREED,
    )
