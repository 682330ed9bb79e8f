"""vGPUs on hosts and in guests: values, names of states and absent values."""

import asyncio
import datetime as dt
import time

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.catalogue.instances import ARR_MODES, LICENSE_STATES, SCHEDULER_POLICIES
from gpufleet.model.view import Side, ViewKind
from gpufleet.readers.nvml.calls.vgpu import newest_samples
from gpufleet.readers.nvml.context import DRIVER_NOT_LOADED
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import add_vgpu, cut_into_mig, share_as_vgpus, stop_vgpu, use_of, vm_of
from tests.fakes.nvml.scenario import DOUBLE, SINT, UINT, ULONGLONG, USHORT, Device, Scenario
from tests.readers.nvml.rig import Start, device, dim, parts
from tests.support.waiting import wait_until_async

I = "nvmlVgpuInstanceGet"  # noqa: E741 - the prefix of every key
USE = "nvmlDeviceGetVgpuUtilization"


@pytest.fixture
def instances(fake: FakeNvml) -> dict[int, Device]:
    """Make GPU 2 the host of four vGPUs and return them by instance id."""
    found = share_as_vgpus(fake.scenario, 2, 4)
    fake.apply()
    return found


async def test_every_fast_reading_of_every_instance(fake: FakeNvml, start: Start) -> None:
    shared = {gpu: share_as_vgpus(fake.scenario, gpu) for gpu in (3, 7)}
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert not round_.errors
    for gpu, found in shared.items():
        samples = parts(round_, gpu)
        assert len(samples) == 16
        assert device(round_, gpu).values["gpu_vgpu_instances"] == 16
        for number, vgpu in found.items():
            sample = samples[vgpu.texts[f"{I}UUID"] or ""]
            _, _, sm, memory, encoder, decoder, jpeg, ofa = use_of(number)
            assert sample.view is not None
            assert (sample.view.kind, sample.view.side, sample.view.instance) == (
                ViewKind.VGPU,
                Side.VGPU_HOST,
                str(number),
            )
            assert sample.values == {
                "vgpu_vm_id": vm_of(number),
                "vgpu_vm_id_kind": "uuid",
                "vgpu_type": f"NVIDIA H200X-8C/{gpu}",
                "gpu_memory_total_bytes": (8 << 30) + gpu,
                "gpu_memory_used_bytes": vgpu.numbers[f"{I}FbUsage"],
                "gpu_utilization_ratio": sm / 100,
                "gpu_memory_activity_ratio": memory / 100,
                "gpu_encoder_utilization_ratio": encoder / 100,
                "gpu_decoder_utilization_ratio": decoder / 100,
                "gpu_jpeg_utilization_ratio": jpeg / 100,
                "gpu_ofa_utilization_ratio": ofa / 100,
            }


async def test_every_slow_reading_of_every_instance(fake: FakeNvml, start: Start, instances: dict[int, Device]) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    for number, vgpu in instances.items():
        n = number % 100
        odd = bool(n % 2)
        expiry = dt.datetime(2027, 1 + n, 1 + n, 16, 1, 44, tzinfo=dt.UTC)
        off = Absent(Reason.NO_DATA, f"{I}AccountingMode")
        assert parts(round_, 2)[vgpu.texts[f"{I}UUID"] or ""].values == {
            "vgpu_class": "Compute",
            "vgpu_type_license": "NVIDIA-AI-Enterprise,9.2",
            "vgpu_guest_driver_version": f"580.{n}",
            "vgpu_gpu_instance": Absent(Reason.NOT_SUPPORTED, f"{I}GpuInstanceId") if odd else str(n),
            "vgpu_mdev_uuid": Absent(Reason.NOT_SUPPORTED, f"{I}MdevUUID"),
            "vgpu_ecc_mode": "enabled" if odd else "disabled",
            "vgpu_frame_rate_limit_hertz": 60 + n,
            "vgpu_placement_id": n,
            "vgpu_accounting_mode": "disabled" if odd else "enabled",
            "vgpu_accounting_processes": off if odd else 2,
            "vgpu_active": off if odd else 1,
            "vgpu_accounting_utilization_ratio": off if odd else (70 + n) / 100,  # sum of the two running processes
            "vgpu_license_state": LICENSE_STATES[n],
            "vgpu_license_expiry_timestamp_seconds": int(expiry.timestamp()),
        }


async def test_vgpu_host_readings(fake: FakeNvml, start: Start, instances: dict[int, Device]) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    values = device(round_, 2).values
    assert {name: value for name, value in values.items() if "vgpu" in name} == {
        "gpu_vgpu_host_mode": "sriov",
        "gpu_vgpu_scheduler_policy": "equal_share",
        "gpu_vgpu_scheduler_arr_mode": "enabled",
        "gpu_vgpu_scheduler_arr_supported": 1,
        "gpu_vgpu_scheduler_time_slice_seconds": 0.002000002,
        "gpu_vgpu_heterogeneous_mode": "disabled",
    }
    capabilities = dim(device(round_, 2), "gpu_vgpu_capability")
    assert len(capabilities) == 10
    assert (capabilities["migration_streaming"], capabilities["warm_update"]) == (1, 0)


async def test_every_metric_of_an_instance_is_read_on_its_lane(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    reader = start(fake)
    uuid = instances[3200].texts[f"{I}UUID"] or ""
    for lane in (Lane.FAST, Lane.SLOW):
        rows = {m.name for m in CATALOGUE.values() if Subject.VGPU in m.subjects and m.lane is lane}
        assert set(parts(await reader.read(lane), 2)[uuid].values) == rows
    assert parts(await reader.read(Lane.STATIC), 2) == {}


@pytest.mark.parametrize(("policy", "arr"), [(0, 0), (1, 1), (3, 2), (9, 9)])
async def test_policy_and_adaptive_round_robin_have_names(
    fake: FakeNvml, start: Start, instances: dict[int, Device], policy: int, arr: int
) -> None:
    fake.scenario.devices[2].numbers |= {
        "nvmlDeviceGetVgpuSchedulerState_policy": policy,
        "nvmlDeviceGetVgpuSchedulerState_arr": arr,
    }
    fake.apply()
    values = device(await start(fake).read(Lane.SLOW), 2).values
    expected = (SCHEDULER_POLICIES[policy], ARR_MODES[arr]) if policy < 4 else ("unknown", "unknown")
    assert (values["gpu_vgpu_scheduler_policy"], values["gpu_vgpu_scheduler_arr_mode"]) == expected
    assert values["gpu_vgpu_scheduler_time_slice_seconds"] == 0.002000002


async def test_unreadable_scheduler_is_absent(fake: FakeNvml, start: Start, instances: dict[int, Device]) -> None:
    fake.scenario.fault("nvmlDeviceGetVgpuSchedulerState", gpu=2, code=999)
    fake.apply()
    values = device(await start(fake).read(Lane.SLOW), 2).values
    why = Absent(Reason.DRIVER_ERROR, "nvmlDeviceGetVgpuSchedulerState: UNKNOWN")
    assert values["gpu_vgpu_scheduler_policy"] == values["gpu_vgpu_scheduler_arr_mode"] == why


# --- utilization ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inclusive", [None, 1])
async def test_without_a_new_sample_there_is_no_value_and_no_error(
    fake: FakeNvml, start: Start, inclusive: int | None
) -> None:
    (vgpu,) = share_as_vgpus(fake.scenario, 2, 1).values()
    at, host = time.time_ns() // 1000 - 2_000_000, fake.scenario.devices[2]
    host.numbers[f"{USE}_inclusive"] = inclusive  # whether the driver includes the sample of that instant
    host.rows[USE] = [use_of(3200, at)]
    fake.apply()
    reader, uuid = start(fake), vgpu.texts[f"{I}UUID"] or ""
    assert parts(await reader.read(Lane.FAST), 2)[uuid].values["gpu_memory_activity_ratio"] == 0.2
    again = await reader.read(Lane.FAST)
    assert parts(again, 2)[uuid].values["gpu_memory_activity_ratio"] == Absent(
        Reason.NO_DATA, "nvmlDeviceGetVgpuInstancesUtilizationInfo"
    )
    assert parts(again, 2)[uuid].values["gpu_memory_used_bytes"] == vgpu.numbers[f"{I}FbUsage"]
    assert not again.errors
    assert fake.calls()[f"{I}UUID", 3200] == 2  # no extra queries
    host.rows[USE].append((at + 1_000_000, 3200, 7, 8, 9, 10, 11, 12))
    fake.apply()
    assert parts(await reader.read(Lane.FAST), 2)[uuid].values["gpu_memory_activity_ratio"] == 0.08


async def test_sample_is_not_repeated_after_reattaching(fake: FakeNvml, start: Start) -> None:
    (vgpu,) = share_as_vgpus(fake.scenario, 2, 1).values()
    fake.scenario.devices[2].rows[USE] = [use_of(3200, time.time_ns() // 1000)]
    fake.apply()
    reader, uuid = start(fake), vgpu.texts[f"{I}UUID"] or ""
    assert parts(await reader.read(Lane.FAST), 2)[uuid].values["gpu_memory_activity_ratio"] == 0.2
    await reader.read(Lane.STATIC)
    value = parts(await reader.read(Lane.FAST), 2)[uuid].values["gpu_memory_activity_ratio"]
    assert isinstance(value, Absent)
    assert value.reason is Reason.NO_DATA


async def test_samples_from_before_a_clock_step_are_dropped(fake: FakeNvml, start: Start) -> None:
    (vgpu,) = share_as_vgpus(fake.scenario, 2, 1).values()
    host, ahead = fake.scenario.devices[2], 4_000_000_000_000_000
    host.rows[USE] = [(ahead, 3200, 90, 91, 92, 93, 94, 95)]
    fake.apply()
    reader, uuid = start(fake), vgpu.texts[f"{I}UUID"] or ""
    assert isinstance(parts(await reader.read(Lane.FAST), 2)[uuid].values["gpu_memory_activity_ratio"], Absent)
    host.rows[USE].append(use_of(3200))
    fake.apply()
    for _ in range(2):
        assert parts(await reader.read(Lane.FAST), 2)[uuid].values["gpu_memory_activity_ratio"] == 0.2


async def test_old_instance_samples_are_not_current_at_the_first_pass(fake: FakeNvml, start: Start) -> None:
    (vgpu,) = share_as_vgpus(fake.scenario, 2, 1).values()
    fake.scenario.devices[2].rows[USE] = [use_of(3200, 60_000_000)]
    fake.apply()
    value = parts(await start(fake).read(Lane.FAST), 2)[vgpu.texts[f"{I}UUID"] or ""].values["gpu_utilization_ratio"]
    assert isinstance(value, Absent)
    assert value.reason is Reason.NO_DATA


async def test_newest_of_many_samples_counts(fake: FakeNvml, start: Start) -> None:
    """More samples than the initial buffer, the newest in the middle, and one instance with only an old sample."""
    shared = share_as_vgpus(fake.scenario, 2, 2)
    at = time.time_ns() // 1000 - 10_000
    rows: list[tuple[int, ...]] = [(at + i, 3200, i % 90, 0, 0, 0, 0, 0) for i in range(1200)]
    rows.insert(300, (at + 5000, 3200, 99, 0, 0, 0, 0, 0))
    rows.append((at - 6_000_000, 3201, 50, 0, 0, 0, 0, 0))
    fake.scenario.devices[2].rows[USE] = rows
    fake.apply()
    found = parts(await start(fake).read(Lane.FAST), 2)
    assert found[shared[3200].texts[f"{I}UUID"] or ""].values["gpu_utilization_ratio"] == 0.99
    old = found[shared[3201].texts[f"{I}UUID"] or ""].values["gpu_utilization_ratio"]
    assert isinstance(old, Absent)
    assert old.reason is Reason.NO_DATA


def test_newest_sample_of_each_counts_unless_outdated() -> None:
    samples = [(1, 10, [1]), (1, 30, [3]), (1, 20, [2]), (2, 29, [4]), (3, 30 - 5_000_001, [5])]
    assert newest_samples(samples) == {1: (30, [3]), 2: (29, [4])}  # type: ignore[arg-type]
    assert newest_samples([]) == {}


@pytest.mark.parametrize("kind", [DOUBLE, UINT, ULONGLONG, SINT, USHORT])
@pytest.mark.parametrize("branch", [535, 610])
async def test_utilization_samples_are_read_by_their_type(
    tmp_path_factory: pytest.TempPathFactory, start: Start, kind: int, branch: int
) -> None:
    scenario = Scenario.healthy(1)
    (vgpu,) = share_as_vgpus(scenario, 0, 1).values()
    scenario.devices[0].numbers[f"{USE}_type"] = kind
    scenario.devices[0].rows[USE] = [(1_000, 3000, *use_of(3042)[2:])]
    fake = FakeNvml(tmp_path_factory.mktemp("typed"), scenario, branch=branch)
    values = parts(await start(fake).read(Lane.FAST), 0)[vgpu.texts[f"{I}UUID"] or ""].values
    assert values["gpu_utilization_ratio"] == 0.42
    assert values["gpu_decoder_utilization_ratio"] == Absent(Reason.INVALID_VALUE, ANSWERED[branch])  # 102 per cent
    jpeg = values["gpu_jpeg_utilization_ratio"]
    if branch == 535:  # the older call has no such engines
        assert isinstance(jpeg, Absent)
        assert jpeg.reason is Reason.NOT_REPORTED
    else:
        assert jpeg == Absent(Reason.INVALID_VALUE, ANSWERED[branch])


ANSWERED = {535: USE, 610: "nvmlDeviceGetVgpuInstancesUtilizationInfo"}


async def test_unsupported_utilization_of_mig_backed_instances(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    fake.scenario.devices[2].numbers[f"{USE}_type"] = None
    fake.apply()
    reader = start(fake)
    for _ in range(2):
        values = parts(await reader.read(Lane.FAST), 2)[instances[3200].texts[f"{I}UUID"] or ""].values
        assert values["gpu_utilization_ratio"] == Absent(Reason.NOT_SUPPORTED, USE)
        assert values["gpu_memory_used_bytes"] == instances[3200].numbers[f"{I}FbUsage"]
    assert fake.calls()[USE, 2] == 1


async def test_utilization_is_queried_once_per_gpu_and_pass(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    reader = start(fake)
    for _ in range(3):
        await reader.read(Lane.FAST)
    assert fake.calls()["nvmlDeviceGetVgpuInstancesUtilizationInfo", 2] == 3
    assert fake.calls()["nvmlVgpuTypeGetName", 1102] == 1


# --- starting and ending ---------------------------------------------------------------------------------------


async def test_instance_that_ends_during_a_pass_affects_no_other(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    stop_vgpu(fake.scenario, 2, 3201, still_listed=True)
    fake.apply()
    for lane in (Lane.FAST, Lane.SLOW):
        round_ = await start(fake).read(lane)
        assert len(parts(round_, 2)) == 3
        assert not round_.errors
    assert device(await start(fake).read(Lane.FAST), 2).values["gpu_vgpu_instances"] == 3


async def test_failing_instance_call_does_not_remove_the_instance(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    fake.scenario.fault(f"{I}FbUsage", gpu=3201, code=6)
    fake.scenario.fault(f"{I}FbUsage", gpu=3203, code=2)
    fake.apply()
    found = parts(await start(fake).read(Lane.FAST), 2)
    assert len(found) == 4  # all present: one failing call does not end an instance
    assert found[instances[3201].texts[f"{I}UUID"] or ""].values["gpu_memory_used_bytes"] == Absent(
        Reason.NO_DATA, f"{I}FbUsage"
    )


async def test_instance_that_ends_while_queried_is_left_out(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    fake.scenario.hang(f"{I}EccMode", gpu=3201)
    fake.apply()
    reading = asyncio.create_task(start(fake).read(Lane.SLOW))

    async def is_queried() -> bool:
        return fake.calls()[f"{I}EccMode", 3201] == 1

    await wait_until_async(is_queried, what="the instance to be reading about")
    stop_vgpu(fake.scenario, 2, 3201)
    fake.scenario.faults.clear()
    fake.apply()
    round_ = await reading
    assert set(parts(round_, 2)) == {vgpu.texts[f"{I}UUID"] for number, vgpu in instances.items() if number != 3201}
    assert not round_.errors


async def test_started_instance_appears_in_the_next_pass(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    reader = start(fake)
    assert len(parts(await reader.read(Lane.FAST), 2)) == 4
    vgpu = add_vgpu(fake.scenario, 2, 3277)
    fake.apply()
    assert vgpu.texts[f"{I}UUID"] in parts(await reader.read(Lane.FAST), 2)
    for number in (*instances, 3277):
        stop_vgpu(fake.scenario, 2, number)
    fake.scenario.devices[2].rows[USE].clear()
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    assert parts(round_, 2) == {}
    assert device(round_, 2).values["gpu_vgpu_instances"] == 0
    assert not round_.errors


async def test_instances_beyond_the_limit_are_counted(fake: FakeNvml, start: Start) -> None:
    share_as_vgpus(fake.scenario, 2, 0)
    for number in range(1, 301):
        add_vgpu(fake.scenario, 2, number)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert len(parts(round_, 2)) == 256
    assert device(round_, 2).values["gpu_vgpu_instances"] == 300
    (error,) = round_.errors
    assert "300" in error
    assert "256" in error


async def test_unreadable_instance_list_makes_known_instances_absent(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    reader = start(fake)
    before = parts(await reader.read(Lane.FAST), 2)
    fake.scenario.fault("nvmlDeviceGetActiveVgpus", gpu=2, code=999)
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    after = parts(round_, 2)
    assert set(after) == set(before)
    assert {value for sample in after.values() for value in sample.values.values()} == {
        Absent(Reason.DRIVER_ERROR, "nvmlDeviceGetActiveVgpus: UNKNOWN")
    }
    assert device(round_, 2).values["gpu_state"] == "ok"
    assert len(round_.errors) == 1


async def test_instance_without_uuid_is_left_out(fake: FakeNvml, start: Start, instances: dict[int, Device]) -> None:
    fake.scenario.fault(f"{I}UUID", gpu=3203, code=999)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert len(parts(round_, 2)) == 3
    (error,) = round_.errors
    assert "3203" in error


async def test_unnamed_instance_is_kept_and_an_ended_one_is_gone(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    reader = start(fake)
    before = parts(await reader.read(Lane.FAST), 2)
    named = {int(sample.view.instance or 0): uuid for uuid, sample in before.items() if sample.view is not None}
    unnamed, ended, *others = sorted(instances)
    stop_vgpu(fake.scenario, 2, ended)
    fake.scenario.fault(f"{I}UUID", gpu=unnamed, code=10)
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    after = parts(round_, 2)
    assert set(after) == {named[unnamed], *(named[number] for number in others)}
    assert set(after[named[unnamed]].values.values()) == {Absent(Reason.TIMEOUT, "its UUID")}
    assert device(round_, 2).values["gpu_vgpu_instances"] == len(others) + 1


@pytest.mark.parametrize("gpu", [2, 3])
async def test_uuid_shared_by_two_instances_keeps_both(
    fake: FakeNvml, start: Start, instances: dict[int, Device], gpu: int
) -> None:
    """Happens after a virtual machine is cloned with its identity. Neither instance may hide the other."""
    first = instances[3200]
    if gpu != 2:
        share_as_vgpus(fake.scenario, gpu, 0)
    second = add_vgpu(fake.scenario, gpu, 3999)
    second.texts[f"{I}UUID"] = first.texts[f"{I}UUID"]
    fake.apply()
    reader = start(fake)
    for lane in (Lane.FAST, Lane.SLOW, Lane.FAST):
        round_ = await reader.read(lane)
        found = [one.view for one in round_.samples if one.view is not None and one.view.parent]
        assert len({view.key for view in found}) == len(found) == len(instances) + 1
        shared = {view.instance: view for view in found if view.uuid is None}
        address = {number: device(round_, at).view for number, at in (("3200", 2), ("3999", gpu))}
        assert {name: view.parent for name, view in shared.items()} == {
            f"{number}@{view.pci_address}": view.key for number, view in address.items() if view is not None
        }
        error = f"several vGPU instances report the UUID {first.texts[f'{I}UUID']}: it identifies none of them"
        assert round_.errors == (error,)
    used = {view.key: one.values["gpu_memory_used_bytes"] for one in round_.samples if (view := one.view) is not None}
    assert {used[view.key] for view in shared.values()} == {vgpu.numbers[f"{I}FbUsage"] for vgpu in (first, second)}


async def test_vgpus_on_mig_are_reported_beside_mig_devices(fake: FakeNvml, start: Start) -> None:
    (cut,) = cut_into_mig(fake.scenario, 2, (4,)).values()
    (vgpu,) = share_as_vgpus(fake.scenario, 2, 1).values()
    vgpu.numbers[f"{I}GpuInstanceId"] = 11
    fake.apply()
    reader = start(fake)
    fast, slow = await reader.read(Lane.FAST), await reader.read(Lane.SLOW)
    uuid = vgpu.texts[f"{I}UUID"] or ""
    assert set(parts(fast, 2)) == {cut.uuid, uuid}
    assert parts(slow, 2)[uuid].values["vgpu_gpu_instance"] == parts(fast, 2)[cut.uuid].values["mig_gpu_instance"]
    assert parts(fast, 2)[uuid].values["gpu_memory_activity_ratio"] == 0.2
    assert device(fast, 2).values["gpu_memory_activity_ratio"] == Absent(Reason.NOT_IN_MIG_MODE)


async def test_bare_metal_host_has_no_vgpu_readings_or_queries(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    for lane in reader.lanes:
        for sample in (await reader.read(lane)).samples:
            names = [*sample.values, *(value.metric for value in sample.dims)]
            assert not [name for name in names if "vgpu" in name]
    reading = {name for name, _ in fake.calls() if "Vgpu" in name or "Grid" in name}
    assert reading == {"nvmlDeviceGetHostVgpuMode"}
    assert fake.calls()["nvmlDeviceGetHostVgpuMode", 0] == 1


async def test_vgpu_host_is_recognised_by_its_vgpu_mode(fake: FakeNvml, start: Start) -> None:
    share_as_vgpus(fake.scenario, 5, 2)
    fake.scenario.devices[5].numbers["nvmlDeviceGetVirtualizationMode"] = 0
    fake.apply()
    assert len(parts(await start(fake).read(Lane.FAST), 5)) == 2


@pytest.mark.parametrize("version", ["Not Available", "N/A", ""])
async def test_guest_without_driver_has_no_version(
    fake: FakeNvml, start: Start, instances: dict[int, Device], version: str
) -> None:
    instances[3200].texts[f"{I}VmDriverVersion"] = version or " "
    fake.apply()
    values = parts(await start(fake).read(Lane.SLOW), 2)[instances[3200].texts[f"{I}UUID"] or ""].values
    assert values["vgpu_guest_driver_version"] == Absent(Reason.NO_DATA, f"{I}VmDriverVersion")


async def test_guest_without_driver_does_not_hide_its_gpu(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    instances[3201].codes |= {f"{I}LicenseInfo": DRIVER_NOT_LOADED, f"{I}AccountingMode": DRIVER_NOT_LOADED}
    fake.apply()
    reader = start(fake)
    round_ = await reader.read(Lane.SLOW)
    found = parts(round_, 2)
    values = found[instances[3201].texts[f"{I}UUID"] or ""].values
    for metric in ("vgpu_license_state", "vgpu_license_expiry_timestamp_seconds"):
        assert values[metric] == Absent(Reason.NO_DATA, f"{I}LicenseInfo_v2")
    for metric in ("vgpu_accounting_mode", "vgpu_accounting_processes", "vgpu_active"):
        assert values[metric] == Absent(Reason.NO_DATA, f"{I}AccountingMode")
    assert values["vgpu_placement_id"] == instances[3201].numbers[f"{I}PlacementId"]
    assert found[instances[3202].texts[f"{I}UUID"] or ""].values["vgpu_license_state"] == "unlicensed_unrestricted"
    assert device(round_, 2).values["gpu_vgpu_host_mode"] == "sriov"
    assert not round_.errors
    assert not round_.events
    instances[3201].codes.clear()
    fake.apply()
    values = parts(await reader.read(Lane.SLOW), 2)[instances[3201].texts[f"{I}UUID"] or ""].values
    assert (values["vgpu_license_state"], values["vgpu_accounting_mode"]) == ("uninitialized", "disabled")


async def test_hypervisor_domain_id_is_kept_unchanged(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    instances[3200].numbers[f"{I}VmID_kind"] = 0
    instances[3200].texts[f"{I}VmID"] = "17"
    fake.apply()
    values = parts(await start(fake).read(Lane.FAST), 2)[instances[3200].texts[f"{I}UUID"] or ""].values
    assert (values["vgpu_vm_id"], values["vgpu_vm_id_kind"]) == ("17", "domain_id")


async def test_virtual_machine_without_id_has_no_kind_of_it(
    fake: FakeNvml, start: Start, instances: dict[int, Device]
) -> None:
    instances[3202].texts[f"{I}VmID"] = ""
    fake.apply()
    done = await start(fake).read(Lane.FAST)
    values = parts(done, 2)[instances[3202].texts[f"{I}UUID"] or ""].values
    assert values["vgpu_vm_id"] == values["vgpu_vm_id_kind"] == Absent(Reason.NO_DATA, "nvmlVgpuInstanceGetVmID")
    assert not done.errors


@pytest.mark.parametrize("expiry", [(0, 0, 0, 0, 0, 0, 0), (4, 2027, 1, 1, 0, 0, 0), (3, 2027, 1, 1, 0, 0, 0)])
async def test_license_without_expiry_has_no_date(
    fake: FakeNvml, start: Start, instances: dict[int, Device], expiry: tuple[int, ...]
) -> None:
    instances[3200].rows["expiry"] = [expiry]
    fake.apply()
    values = parts(await start(fake).read(Lane.SLOW), 2)[instances[3200].texts[f"{I}UUID"] or ""].values
    assert values["vgpu_license_expiry_timestamp_seconds"] == Absent(Reason.NO_DATA, f"{I}LicenseInfo_v2")


async def test_impossible_expiry_date_is_invalid(fake: FakeNvml, start: Start, instances: dict[int, Device]) -> None:
    instances[3200].rows["expiry"] = [(2, 2027, 13, 40, 0, 0, 0)]
    fake.apply()
    values = parts(await start(fake).read(Lane.SLOW), 2)[instances[3200].texts[f"{I}UUID"] or ""].values
    assert values["vgpu_license_expiry_timestamp_seconds"] == Absent(Reason.INVALID_VALUE, f"{I}LicenseInfo_v2")


async def test_old_driver_reports_later_metrics_as_not_in_driver(
    tmp_path_factory: pytest.TempPathFactory, start: Start
) -> None:
    scenario = Scenario.healthy(1)
    (vgpu,) = share_as_vgpus(scenario, 0, 1).values()
    fake = FakeNvml(tmp_path_factory.mktemp("old"), scenario, branch=535)
    reader = start(fake)
    round_ = await reader.read(Lane.SLOW)
    values = parts(round_, 0)[vgpu.texts[f"{I}UUID"] or ""].values
    assert values["vgpu_placement_id"] == Absent(Reason.NOT_IN_DRIVER, f"{I}PlacementId")
    assert device(round_, 0).values["gpu_vgpu_heterogeneous_mode"] == Absent(
        Reason.NOT_IN_DRIVER, "nvmlDeviceGetVgpuHeterogeneousMode"
    )


# --- inside a guest -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "name"), [(1, "licensed"), (0, "unlicensed")])
async def test_guest_reports_its_license(fake: FakeNvml, start: Start, state: int, name: str) -> None:
    guest = fake.scenario.devices[1]
    guest.become_vgpu_guest()
    guest.numbers["nvmlDeviceGetGridLicensableFeatures"] = state
    guest.texts["nvmlDeviceGetGridLicensableFeatures_product"] = "NVIDIA Virtual Compute Server"
    guest.rows["expiry"] = [(2, 2026, 7, 7, 16, 1, 44)]
    fake.apply()
    reader = start(fake)
    values = device(await reader.read(Lane.SLOW), 1).values
    assert values["vgpu_license_state"] == name
    assert values["vgpu_license_product"] == "NVIDIA Virtual Compute Server"
    expires = dt.datetime(2026, 7, 7, 16, 1, 44, tzinfo=dt.UTC)
    assert values["vgpu_license_expiry_timestamp_seconds"] == int(expires.timestamp())
    static = device(await reader.read(Lane.STATIC), 1).values
    assert static["gpu_virtualization_mode"] == "vgpu_guest"
    for metric in ("gpu_serial", "gpu_sm_clock_max_hertz", "gpu_power_default_limit_watts"):
        why = static[metric]
        assert isinstance(why, Absent)
        assert why.reason is Reason.NOT_IN_GUEST
    fast = device(await reader.read(Lane.FAST), 1).values
    for metric in ("gpu_power_watts", "gpu_temperature_celsius", "gpu_pcie_link_width"):
        why = fast[metric]
        assert isinstance(why, Absent)
        assert why.reason is Reason.NOT_IN_GUEST
    assert not [key for key in fake.calls() if key == ("nvmlDeviceGetHostVgpuMode", 1)]


async def test_guest_without_licensing_is_not_supported(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].become_vgpu_guest()
    fake.apply()
    values = device(await start(fake).read(Lane.SLOW), 1).values
    assert values["vgpu_license_state"] == Absent(Reason.NOT_SUPPORTED, "nvmlDeviceGetGridLicensableFeatures_v4")


async def test_host_processes_are_not_listed_for_instances(fake: FakeNvml, start: Start) -> None:
    share_as_vgpus(fake.scenario, 4, 2)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert device(round_, 4).processes
    assert [sample.processes for sample in parts(round_, 4).values()] == [None, None]
