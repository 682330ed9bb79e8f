"""MIG devices and vGPUs of a scenario. All values of all devices differ."""

from tests.fakes.nvml.scenario import GPM_PERCENT, Device, Scenario

NO_INSTANCE = 2**32 - 1
SRIOV = 1
BYTES_PAST_32_BITS = 5 << 30


def cut_into_mig(scenario: Scenario, gpu: int, slots: tuple[int, ...] = tuple(range(7))) -> dict[int, Device]:
    """Put a GPU into MIG mode with a device in each of these slots, and return the devices by slot."""
    parent = scenario.devices[gpu]
    parent.enable_mig()
    parent.numbers["nvmlDeviceGetMaxMigDeviceCount"] = 7
    return {slot: add_mig(scenario, gpu, slot) for slot in slots}


def add_mig(scenario: Scenario, gpu: int, slot: int, *, life: int = 0) -> Device:
    """Add a MIG device. Another `life` is another device in the same slot with the same instance ids."""
    n = 10 * gpu + slot + 100 * life
    gi = 7 + slot
    total, reserved, used = (18 << 30) + n, (50 + n) << 20, (1 + slot) << 30
    device = Device(
        numbers={
            "nvmlDeviceGetGpuInstanceId": gi,
            "nvmlDeviceGetComputeInstanceId": slot % 2,
            "nvmlDeviceGetMemoryInfo_total": total,
            "nvmlDeviceGetMemoryInfo_reserved": reserved,
            "nvmlDeviceGetMemoryInfo_used": used,
            "nvmlDeviceGetMemoryInfo_free": total - reserved - used,
            "nvmlDeviceGetBAR1MemoryInfo_total": (36 << 30) + n,
            "nvmlDeviceGetBAR1MemoryInfo_used": (3 + n) << 21,
            "nvmlDeviceGetBAR1MemoryInfo_free": (36 << 30) + n - ((3 + n) << 21),
            "nvmlDeviceGetMemoryErrorCounter,1,0,7": 700 + n,
        },
        texts={
            "nvmlDeviceGetUUID": f"MIG-{gpu:08x}-{slot:04x}-4444-5555-{life:012x}",
            "nvmlDeviceGetName": f"NVIDIA H200 MIG 1g.18gb{'+me' if slot == 3 else ''}",
        },
        rows={
            "nvmlDeviceGetAttributes": [(16 + n, 1 + n, 31 + n, 46 + n, 61 + n, 76 + n, 91 + n, 106 + n, 18_000 + n)],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
            "nvmlDeviceGetMPSComputeRunningProcesses": [],
            "nvmlDeviceGetComputeRunningProcesses": [
                (5_000_000 + 10 * n + p, (1 + p) << 28, gi, slot % 2) for p in range(slot)
            ],
        },
    )
    parent = scenario.devices[gpu]
    parent.parts[f"{gpu}.{slot}"] = device
    placement = {"nvmlGpuInstanceGetInfo_start": slot, "nvmlGpuInstanceGetInfo_size": 121 + n}
    activity: dict[int, float | int] = {metric: metric + n / 8 for metric in GPM_PERCENT}
    parent.parts[f"{gpu}/gi{gi}"] = Device(numbers=dict(placement), gpm=activity)
    return device


def share_as_vgpus(scenario: Scenario, gpu: int, count: int = 16) -> dict[int, Device]:
    """Make a GPU the host of vGPUs, and return the instances by id."""
    host = scenario.devices[gpu]
    host.numbers |= {
        "nvmlDeviceGetVirtualizationMode": 3,
        "nvmlDeviceGetHostVgpuMode": SRIOV,
        "nvmlDeviceGetVgpuSchedulerState_policy": 2,
        "nvmlDeviceGetVgpuSchedulerState_arr": 2,
        "nvmlDeviceGetVgpuSchedulerState_slice": 2_000_000 + gpu,
        "nvmlDeviceGetVgpuSchedulerCapabilities_arr": 1,
        "nvmlDeviceGetVgpuHeterogeneousMode": gpu % 2,
        "nvmlDeviceGetVgpuUtilization_type": 1,
    }
    host.numbers |= {f"nvmlDeviceGetVgpuCapabilities,{bit}": bit % 2 for bit in range(12)}
    host.rows |= {"nvmlDeviceGetActiveVgpus": [], "nvmlDeviceGetVgpuUtilization": []}
    host.parts[f"type{1100 + gpu}"] = Device(
        numbers={"nvmlVgpuTypeGetFramebufferSize": (8 << 30) + gpu},
        texts={
            "nvmlVgpuTypeGetName": f"NVIDIA H200X-8C/{gpu}",
            "nvmlVgpuTypeGetClass": "Compute",
            "nvmlVgpuTypeGetLicense": f"NVIDIA-AI-Enterprise,9.{gpu}",
        },
    )
    return {number: add_vgpu(scenario, gpu, number) for number in range(3000 + 100 * gpu, 3000 + 100 * gpu + count)}


def add_vgpu(scenario: Scenario, gpu: int, number: int) -> Device:
    """Start a vGPU instance."""
    n = number % 100
    device = Device(
        numbers={
            "nvmlVgpuInstanceGetType": 1100 + gpu,
            "nvmlVgpuInstanceGetVmID_kind": 1,
            "nvmlVgpuInstanceGetFbUsage": BYTES_PAST_32_BITS + number,
            "nvmlVgpuInstanceGetLicenseInfo": n % 6,
            "nvmlVgpuInstanceGetFrameRateLimit": 60 + n,
            "nvmlVgpuInstanceGetEccMode": n % 2,
            "nvmlVgpuInstanceGetGpuInstanceId": NO_INSTANCE if n % 2 else n,
            "nvmlVgpuInstanceGetPlacementId": n,
            "nvmlVgpuInstanceGetAccountingMode": (n + 1) % 2,
        },
        texts={
            "nvmlVgpuInstanceGetUUID": f"{number:08x}-aaaa-bbbb-cccc-{gpu:012x}",
            "nvmlVgpuInstanceGetVmID": vm_of(number).upper(),
            "nvmlVgpuInstanceGetVmDriverVersion": f"580.{n}",
            "nvmlVgpuInstanceGetMdevUUID": None,
        },
        rows={
            "nvmlVgpuInstanceGetAccountingPids": [(100 + n, 1, 40), (200 + n, 0, 90), (300 + n, 1, 30 + n)],
            "expiry": [(2, 2027, 1 + n % 12, 1 + n, 16, 1, 44)],
        },
    )
    host = scenario.devices[gpu]
    host.parts[f"vgpu{number}"] = device
    host.rows["nvmlDeviceGetActiveVgpus"].append((number,))
    host.rows["nvmlDeviceGetVgpuUtilization"].append(use_of(number))
    return device


def use_of(number: int, at: int = 1_000) -> tuple[int, ...]:
    """Return a utilization sample of an instance, taken `at` microseconds ago; see `library/vgpu.c`."""
    n = number % 100
    return (at, number, n, 20 + n, 40 + n, 60 + n, 80 + n, n // 2)


def vm_of(number: int) -> str:
    """Return the UUID of the virtual machine of an instance."""
    return f"{number:08x}-1111-4222-8333-444455556666"


def stop_vgpu(scenario: Scenario, gpu: int, number: int, *, still_listed: bool = False) -> None:
    """End a vGPU instance. With `still_listed`, the driver still lists it."""
    host = scenario.devices[gpu]
    del host.parts[f"vgpu{number}"]
    if not still_listed:
        host.rows["nvmlDeviceGetActiveVgpus"].remove((number,))
