"""Failing and unusual devices: each one affects only its own readings and has a reason."""

from pathlib import Path

import pynvml
import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.readers.nvml.devices import DeviceTracker, Identity
from gpufleet.readers.nvml.protocol import AttachedRecord
from tests.fakes.nvml import scenario as nvml
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import UINT, Field, Scenario
from tests.readers.nvml.rig import Start, device, dim, own, reasons

G = "nvmlDeviceGet"


def bind(root: Path, count: int) -> None:
    """Create the list of GPUs that the kernel's driver holds."""
    bound = root / "sys/bus/pci/drivers/nvidia"
    bound.mkdir(parents=True)
    for gpu in range(count):
        (bound / nvml.bus_id(gpu)[4:].lower()).touch()


@pytest.mark.parametrize(
    ("code", "reason", "state", "kind", "message"),
    [
        (15, Reason.GPU_LOST, "lost", "gpu_lost", "GPU is lost"),
        (16, Reason.RESET_REQUIRED, "reset_required", "gpu_reset_required", "GPU requires reset"),
    ],
)
async def test_failed_device_keeps_its_identity_and_is_called_once(
    fake: FakeNvml, start: Start, code: int, reason: Reason, state: str, kind: str, message: str
) -> None:
    reader = start(fake)
    healthy = device(await reader.read(Lane.FAST), 5).view
    fake.scenario.fault("*", gpu=5, code=code)
    fake.apply()
    calls_before = fake.calls()

    round_ = await reader.read(Lane.FAST)
    sick = device(round_, 5)
    assert sick.view == healthy
    assert sick.values.pop("gpu_state") == state
    assert reasons(sick) == {reason}
    assert [event.kind for event in round_.events] == [kind]
    assert round_.events[0].view == healthy
    assert len(round_.errors) == 1
    assert message in round_.errors[0]
    assert sum((fake.calls() - calls_before)[key] for key in fake.calls() if key[1] == 5) == 1
    assert device(round_, 4).values["gpu_state"] == "ok"

    assert not (await reader.read(Lane.FAST)).events
    slow = device(await reader.read(Lane.SLOW), 5)
    assert reasons(slow) == {reason}

    fake.scenario.faults.clear()
    fake.apply()
    recovered = await reader.read(Lane.FAST)
    assert device(recovered, 5).values["gpu_state"] == "ok"
    assert [event.kind for event in recovered.events] == ["gpu_recovered"]


async def test_device_lost_during_a_pass_has_no_values(fake: FakeNvml, start: Start) -> None:
    fake.scenario.fault(f"{G}PerformanceState", gpu=2, code=15)
    fake.apply()
    lost = device(await start(fake).read(Lane.FAST), 2)
    assert lost.values["gpu_power_watts"] == Absent(Reason.GPU_LOST, f"{G}PerformanceState")
    assert lost.values["gpu_state"] == "lost"
    assert (f"{G}CurrPcieLinkWidth", 2) not in fake.calls()


async def test_static_lane_restarts_nvml_after_a_device_loss(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    fake.scenario.fault("*", gpu=1, code=15)
    fake.apply()
    await reader.read(Lane.FAST)
    pid = reader.child_pid
    fake.scenario.faults.clear()
    fake.apply()
    await reader.read(Lane.STATIC)
    assert reader.child_pid != pid


async def test_failing_handle_affects_only_its_device(fake: FakeNvml, start: Start) -> None:
    fake.scenario.fault(f"{G}HandleByIndex_v2", gpu=3, code=999)
    fake.apply()
    reader = start(fake)
    round_ = await reader.read(Lane.FAST)
    indices = [sample.view.index for sample in round_.samples if sample.view]
    assert indices == [0, 1, 2, 4, 5, 6, 7]  # not identified before, so left out
    assert round_.errors == ("the GPU at index 3 cannot be named: nvmlDeviceGetHandleByIndex_v2: Unknown Error",)
    assert own(round_)["nvidia_devices"] == 8

    fake.scenario.faults.clear()
    fake.apply()
    known = device(await reader.read(Lane.FAST), 3).view
    fake.scenario.fault(f"{G}HandleByIndex_v2", gpu=3, code=999)
    fake.apply()
    again = device(await reader.read(Lane.STATIC), 3)
    assert again.view == known
    assert again.values["gpu_name"] == Absent(Reason.DRIVER_ERROR, "nvmlDeviceGetHandleByIndex_v2: UNKNOWN")


async def test_nameless_device_is_named_by_elimination_only(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    await reader.close()
    fake.scenario.devices[0], fake.scenario.devices[6] = fake.scenario.devices[6], fake.scenario.devices[0]
    fake.scenario.fault(f"{G}HandleByIndex_v2", gpu=0, code=15)
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    view = device(round_, 0).view
    assert view is not None
    assert view.uuid == fake.scenario.devices[0].uuid  # formerly index 6
    await reader.close()
    fake.scenario.fault(f"{G}HandleByIndex_v2", gpu=1, code=4)  # no permission: it has not failed
    fake.apply()
    two = await reader.read(Lane.FAST)
    assert [sample.view.index for sample in two.samples if sample.view] == [2, 3, 4, 5, 6, 7]
    assert len(two.errors) == 2


async def test_gpus_lost_together_stay_lost_after_a_restart(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    for gpu in (2, 5):
        fake.scenario.fault("*", gpu=gpu, code=15)
    fake.apply()
    assert [event.kind for event in (await reader.read(Lane.FAST)).events] == ["gpu_lost"] * 2
    pid = reader.child_pid
    await reader.read(Lane.STATIC)
    assert reader.child_pid != pid
    again = await reader.read(Lane.FAST)
    lost = [sample.view for sample in again.samples if sample.view and sample.values["gpu_state"] == "lost"]
    assert [view.uuid for view in lost] == [fake.scenario.devices[gpu].uuid for gpu in (2, 5)]
    assert [view.index for view in lost] == [None, None]
    fake.scenario.faults.clear()
    fake.apply()
    await reader.read(Lane.STATIC)
    healthy = await reader.read(Lane.FAST)
    assert [sample.view.index for sample in healthy.samples if sample.view] == list(range(8))
    assert [event.kind for event in (*again.events, *healthy.events)] == ["gpu_recovered"] * 2


async def test_gpus_that_failed_differently_keep_their_states(fake: FakeNvml, start: Start) -> None:
    """The driver opens no handle of a GPU that fell off the bus: it returns either of two codes."""
    reader = start(fake)
    await reader.read(Lane.FAST)
    for gpu, code in ((1, 15), (2, 15), (5, 999)):
        fake.scenario.fault("*", gpu=gpu, code=code)
    fake.apply()
    failing = await reader.read(Lane.FAST)
    fake.scenario.fault(f"{G}HandleByIndex_v2", gpu=2, code=999)
    fake.apply()
    await reader.read(Lane.STATIC)
    again = await reader.read(Lane.FAST)
    for done in (failing, again):
        states = {sample.view.uuid: sample.values["gpu_state"] for sample in done.samples if sample.view}
        assert len(states) == 8
        assert [states[fake.scenario.devices[gpu].uuid] for gpu in (1, 2, 5)] == ["lost", "lost", "unreadable"]
    powers = [sample.values["gpu_power_watts"] for sample in again.samples if sample.view]
    call = f"{G}HandleByIndex_v2"
    assert powers.count(Absent(Reason.GPU_LOST, call)) == 2
    assert powers.count(Absent(Reason.DRIVER_ERROR, call)) == 1
    assert not again.events


async def test_gpus_that_failed_differently_before_the_start(fake: FakeNvml, start: Start, tmp_path: Path) -> None:
    bind(tmp_path / "root", 8)
    for gpu, code in ((2, 15), (5, 999)):
        fake.scenario.fault("*", gpu=gpu, code=code)
    fake.apply()
    reader = start(fake, root=tmp_path / "root")
    events = list((await reader.read(Lane.FAST)).events)
    assert [event.kind for event in events] == ["gpu_failed"] * 2
    fake.scenario.faults.clear()
    fake.scenario.fault("*", gpu=2, code=15)
    fake.apply()
    await reader.read(Lane.STATIC)
    one = await reader.read(Lane.FAST)
    assert device(one, 2).values["gpu_state"] == "lost"
    assert device(one, 5).values["gpu_state"] == "ok"


@pytest.mark.parametrize(("code", "kinds"), [(15, ["gpu_lost"] * 2), (999, ["gpu_failed"] * 2), (4, [])])
async def test_gpus_that_failed_before_the_start_have_events(
    fake: FakeNvml, start: Start, tmp_path: Path, code: int, kinds: list[str]
) -> None:
    """An agent in a container has no permission for the GPUs of others (code 4)."""
    bind(tmp_path / "root", 8)
    for gpu in (2, 5):
        fake.scenario.fault("*", gpu=gpu, code=code)
    fake.apply()
    round_ = await start(fake, root=tmp_path / "root").read(Lane.FAST)
    found = [(event.kind, event.view.pci_address) for event in round_.events if event.view]
    assert found == list(zip(kinds, [nvml.bus_id(gpu)[4:].lower() for gpu in (2, 5)], strict=False))


async def test_device_that_supports_no_core_reading_has_no_state(fake: FakeNvml, start: Start) -> None:
    """A Jetson Orin has a name and a UUID; NVML supports neither its temperature nor its power, clocks and memory."""
    for call in ("HandleByIndex_v2", "PciInfo_v3", "UUID", "Name"):
        fake.scenario.fault(f"{G}{call}", gpu=6, code=0)
    fake.scenario.fault("*", gpu=6, code=3)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert device(round_, 6).values["gpu_state"] == Absent(Reason.NOT_REPORTED)
    assert device(round_, 6).values["gpu_power_watts"] == Absent(Reason.NOT_SUPPORTED, f"{G}PowerUsage")
    assert (round_.events, round_.errors) == ((), ())


async def test_device_without_any_answer_is_unreadable(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    fake.scenario.fault("*", gpu=6, code=999)
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    assert device(round_, 6).values["gpu_state"] == "unreadable"
    assert device(round_, 6).values["gpu_power_watts"] == Absent(Reason.DRIVER_ERROR, f"{G}PowerUsage: UNKNOWN")
    assert device(round_, 7).values["gpu_state"] == "ok"
    assert round_.errors


FAILURES = (Reason.DRIVER_ERROR, Reason.TIMEOUT)


@pytest.mark.parametrize(
    ("code", "reason", "detail"),
    [
        (2, Reason.DRIVER_ERROR, ": INVALID_ARGUMENT"),
        (3, Reason.NOT_SUPPORTED, ""),
        (4, Reason.NOT_PERMITTED, ""),
        (6, Reason.NO_DATA, ""),
        (10, Reason.TIMEOUT, ""),
        (13, Reason.NOT_IN_DRIVER, ""),
        (17, Reason.DRIVER_ERROR, ": OPERATING_SYSTEM"),
        (25, Reason.NOT_IN_DRIVER, ""),
        (26, Reason.NOT_SUPPORTED, ""),
        (27, Reason.DRIVER_ERROR, ": NOT_READY"),
        (777, Reason.DRIVER_ERROR, ": a code without a name"),
        (999, Reason.DRIVER_ERROR, ": UNKNOWN"),
    ],
)
async def test_each_code_of_a_call_has_its_reason(
    fake: FakeNvml, start: Start, code: int, reason: Reason, detail: str
) -> None:
    fake.scenario.fault(f"{G}PowerUsage", gpu=1, code=code)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert device(round_, 1).values["gpu_power_watts"] == Absent(reason, f"{G}PowerUsage{detail}")
    assert device(round_, 1).values["gpu_temperature_celsius"] == 32
    assert device(round_, 1).values["gpu_state"] == ("error" if reason in FAILURES else "ok")


async def test_mig_makes_utilization_absent_not_zero(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    cut, inconsistent = fake.scenario.devices[1], fake.scenario.devices[2]
    cut.enable_mig()
    inconsistent.numbers |= {f"{G}MigMode_current": 1, f"{G}UtilizationRates_gpu": 0}
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    forbidden = [m.name for m in CATALOGUE.values() if any(a.reason == "not_in_mig_mode" for a in m.absent_when)]
    assert len(forbidden) == 6
    for index in (1, 2):
        values = device(round_, index).values
        assert {values[name] for name in forbidden} == {Absent(Reason.NOT_IN_MIG_MODE)}
        assert isinstance(values["gpu_power_watts"], float)
    assert device(await reader.read(Lane.SLOW), 1).values["gpu_mig_mode"] == "enabled"

    fake.scenario.devices[1] = nvml.healthy_h200(1)
    fake.apply()
    assert device(await reader.read(Lane.FAST), 1).values["gpu_utilization_ratio"] == 0.51


async def test_a_vgpu_guest_does_not_see_the_board(fake: FakeNvml, start: Start) -> None:
    for each in fake.scenario.devices:
        each.become_vgpu_guest()
        each.fields |= dict.fromkeys((29, 30, 31), Field(0, UINT))  # retired pages
    fake.apply()
    reader = start(fake)
    fast, slow, static = [device(await reader.read(lane), 1) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)]
    # the driver reports a disabled mode, and no pages
    for name in ("gpu_mig_mode", "gpu_mig_mode_pending", "gpu_retired_pages_pending"):
        assert slow.values[name] == Absent(Reason.NOT_IN_GUEST, name)
    assert set(dim(slow, "gpu_retired_pages").values()) == {Absent(Reason.NOT_IN_GUEST, "gpu_retired_pages")}
    assert fast.values["gpu_power_watts"] == Absent(Reason.NOT_IN_GUEST, f"{G}PowerUsage")
    assert fast.values["gpu_utilization_ratio"] == 0.51
    assert set(dim(fast, "gpu_clock_event_active").values()) == {
        Absent(Reason.NOT_IN_GUEST, f"{G}CurrentClocksThrottleReasons")
    }
    assert static.values["gpu_virtualization_mode"] == "vgpu_guest"
    assert static.values["gpu_serial"] == Absent(Reason.NOT_IN_GUEST, f"{G}Serial")


async def test_disabled_ecc_makes_error_counters_absent(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].disable_ecc()
    fake.apply()
    reader = start(fake)
    fast, static = device(await reader.read(Lane.FAST), 1), device(await reader.read(Lane.STATIC), 1)
    assert fast.values["gpu_ecc_corrected_errors_total"] == Absent(
        Reason.NOT_SUPPORTED, f"{G}TotalEccErrors(CORRECTED, VOLATILE)"
    )
    assert static.values["gpu_ecc_mode"] == "disabled"


async def test_sentinels_and_impossible_values_are_invalid(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].numbers |= {
        f"{G}PowerUsage": 0xFFFFFFFF,
        f"{G}PcieReplayCounter": 0xFFFFFFFF,
        f"{G}TotalEnergyConsumption": 2**64 - 1,
        f"{G}MemoryInfo_used": 2**64 - 1,
        f"{G}TotalEccErrors,0,0": 0xFFFFFFFF,  # valid: the counter has 64 bits
        f"{G}Temperature": 4000,
        f"{G}UtilizationRates_gpu": 101,
        f"{G}PerformanceState": 32,
    }
    fake.apply()
    values = device(await start(fake).read(Lane.FAST), 1).values
    for metric in ("gpu_power_watts", "gpu_pcie_replays_total", "gpu_energy_joules_total", "gpu_memory_used_bytes",
                   "gpu_temperature_celsius", "gpu_utilization_ratio", "gpu_performance_state"):  # fmt: skip
        absent = values[metric]
        assert isinstance(absent, Absent), metric
        assert absent.reason is Reason.INVALID_VALUE, metric
    assert values["gpu_ecc_corrected_errors_total"] == 0xFFFFFFFF
    assert values["gpu_memory_activity_ratio"] == 0.21


async def test_states_without_a_name_are_invalid(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[0].fields[230] = Field(17)
    fake.scenario.devices[0].numbers |= {f"{G}ComputeMode": 9, f"{G}Architecture": 99}
    fake.apply()
    reader = start(fake)
    slow, static = device(await reader.read(Lane.SLOW), 0), device(await reader.read(Lane.STATIC), 0)
    assert slow.values["gpu_recovery_action"] == Absent(Reason.INVALID_VALUE, "FI 230: a state without a name")
    assert static.values["gpu_compute_mode"] == Absent(Reason.INVALID_VALUE, f"{G}ComputeMode: a state without a name")
    assert static.values["gpu_architecture"] == "unnamed (99)"


async def test_recovery_actions_of_the_binding_have_names(fake: FakeNvml, start: Start) -> None:
    prefix = "NVML_GPU_RECOVERY_ACTION_"
    actions = sorted(value for name, value in vars(pynvml).items() if name.startswith(prefix))
    for fake_gpu, action in zip(fake.scenario.devices, actions, strict=True):
        fake_gpu.fields[230] = Field(action)
    fake.apply()
    slow = await start(fake).read(Lane.SLOW)
    read = tuple(device(slow, index).values["gpu_recovery_action"] for index in range(len(actions)))
    assert read == CATALOGUE["gpu_recovery_action"].states
    assert read[6:] == ("bus_reset", "system_reboot")


async def test_field_values_are_decoded_by_type_and_code(fake: FakeNvml, start: Start) -> None:
    devices = fake.scenario.devices
    devices[0].fields |= {82: Field(-5, nvml.SINT), 186: Field(76_543.0, nvml.DOUBLE)}
    devices[1].fields |= {82: Field(code=3), 186: Field(untouched=True)}
    devices[2].fields |= {82: Field(0), 186: Field(float("nan"), nvml.DOUBLE)}
    devices[3].fields |= {82: Field(2**32 - 1), 186: Field(81_000, nvml.ULONGLONG)}
    devices[4].fields |= {82: Field(44, nvml.USHORT), 186: Field(code=999)}
    fake.apply()
    reader = start(fake)
    await reader.read(Lane.FAST)
    devices[5].fields |= {82: Field(untouched=True)}
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    memory, power = "gpu_memory_temperature_celsius", "gpu_power_instant_watts"
    assert [(device(round_, i).values[memory], device(round_, i).values[power]) for i in range(6)] == [
        (-5, 76.543),
        (Absent(Reason.NOT_SUPPORTED, "FI 82"), Absent(Reason.NOT_REPORTED, "FI 186")),
        (Absent(Reason.NOT_SUPPORTED, "FI 82"), Absent(Reason.INVALID_VALUE, "FI 186")),
        (Absent(Reason.INVALID_VALUE, "FI 82"), 81.0),
        (44, Absent(Reason.DRIVER_ERROR, "FI 186: UNKNOWN")),
        (Absent(Reason.NOT_REPORTED, "FI 82"), 526.005),
    ]


async def test_driver_535_reports_later_metrics_as_not_in_driver(tmp_path: Path, start: Start) -> None:
    scenario = Scenario.healthy(2)
    scenario.driver = "535.183.06"
    reader = start(FakeNvml(tmp_path, scenario, branch=535))
    fast, slow = device(await reader.read(Lane.FAST), 1), device(await reader.read(Lane.SLOW), 1)
    assert fast.values["gpu_temperature_celsius"] == 32  # read with the older call
    assert fast.values["gpu_temperature_margin_celsius"] == Absent(
        Reason.NOT_IN_DRIVER, "nvmlDeviceGetMarginTemperature"
    )
    assert fast.values["gpu_power_instant_watts"] == 166.001
    assert slow.values["gpu_recovery_action"] == Absent(Reason.NOT_IN_DRIVER, "FI 230")


async def test_driver_before_535_gives_clock_event_reasons(tmp_path: Path, start: Start) -> None:
    scenario = Scenario.healthy(2)
    scenario.driver = "525.147.05"
    fast = device(await start(FakeNvml(tmp_path, scenario, branch=525)).read(Lane.FAST), 1)
    assert fast.values["gpu_clock_event_reasons_mask"] == 2
    assert fast.values["gpu_jpeg_utilization_ratio"] == Absent(Reason.NOT_IN_DRIVER, f"{G}JpgUtilization")
    assert fast.values["gpu_power_instant_watts"] == Absent(Reason.NOT_IN_DRIVER, "FI 186")
    assert fast.values["gpu_memory_temperature_celsius"] == 42


async def test_missing_uuid_is_remembered_by_pci_address(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    known = device(await reader.read(Lane.FAST), 1).view
    fake.scenario.fault("nvmlDeviceGetUUID", gpu=1, code=999)
    fake.apply()
    assert device(await reader.read(Lane.STATIC), 1).view == known
    fresh = device(await start(fake).read(Lane.STATIC), 1).view
    assert fresh is not None
    assert fresh.key == "gpu/pci/0000:2b:00.0"
    await reader.close()  # in another session of NVML it may be another card
    other = device(await reader.read(Lane.STATIC), 1).view
    assert other == fresh


async def test_missing_pci_address_is_absent(fake: FakeNvml, start: Start) -> None:
    fake.scenario.fault("nvmlDeviceGetPciInfo_v3", gpu=1, code=999)
    fake.apply()
    static = device(await start(fake).read(Lane.STATIC), 1)
    assert static.view is not None
    assert static.view.key == f"gpu/{fake.scenario.devices[1].uuid}"
    assert static.values["gpu_pci_address"] == Absent(Reason.DRIVER_ERROR, "nvmlDeviceGetPciInfo_v3: UNKNOWN")


async def test_rejected_field_batch_is_queried_field_by_field(tmp_path: Path, start: Start) -> None:
    scenario = Scenario.healthy(1)
    scenario.driver = "535.54.03"  # version number that knows field 186, library that does not
    reader = start(FakeNvml(tmp_path, scenario, branch=525))
    fast = device(await reader.read(Lane.FAST), 0)
    assert fast.values["gpu_memory_temperature_celsius"] == 41
    assert fast.values["gpu_power_instant_watts"] == Absent(Reason.DRIVER_ERROR, "FI 186: INVALID_ARGUMENT")


async def test_uuid_shared_by_two_devices_identifies_neither(fake: FakeNvml, start: Start) -> None:
    shared = fake.scenario.devices[1].uuid
    fake.scenario.devices[2].texts["nvmlDeviceGetUUID"] = shared
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    views = [sample.view.key for sample in round_.samples if sample.view is not None]
    assert len(set(views)) == 8
    assert {"gpu/pci/0000:2b:00.0", "gpu/pci/0000:3b:00.0"} < set(views)
    assert round_.errors == (f"several GPUs report {shared}: it identifies none of them",)


async def test_pci_address_shared_by_two_devices_is_absent_for_both(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[2].texts["nvmlDeviceGetPciInfo"] = fake.scenario.devices[1].texts["nvmlDeviceGetPciInfo"]
    fake.apply()
    round_ = await start(fake).read(Lane.STATIC)
    for index in (1, 2):
        found = device(round_, index)
        assert found.view is not None
        assert found.view.key == f"gpu/{fake.scenario.devices[index].uuid}"
        assert found.values["gpu_pci_address"] == Absent(Reason.NO_DATA, "nvmlDeviceGetPciInfo_v3")


async def test_devices_with_identical_identity_are_left_out(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[2].texts = dict(fake.scenario.devices[1].texts)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert sum(sample.view is not None for sample in round_.samples) == 6
    assert any("index 2" in error for error in round_.errors)


@pytest.mark.parametrize(
    ("code", "reason"), [(999, Reason.DRIVER_ERROR), (10, Reason.TIMEOUT), (3, Reason.NOT_SUPPORTED)]
)
async def test_missing_pci_address_has_a_reason(fake: FakeNvml, start: Start, code: int, reason: Reason) -> None:
    fake.scenario.fault("nvmlDeviceGetPciInfo_v3", gpu=2, code=code)
    fake.apply()
    found = device(await start(fake).read(Lane.STATIC), 2).values["gpu_pci_address"]
    assert isinstance(found, Absent)
    assert (found.reason, found.detail.partition(":")[0]) == (reason, "nvmlDeviceGetPciInfo_v3")


ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in (0x1B, 0x2B, 0x3B)]


def attached(index: int) -> AttachedRecord:
    return AttachedRecord(index, f"GPU-{index}", ADDRESSES[index])


def test_unnamed_device_has_the_only_address_that_is_left() -> None:
    """Of a GPU that was lost before the agent started, only the kernel knows the address."""
    found = DeviceTracker().identify(3, {0: attached(0), 2: attached(2)}, session=1, bound=ADDRESSES)
    assert found[1] == Identity(None, ADDRESSES[1])
    more = DeviceTracker().identify(3, {0: attached(0)}, session=1, bound=ADDRESSES)
    assert set(more) == {0}
    functions = DeviceTracker().identify(3, {0: attached(0), 2: attached(2)}, bound=[*ADDRESSES, "0000:1b:00.4"])
    assert set(functions) == {0, 2}


def test_devices_that_failed_together_have_the_addresses_left() -> None:
    tracker = DeviceTracker()
    tracker.identify(3, {0: attached(0), 1: attached(1)}, session=1, bound=ADDRESSES)
    one = {0: attached(0)}
    found = tracker.identify(3, one, session=2, bound=ADDRESSES, codes={1: 15, 2: 15})
    known, unknown = found[1], found[2]
    assert known == Identity("GPU-1", ADDRESSES[1], has_index=False)
    assert unknown == Identity(None, ADDRESSES[2], has_index=False)
    differing = tracker.identify(3, one, session=2, bound=ADDRESSES, codes={1: 15, 2: 16})
    assert differing == {at: one._replace(has_code=at == 0) for at, one in found.items()}
    assert set(tracker.identify(3, one, session=2, bound=ADDRESSES, codes={1: 15})) == {0}  # the other one hangs


def test_known_device_that_left_the_bus_names_no_other() -> None:
    tracker = DeviceTracker()
    every = {index: attached(index) for index in range(3)}
    tracker.identify(3, every, session=1, bound=ADDRESSES)
    del every[1]
    other = [ADDRESSES[0], "0000:77:00.0", ADDRESSES[2]]
    assert tracker.identify(3, every, session=2, bound=other)[1] == Identity(None, "0000:77:00.0")
    assert tracker.identify(3, every, session=2, bound=ADDRESSES)[1] == Identity("GPU-1", ADDRESSES[1])
