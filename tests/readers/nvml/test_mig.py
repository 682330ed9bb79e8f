"""GPUs in MIG mode: values of MIG devices, absent utilization of the parent, reconfiguration and faults."""

import asyncio
import time

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.reading import Round, Value
from gpufleet.model.view import Side, ViewKind
from gpufleet.readers.nvml.mapping.mig import profile_in
from gpufleet.readers.nvml.processes import UTILIZATION_METRICS
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import add_mig, cut_into_mig
from tests.fakes.nvml.scenario import Device
from tests.readers.nvml.rig import HASTY, Start, device, parts
from tests.support.waiting import wait_until_async

G = "nvmlDeviceGet"
UTILIZATIONS = ("gpu_utilization_ratio", "gpu_memory_activity_ratio", "gpu_encoder_utilization_ratio")


async def test_every_reading_of_every_mig_device(fake: FakeNvml, start: Start) -> None:
    cut = {gpu: cut_into_mig(fake.scenario, gpu) for gpu in (1, 6)}
    fake.apply()
    reader = start(fake)
    static, fast, slow = [await reader.read(lane) for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW)]
    assert not (*static.errors, *fast.errors, *slow.errors)
    for gpu, devices in cut.items():
        assert list(parts(fast, gpu)) == [fake_mig.uuid for fake_mig in devices.values()]
        for slot, fake_mig in devices.items():
            sample = parts(fast, gpu)[fake_mig.uuid]
            assert sample.view is not None
            assert (sample.view.kind, sample.view.side) == (ViewKind.MIG, Side.HOST)
            assert sample.view.instance == f"{7 + slot}/{slot % 2}"
            assert sample.measured_at == device(fast, gpu).measured_at
            assert sample.driver_session == device(fast, gpu).driver_session
            numbers = [fake_mig.numbers[f"{G}MemoryInfo_{name}"] for name in ("total", "used", "free", "reserved")]
            assert [sample.values[f"gpu_memory_{n}_bytes"] for n in ("total", "used", "free", "reserved")] == numbers
            assert sample.values["gpu_bar1_total_bytes"] == fake_mig.numbers[f"{G}BAR1MemoryInfo_total"]
            assert sample.values["gpu_bar1_used_bytes"] == fake_mig.numbers[f"{G}BAR1MemoryInfo_used"]
            assert sample.values["gpu_compute_processes"] == slot
            assert sample.values["mig_profile"] == ("1g.18gb+me" if slot == 3 else "1g.18gb")
            assert (sample.values["mig_gpu_instance"], sample.values["mig_compute_instance"]) == (
                str(7 + slot),
                str(slot % 2),
            )
            assert parts(static, gpu)[fake_mig.uuid].values == {"gpu_name": fake_mig.texts[f"{G}Name"]}
            assert parts(slow, gpu)[fake_mig.uuid].values == attributes_of(fake_mig, fake, gpu, slot)
            (errors,) = parts(slow, gpu)[fake_mig.uuid].dims
            assert (errors.metric, errors.labels) == ("gpu_ecc_location_errors_total", ("sram", "uncorrected"))
            assert errors.value == fake_mig.numbers[f"{G}MemoryErrorCounter,1,0,7"] == 700 + 10 * gpu + slot
    assert device(fast, 1).values["gpu_mig_devices"] == 7
    assert device(slow, 1).values["gpu_mig_devices_max"] == 7
    assert (device(slow, 1).values["gpu_mig_mode"], device(slow, 1).values["gpu_mig_mode_pending"]) == (
        "enabled",
        "enabled",
    )


def attributes_of(fake_mig: Device, fake: FakeNvml, gpu: int, slot: int) -> dict[str, Value | Absent]:
    (numbers,) = fake_mig.rows[f"{G}Attributes"]
    names = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")
    placement = fake.scenario.devices[gpu].parts[f"{gpu}/gi{7 + slot}"].numbers
    return {
        **dict(zip((f"mig_{name}" for name in (*names, "gpu_slices", "compute_slices")), numbers, strict=False)),
        "mig_placement_start": placement["nvmlGpuInstanceGetInfo_start"] or 0,
        "mig_placement_size": placement["nvmlGpuInstanceGetInfo_size"] or 0,
    }


async def test_every_metric_of_a_mig_device_is_read_on_its_lane(fake: FakeNvml, start: Start) -> None:
    (fake_mig,) = cut_into_mig(fake.scenario, 2, (4,)).values()
    fake.apply()
    reader = start(fake)
    for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW):
        rows = {m.name for m in CATALOGUE.values() if Subject.MIG in m.subjects and m.lane is lane and not m.dims}
        assert set(parts(await reader.read(lane), 2)[fake_mig.uuid].values) == rows


async def test_utilization_in_mig_mode_is_absent_not_zero(fake: FakeNvml, start: Start) -> None:
    (fake_mig,) = cut_into_mig(fake.scenario, 0, (2,)).values()
    fake.scenario.devices[0].numbers[f"{G}UtilizationRates_gpu"] = 0  # as some drivers report
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    for sample in (device(round_, 0), parts(round_, 0)[fake_mig.uuid]):
        for metric in UTILIZATIONS:
            assert sample.values[metric] == Absent(Reason.NOT_IN_MIG_MODE)


async def test_shared_activity_is_attributed_to_no_compute_instance(fake: FakeNvml, start: Start) -> None:
    cut = cut_into_mig(fake.scenario, 1, (0, 1, 2))
    cut[1].numbers[f"{G}GpuInstanceId"] = 7  # slots 0 and 1 are compute instances of GPU instance 7
    fake.apply()
    reader, rounds = start(fake), list[Round]()

    async def is_compared() -> bool:
        rounds.append(await reader.read(Lane.FAST))
        return not isinstance(parts(rounds[-1], 1)[cut[2].uuid].values["gpu_sm_activity_ratio"], Absent)

    await wait_until_async(is_compared, what="two samples of the third MIG device")
    assert parts(rounds[-1], 1)[cut[2].uuid].values["gpu_sm_activity_ratio"] == pytest.approx((2 + 12 / 8) / 100)
    for slot in (0, 1):
        values = parts(rounds[-1], 1)[cut[slot].uuid].values
        assert values["gpu_sm_activity_ratio"] == Absent(Reason.NO_DATA, f"{G}GpuInstanceId")
        assert values["mig_gpu_instance"] == "7"


async def test_empty_uuid_is_not_replaced_by_ambiguous_ids(fake: FakeNvml, start: Start) -> None:
    kept = [cut_into_mig(fake.scenario, gpu, (0, 1))[1] for gpu in (1, 2)]
    for gpu in (1, 2):
        fake.scenario.devices[gpu].parts[f"{gpu}.0"].texts[f"{G}UUID"] = ""
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert [list(parts(round_, gpu)) for gpu in (1, 2)] == [[fake_mig.uuid] for fake_mig in kept]
    assert ["slot 0" in error for error in round_.errors] == [True, True]


async def test_sparse_mig_slots(fake: FakeNvml, start: Start) -> None:
    cut = cut_into_mig(fake.scenario, 5, (0, 3, 6))
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert list(parts(round_, 5)) == [fake_mig.uuid for fake_mig in cut.values()]
    assert device(round_, 5).values["gpu_mig_devices"] == 3
    assert not round_.errors


async def test_placement_without_rights_is_not_permitted(fake: FakeNvml, start: Start) -> None:
    (fake_mig,) = cut_into_mig(fake.scenario, 1, (0,)).values()
    del fake.scenario.devices[1].parts["1/gi7"]
    fake.apply()
    values = parts(await start(fake).read(Lane.SLOW), 1)[fake_mig.uuid].values
    assert values["mig_placement_start"] == Absent(Reason.NOT_PERMITTED, "nvmlDeviceGetGpuInstanceById")
    assert values["mig_multiprocessors"] == 26


async def test_recreated_device_with_the_same_ids_is_another_view(fake: FakeNvml, start: Start) -> None:
    before = cut_into_mig(fake.scenario, 1, (0, 1))
    fake.apply()
    reader = start(fake)
    first = await reader.read(Lane.FAST)
    after = add_mig(fake.scenario, 1, 0, life=1)
    fake.apply()
    second = await reader.read(Lane.FAST)
    assert set(parts(first, 1)) == {fake_mig.uuid for fake_mig in before.values()}
    assert set(parts(second, 1)) == {after.uuid, before[1].uuid}
    ids = [parts(round_, 1)[one.uuid].view for round_, one in ((first, before[0]), (second, after))]
    assert ids[0] is not None
    assert ids[1] is not None
    assert ids[0].instance == ids[1].instance == "7/0"
    assert ids[0].key != ids[1].key
    assert parts(second, 1)[after.uuid].values["gpu_memory_total_bytes"] == after.numbers[f"{G}MemoryInfo_total"]


async def test_recreated_device_with_the_same_uuid_has_its_new_profile(fake: FakeNvml, start: Start) -> None:
    """The driver derives the UUID from the placement only: 2g.35gb and 1g.35gb in one place share it."""
    (fake_mig,) = cut_into_mig(fake.scenario, 1, (0,)).values()
    fake.apply()
    reader = start(fake)
    before = await reader.read(Lane.FAST)
    assert parts(before, 1)[fake_mig.uuid].values["mig_profile"] == "1g.18gb"
    fake_mig.texts[f"{G}Name"] = "NVIDIA H200 MIG 1g.35gb"
    fake.apply()
    fast, static = await reader.read(Lane.FAST), await reader.read(Lane.STATIC)
    assert parts(fast, 1)[fake_mig.uuid].values["mig_profile"] == "1g.35gb"
    assert parts(fast, 1)[fake_mig.uuid].values["gpu_sm_activity_ratio"] == Absent(
        Reason.NO_DATA, "nvmlGpmMigSampleGet"
    )
    assert parts(static, 1)[fake_mig.uuid].values["gpu_name"] == "NVIDIA H200 MIG 1g.35gb"


async def test_missing_instance_id_is_queried_again(fake: FakeNvml, start: Start) -> None:
    (fake_mig,) = cut_into_mig(fake.scenario, 3, (2,)).values()
    fake.scenario.fault(f"{G}ComputeInstanceId", gpu=3, code=999)
    fake.apply()
    reader = start(fake)
    first = await reader.read(Lane.FAST)
    assert parts(first, 3)[fake_mig.uuid].values["mig_compute_instance"] == Absent(
        Reason.DRIVER_ERROR, f"{G}ComputeInstanceId: UNKNOWN"
    )
    fake.scenario.faults.clear()
    fake.apply()
    assert parts(await reader.read(Lane.FAST), 3)[fake_mig.uuid].values["mig_compute_instance"] == "0"


async def test_mig_device_recreated_during_a_pass(fake: FakeNvml, start: Start) -> None:
    """Slot 1 is recreated while slot 0 is queried: its handle becomes invalid, the others stay valid."""
    cut = cut_into_mig(fake.scenario, 3, (0, 1, 2))
    fake.scenario.hang(f"{G}Attributes_v2", gpu=3)
    fake.apply()
    reader = start(fake)
    reading = asyncio.create_task(reader.read(Lane.SLOW))

    async def is_queried() -> bool:
        return fake.calls()[f"{G}Attributes_v2", 3] == 1

    await wait_until_async(is_queried, what="the first MIG device to be reading about")
    add_mig(fake.scenario, 3, 1, life=1)
    fake.scenario.faults.clear()
    fake.apply()
    round_ = await reading

    assert list(parts(round_, 3)) == [cut[0].uuid, cut[2].uuid]
    assert all(
        not isinstance(value, Absent) for sample in parts(round_, 3).values() for value in sample.values.values()
    )
    assert not round_.errors
    assert (await reader.read(Lane.SLOW)).errors == ()


async def test_call_refused_for_mig_devices_affects_only_itself(fake: FakeNvml, start: Start) -> None:
    cut = cut_into_mig(fake.scenario, 3, (0, 1))
    fake.scenario.fault(f"{G}Attributes_v2", gpu=3, code=2)
    fake.apply()
    found = parts(await start(fake).read(Lane.SLOW), 3)
    assert list(found) == [fake_mig.uuid for fake_mig in cut.values()]
    assert found[cut[0].uuid].values["mig_multiprocessors"] == Absent(
        Reason.DRIVER_ERROR, f"{G}Attributes_v2: INVALID_ARGUMENT"
    )
    assert found[cut[0].uuid].values["mig_placement_start"] == 0


async def test_unreadable_mig_slot_affects_only_itself(fake: FakeNvml, start: Start) -> None:
    cut_into_mig(fake.scenario, 3, (0, 1))
    fake.scenario.fault(f"{G}MigDeviceHandleByIndex", gpu=3, code=4)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert device(round_, 3).values["gpu_state"] == "ok"
    assert len(round_.errors) == 7
    assert "the MIG device in slot 0 cannot be named" in round_.errors[0]
    assert "not_permitted" in round_.errors[0]


@pytest.mark.parametrize(
    ("function", "code", "total"),
    [
        ("MigDeviceHandleByIndex", 999, Absent(Reason.DRIVER_ERROR, f"{G}MigDeviceHandleByIndex: UNKNOWN")),
        ("MigDeviceHandleByIndex", 4, Absent(Reason.NOT_PERMITTED, f"{G}MigDeviceHandleByIndex")),
        ("UUID", 10, 2),
        ("MigMode", 999, 2),
        ("MigMode", 10, 2),
    ],
)
async def test_failing_call_removes_no_mig_device(
    fake: FakeNvml, start: Start, function: str, code: int, total: object
) -> None:
    """A failed query does not mean that a device is gone. Empty slots are not devices."""
    cut_into_mig(fake.scenario, 3, (0, 4))
    fake.apply()
    reader = start(fake)
    before = {lane: await reader.read(lane) for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW)}
    fake.scenario.fault(f"{G}{function}", gpu=3, code=code)
    fake.apply()
    after = {lane: await reader.read(lane) for lane in (Lane.FAST, Lane.STATIC, Lane.SLOW, Lane.FAST)}
    for lane, round_ in after.items():
        assert [one.view for one in parts(round_, 3).values()] == [one.view for one in parts(before[lane], 3).values()]
        if function != "MigMode":
            assert all(isinstance(v, Absent) for one in parts(round_, 3).values() for v in one.values.values())
    values = device(after[Lane.FAST], 3).values
    assert values["gpu_mig_devices"] == total
    assert values["gpu_utilization_ratio"] == Absent(Reason.NOT_IN_MIG_MODE)
    fake.scenario.faults.clear()
    fake.apply()
    again = await reader.read(Lane.FAST)
    assert device(again, 3).values["gpu_mig_devices"] == 2
    used = "gpu_memory_used_bytes"
    assert {uuid: one.values[used] for uuid, one in parts(again, 3).items()} == {
        uuid: one.values[used] for uuid, one in parts(before[Lane.FAST], 3).items()
    }


async def test_mig_uuid_shared_across_gpus_keeps_both_devices(fake: FakeNvml, start: Start) -> None:
    first, second = (cut_into_mig(fake.scenario, gpu, (4,))[4] for gpu in (1, 2))
    second.texts[f"{G}UUID"] = first.uuid
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    found = {
        one.view.key: one.values["gpu_memory_used_bytes"] for one in round_.samples if one.view and one.view.parent
    }
    addresses = [view.pci_address for view in (device(round_, gpu).view for gpu in (1, 2)) if view is not None]
    assert found == {
        f"mig/instance/11/0@{address}": fake_mig.numbers[f"{G}MemoryInfo_used"]
        for address, fake_mig in zip(addresses, (first, second), strict=True)
    }
    assert round_.errors == (f"several MIG devices report the UUID {first.uuid}: it identifies none of them",)


async def test_mig_uuid_shared_on_one_gpu_keeps_the_first(fake: FakeNvml, start: Start) -> None:
    first, second = cut_into_mig(fake.scenario, 1, (2, 3)).values()
    second.texts[f"{G}UUID"] = first.uuid
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert device(round_, 1).values["gpu_mig_devices"] == 2
    assert set(parts(round_, 1)) == {first.uuid}
    assert "slot 3" in round_.errors[0]


@pytest.mark.parametrize(("code", "reason"), [(15, Reason.GPU_LOST), (16, Reason.RESET_REQUIRED)])
async def test_mig_devices_of_a_lost_gpu_have_its_reason(
    fake: FakeNvml, start: Start, code: int, reason: Reason
) -> None:
    cut = cut_into_mig(fake.scenario, 4, (0, 5))
    fake.apply()
    reader = start(fake)
    before = await reader.read(Lane.FAST)
    fake.scenario.fault("*", gpu=4, code=code)
    fake.apply()
    after = await reader.read(Lane.FAST)
    assert [one.view for one in parts(after, 4).values()] == [one.view for one in parts(before, 4).values()]
    for fake_mig in cut.values():
        sample, seen = parts(after, 4)[fake_mig.uuid], parts(before, 4)[fake_mig.uuid]
        assert set(sample.values) == set(seen.values)
        assert {value.reason for value in sample.values.values() if isinstance(value, Absent)} == {reason}
        assert sample.measured_at == device(after, 4).measured_at


@pytest.mark.parametrize("call", ["Name", "GpuInstanceId", "ComputeInstanceId", "BAR1MemoryInfo"])
@pytest.mark.parametrize(
    ("code", "state", "kind"), [(15, "lost", "gpu_lost"), (16, "reset_required", "gpu_reset_required")]
)
async def test_gpu_is_lost_if_a_call_about_its_mig_device_is(
    fake: FakeNvml, start: Start, call: str, code: int, state: str, kind: str
) -> None:
    cut_into_mig(fake.scenario, 4, (0,))
    fake.scenario.fault(f"{G}{call}", gpu=4, code=code)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert device(round_, 4).values["gpu_state"] == state
    assert [event.kind for event in round_.events] == [kind]
    assert parts(round_, 4) == {}


async def test_mig_device_is_not_gone_if_its_gpu_is_lost(fake: FakeNvml, start: Start) -> None:
    (fake_mig,) = cut_into_mig(fake.scenario, 4, (0,)).values()
    fake.apply()
    reader = start(fake)
    await reader.read(Lane.FAST)
    fake.scenario.fault(f"{G}Name", gpu=4, code=15)
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    assert device(round_, 4).values["gpu_state"] == "lost"
    assert set(parts(round_, 4)[fake_mig.uuid].values.values()) == {Absent(Reason.GPU_LOST, f"{G}Name")}


async def test_gpu_is_lost_if_a_reading_of_its_mig_device_is(fake: FakeNvml, start: Start) -> None:
    """The driver answers the calls, and one value inside of an answer has the code."""
    (fake_mig,) = cut_into_mig(fake.scenario, 4, (0,)).values()
    fake.apply()
    reader = start(fake)
    await reader.read(Lane.FAST)
    for metric in fake.scenario.devices[4].parts["4/gi7"].gpm:
        fake.scenario.devices[4].parts["4/gi7"].gpm[metric] = 15
    fake.apply()
    rounds: list[Round] = []

    async def is_lost() -> bool:
        rounds.append(await reader.read(Lane.FAST))
        values = parts(rounds[-1], 4)[fake_mig.uuid].values.values()
        return any(isinstance(value, Absent) and value.reason is Reason.GPU_LOST for value in values)

    await wait_until_async(is_lost, what="two GPM samples to be compared")
    assert device(rounds[-1], 4).values["gpu_state"] == "lost"
    assert [event.kind for event in rounds[-1].events] == ["gpu_lost"]


async def test_mig_devices_of_a_hung_gpu_are_timeout(fake: FakeNvml, start: Start) -> None:
    (fake_mig,) = cut_into_mig(fake.scenario, 4, (0,)).values()
    fake.apply()
    reader = start(fake, HASTY)
    await reader.read(Lane.FAST)
    fake.scenario.hang(f"{G}BAR1MemoryInfo", gpu=4)
    fake.apply()
    values = parts(await reader.read(Lane.FAST), 4)[fake_mig.uuid].values
    assert set(values.values()) == {Absent(Reason.TIMEOUT, f"{G}BAR1MemoryInfo")}
    fake.scenario.faults.clear()
    fake.apply()


async def test_disabling_mig_removes_every_mig_device(fake: FakeNvml, start: Start) -> None:
    cut_into_mig(fake.scenario, 2)
    fake.apply()
    reader = start(fake)
    assert len(parts(await reader.read(Lane.FAST), 2)) == 7
    fake.scenario.devices[2].numbers |= {f"{G}MigMode_current": 0, f"{G}UtilizationRates_gpu": 5}
    fake.scenario.devices[2].numbers |= {f"{G}UtilizationRates_memory": 6}
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    assert parts(round_, 2) == {}
    assert device(round_, 2).values["gpu_utilization_ratio"] == 0.05
    assert "gpu_mig_devices" not in device(round_, 2).values


async def test_gpu_without_mig_is_not_queried_for_it(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    for lane in reader.lanes:
        for sample in (await reader.read(lane)).samples:
            assert not [name for name in sample.values if name.startswith(("mig_", "gpu_mig_devices"))]
    assert not [name for name, _ in fake.calls() if "Mig" in name and name != f"{G}MigMode"]


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "1g.10gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.2g.10gb", "1c.2g.10gb"),
        ("NVIDIA B200 MIG 1g.23gb+me.all", "1g.23gb+me.all"),
        ("NVIDIA H100", Absent(Reason.NO_DATA, f"{G}Name")),
        ("", Absent(Reason.NO_DATA, f"{G}Name")),
    ],
)
def test_profile_is_parsed_from_the_whole_name(name: str, profile: str | Absent) -> None:
    assert profile_in(name) == profile


async def test_each_mig_device_lists_only_its_own_processes(fake: FakeNvml, start: Start) -> None:
    cut = cut_into_mig(fake.scenario, 1, (0, 2, 5))
    all_processes = [row for fake_mig in cut.values() for row in fake_mig.rows[f"{G}ComputeRunningProcesses"]]
    fake.scenario.devices[1].rows[f"{G}ComputeRunningProcesses"] = all_processes  # the GPU lists all of them
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    for slot, fake_mig in cut.items():
        processes = parts(round_, 1)[fake_mig.uuid].processes
        assert processes is not None
        listed = [(process.pid, process.values["memory_bytes"]) for process in processes]
        assert listed == [row[:2] for row in fake_mig.rows[f"{G}ComputeRunningProcesses"]]
        assert len(listed) == slot
        shares = {
            value for process in processes for name, value in process.values.items() if name in UTILIZATION_METRICS
        }
        assert shares <= {Absent(Reason.NOT_IN_MIG_MODE)}
    whole = device(round_, 1).processes
    assert whole is not None
    assert {process.pid for process in whole} >= {row[0] for row in all_processes}


async def test_activity_of_a_removed_compute_instance_is_not_inherited(fake: FakeNvml, start: Start) -> None:
    """Samples from before and after the removal would include the activity of both instances."""
    cut = cut_into_mig(fake.scenario, 1, (0, 2))
    fake.apply()
    reader = start(fake)

    async def activity() -> Value | Absent:
        return parts(await reader.read(Lane.FAST), 1)[cut[0].uuid].values["gpu_sm_activity_ratio"]

    async def is_compared() -> bool:
        return not isinstance(await activity(), Absent)

    await wait_until_async(is_compared, what="two samples")
    guest = add_mig(fake.scenario, 1, 1)
    guest.numbers[f"{G}GpuInstanceId"] = 7
    fake.apply()
    shared = time.monotonic()
    assert await activity() == Absent(Reason.NO_DATA, f"{G}GpuInstanceId")
    del fake.scenario.devices[1].parts["1.1"]
    fake.apply()

    async def is_long_enough() -> bool:
        return time.monotonic() - shared > 0.2

    await wait_until_async(is_long_enough, what="samples that could be compared")
    assert isinstance(await activity(), Absent)
    await wait_until_async(is_compared, what="two samples of its own")
