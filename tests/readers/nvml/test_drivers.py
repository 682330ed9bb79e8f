"""Driver versions: missing functions, older structs and renumbered fields."""

from pathlib import Path

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.readers.nvml.child import parse_version
from tests.fakes.nvml.driver import EARLY_535, FakeNvml
from tests.fakes.nvml.scenario import ULONGLONG, Field, Scenario
from tests.readers.nvml.rig import Start, device, dim

G = "nvmlDeviceGet"
RENUMBERED = ("sw_thermal", "hw_thermal", "hw_power_brake")


def scenario(driver: str, gpus: int = 2) -> Scenario:
    made = Scenario.healthy(gpus)
    made.driver = driver
    return made


@pytest.mark.parametrize(
    ("driver", "branch", "why"),
    [
        ("535.183.06", 535, Absent(Reason.NOT_IN_DRIVER, "FI {}")),
        ("570.211.01", 570, Absent(Reason.NOT_IN_DRIVER, "FI {}")),
        ("575.57.08", 575, Absent(Reason.NOT_COLLECTED, "FI {}: its number in this driver version is not proven")),
        ("580.65.06", 580, Absent(Reason.NOT_COLLECTED, "FI {}: its number in this driver version is not proven")),
        ("580.82.07", 580, None),
        ("580.159.04", 580, None),
        ("610.43.02", 610, None),
    ],
)
async def test_driver_dependent_numbers_are_not_queried_elsewhere(
    tmp_path: Path, start: Start, driver: str, branch: int, why: Absent | None
) -> None:
    """Fields 251 to 253 are power smoothing in 570 and since 580.82, and clock event counters in between."""
    made = scenario(driver)
    for each in made.devices:
        each.fields |= {id_: Field(666, ULONGLONG) for id_ in (251, 252, 253)}
    slow = device(await start(FakeNvml(tmp_path, made, branch=branch)).read(Lane.SLOW), 1)
    times = dim(slow, "gpu_clock_event_seconds_total")
    assert times["sw_power_cap"] == made.devices[1].fields[74].value / 1e9
    for at, name in enumerate(RENUMBERED):
        id_ = 269 + at
        if why is None:
            assert times[name] == made.devices[1].fields[id_].value / 1e9
        else:
            assert times[name] == Absent(why.reason, why.detail.format(id_))
    assert 666 / 1e9 not in times.values()


@pytest.mark.parametrize(("driver", "branch"), [("560.35.05", 560), ("570.86.15", 570)])
async def test_an_older_fabric_struct_has_no_summary(tmp_path: Path, start: Start, driver: str, branch: int) -> None:
    made = scenario(driver)
    made.devices[1].become_superchip(1)
    slow = device(await start(FakeNvml(tmp_path, made, branch=branch)).read(Lane.SLOW), 1)
    assert slow.values["gpu_fabric_state"] == "completed"
    assert slow.values["gpu_fabric_clique"] == "4712"
    assert slow.values["gpu_fabric_health_status"] == Absent(Reason.NOT_SUPPORTED, "gpu_fabric_health_status")
    assert dim(slow, "gpu_fabric_health")["route_recovery"] == 1


async def test_longer_process_records_of_early_535_drivers(tmp_path: Path, start: Start) -> None:
    """The wrong record length would yield invented process ids and memory for every second process."""
    made = scenario("535.54.03", gpus=8)
    fake = FakeNvml(tmp_path, made, branch=EARLY_535)
    round_ = await start(fake).read(Lane.FAST)
    for index, fake_device in enumerate(made.devices):
        listed = device(round_, index).processes
        assert listed is not None
        assert [(p.pid, p.values["memory_bytes"]) for p in listed if "compute" in p.kinds] == [
            record[:2] for record in fake_device.rows[f"{G}ComputeRunningProcesses"]
        ]


@pytest.mark.parametrize(
    ("driver", "branch"),
    [
        ("525.147.05", 525),
        ("535.183.06", 535),
        ("550.163.01", 550),
        ("560.35.05", 560),
        ("570.211.01", 570),
        ("580.159.04", 580),
        ("590.48.01", 590),
        ("610.43.02", 610),
    ],
)
async def test_every_branch_reads_every_metric_without_driver_error(
    tmp_path: Path, start: Start, driver: str, branch: int
) -> None:
    made = scenario(driver)
    for index, each in enumerate(made.devices):
        each.become_superchip(index)
    reader = start(FakeNvml(tmp_path, made, branch=branch))
    for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW):
        round_ = await reader.read(lane)
        assert not round_.errors
        sample = device(round_, 1)
        for name, value in [*sample.values.items(), *((dim_.metric, dim_.value) for dim_ in sample.dims)]:
            if not isinstance(value, Absent):
                continue
            documented = {case.reason for case in CATALOGUE[name].absent_when}
            known = documented | {Reason.NOT_IN_DRIVER, Reason.NOT_SUPPORTED}
            assert value.reason in known, (name, value)
            if value.reason is Reason.NOT_IN_DRIVER:
                assert branch < 610, (name, value)


def test_versions_are_compared_as_numbers() -> None:
    assert parse_version("580.159.04") == (580, 159, 4)
    assert parse_version("580.9") < parse_version("580.82.07") < parse_version("580.159.04")
    assert parse_version(None) == parse_version("unknown") == ()
    assert parse_version("610.43-open") == (610,)


async def test_unknown_driver_version_skips_version_dependent_calls(fake: FakeNvml, start: Start) -> None:
    fake.scenario.driver = "built-by-hand"
    fake.apply()
    reader = start(fake)
    fast = device(await reader.read(Lane.FAST), 1)
    assert fast.values["gpu_power_instant_watts"] == Absent(Reason.NOT_IN_DRIVER, "FI 186")
    assert fast.values["gpu_memory_temperature_celsius"] == 42


async def test_fields_that_break_a_batch_are_remembered(tmp_path: Path, start: Start) -> None:
    made = scenario("610.43.02", gpus=1)  # version number that knows 301 and 302, library that does not
    fake = FakeNvml(tmp_path, made, branch=595, log=True)
    reader = start(fake)
    slow = device(await reader.read(Lane.SLOW), 0)
    assert dim(slow, "gpu_remapped_rows_inactive") == {
        "correctable": Absent(Reason.DRIVER_ERROR, "FI 301: INVALID_ARGUMENT"),
        "uncorrectable": Absent(Reason.DRIVER_ERROR, "FI 302: INVALID_ARGUMENT"),
    }
    assert dim(slow, "gpu_clock_event_seconds_total")["hw_thermal"] == 0
    calls_before = fake.calls()[f"{G}FieldValues", 0]
    again = device(await reader.read(Lane.SLOW), 0)
    links = 3 + 1  # three batches of NVLink, and the count of chip-to-chip links, which H200 lacks
    assert fake.calls()[f"{G}FieldValues", 0] - calls_before <= links
    assert dim(again, "gpu_remapped_rows_inactive") == dim(slow, "gpu_remapped_rows_inactive")


async def test_unsupported_field_is_dropped_and_still_reported_absent(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    first = device(await reader.read(Lane.FAST), 1)
    fake.scenario.devices[1].fields[186, 1] = Field(5000)
    fake.apply()
    second = device(await reader.read(Lane.FAST), 1)
    assert first.values["gpu_module_power_watts"] == Absent(Reason.NOT_SUPPORTED, "FI 186")
    assert second.values["gpu_module_power_watts"] == first.values["gpu_module_power_watts"]
    await reader.read(Lane.STATIC)
    assert device(await reader.read(Lane.FAST), 1).values["gpu_module_power_watts"] == 5
