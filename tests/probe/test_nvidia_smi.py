"""Latency of nvidia-smi, its failures, and the facts that it reports."""

from pathlib import Path

import pytest

from gpufleet.channels.local import LocalExec
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import ChannelTimeoutError
from gpufleet.probe.facts import FactList
from gpufleet.probe.measurements import MeasurementList
from gpufleet.probe.nvidia_smi import PAUSE_SECONDS, busy_gpus, probe_nvidia_smi
from gpufleet.probe.runner import CommandRunner
from gpufleet.runtime import SystemClock
from tests.fakes.commands import Answer, FakeCommands, printed
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi, scenario_of_capture

H200 = "capture-h200__590.48.01.txt"
PLAIN = "| NVIDIA-SMI 590.48.01   Driver Version: 590.48.01   CUDA Version: 13.1 |\n"


@pytest.fixture
def smi(tmp_path: Path) -> FakeNvidiaSmi:
    return FakeNvidiaSmi(tmp_path, **scenario_of_capture(H200, "idle"), other=PLAIN)


async def probe(smi: FakeNvidiaSmi, repeats: int = 2) -> tuple[Absent | None, FactList, MeasurementList]:
    facts, measurements = FactList(), MeasurementList()
    runner = CommandRunner(LocalExec(environment=smi.environment), SystemClock())
    return await probe_nvidia_smi(runner, repeats, facts, measurements), facts, measurements


async def test_first_and_later_calls_are_measured(smi: FakeNvidiaSmi) -> None:
    failure, facts, measurements = await probe(smi, repeats=3)
    cold, warm = measurements.measurements()
    assert failure is None
    assert (len(cold.values), len(warm.values)) == (1, 3)
    assert min(cold.values + warm.values) > 0
    assert smi.calls[:4] == [""] * 4
    assert [facts.value(name) for name in ("nvidia_gpus", "nvidia_driver_version", "nvidia_cuda_version")] == [
        1, "590.48.01", "13.1",
    ]  # fmt: skip


async def test_repeated_calls_have_a_pause(smi: FakeNvidiaSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without it, 12 of 100 comparisons of an unchanged machine found a difference (`python -m benchmarks captures`).
    pauses: list[float] = []

    async def record(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("gpufleet.probe.nvidia_smi.asyncio.sleep", record)
    await probe(smi, repeats=3)
    assert [seconds for seconds in pauses if seconds >= 0.05] == [PAUSE_SECONDS] * 2


async def test_properties_of_a_gpu_are_facts(smi: FakeNvidiaSmi) -> None:
    (row,) = smi.scenario["rows"]
    row |= {"power.limit": "600.00 W", "enforced.power.limit": "550.00 W"}  # requested, and in force
    smi.write()
    _, facts, _ = await probe(smi)
    found = {fact.name: fact for fact in facts.facts if fact.subject}
    assert found["gpu_persistence_mode"].value == row["persistence_mode"]
    assert found["gpu_power_limit_watts"].value == float(row["enforced.power.limit"].removesuffix(" W"))
    assert found["gpu_sm_clock_max_hertz"].value == float(row["clocks.max.sm"].removesuffix(" MHz")) * 1e6


@pytest.mark.parametrize(
    ("product", "mode", "hidden"),
    [
        ("NVIDIA RTXA6000-24Q", "Disabled", Reason.NOT_IN_GUEST),
        ("NVIDIA A100-1-5C", "Enabled", None),
        ("NVIDIA A100-SXM4-40GB", "Disabled", None),
    ],
)
async def test_facts_that_a_vgpu_guest_cannot_see_are_absent(
    smi: FakeNvidiaSmi, product: str, mode: str, hidden: Reason | None
) -> None:
    (row,) = smi.scenario["rows"]
    unsupported = dict.fromkeys(("ecc.mode.current", "enforced.power.limit", "clocks.max.sm"), "[N/A]")
    smi.write(rows=[{**row, **unsupported, "name": product, "mig.mode.current": mode}])
    _, facts, _ = await probe(smi, repeats=1)
    found = {fact.name: fact.absent or fact.value for fact in facts.facts if fact.subject}
    without = Reason.NOT_SUPPORTED if "SXM" in product else Reason.NOT_IN_GUEST
    assert found["gpu_mig_mode"] == (hidden or mode)
    assert [found["gpu_power_limit_watts"], found["gpu_sm_clock_max_hertz"]] == [without, without]
    assert found["gpu_ecc_mode"] is Reason.NOT_SUPPORTED  # as for a chip without ECC


@pytest.mark.parametrize(
    ("cells", "version", "reason"),
    [
        (("[N/A]",), None, Reason.NOT_SUPPORTED),  # an Orin with release 540.3.0
        (("[GPU is lost]", "590.48.01"), "590.48.01", None),
        (("[GPU is lost]",), None, Reason.GPU_LOST),
        (("590.48.01", "535.1"), None, Reason.NO_DATA),
    ],
)
async def test_placeholder_is_no_driver_version(
    smi: FakeNvidiaSmi, cells: tuple[str, ...], version: str | None, reason: Reason | None
) -> None:
    (row,) = smi.scenario["rows"]
    smi.write(rows=[{**row, "driver_version": cell} for cell in cells])
    _, facts, _ = await probe(smi, repeats=1)
    found = {fact.name: (fact.value, fact.absent) for fact in facts.facts}
    assert found["nvidia_driver_version"] == (version, reason)


async def test_failed_call_has_the_exit_code_and_message(smi: FakeNvidiaSmi) -> None:
    message = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    smi.fault("*", stdout=message, code=9)
    failure, facts, measurements = await probe(smi)
    assert failure is not None
    assert failure.reason is Reason.NO_DRIVER
    assert message in failure.detail
    assert facts.value("nvidia_smi_exit_code") == 9
    assert [(one.absent, one.values) for one in measurements.measurements()] == [(Reason.NO_DRIVER, ())] * 2
    assert len(smi.calls) == 1


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({}, Reason.NOT_ENABLED),
        ({"nvidia-smi": printed("", code=126)}, Reason.NOT_PERMITTED),
        ({"nvidia-smi": ChannelTimeoutError("nvidia-smi: no answer within 60 s")}, Reason.TIMEOUT),
    ],
)
async def test_call_that_did_not_run_has_no_exit_code(answers: dict[str, Answer], reason: Reason) -> None:
    facts = FactList()
    runner = CommandRunner(FakeCommands(**answers), SystemClock())
    assert await probe_nvidia_smi(runner, 1, facts, MeasurementList()) is not None
    found = {fact.name: (fact.value, fact.absent) for fact in facts.facts}
    assert found["nvidia_smi_exit_code"] == (None, reason)


async def test_forged_output_costs_its_own_facts_only(smi: FakeNvidiaSmi) -> None:
    smi.fault("list", stdout="GPU 0: \x1b[2J forged\n" * 1000)
    smi.fault("table", stdout='{"driver_version": "1"}')
    failure, facts, measurements = await probe(smi)
    assert failure is None
    absent = {fact.name: fact.absent for fact in facts.facts if fact.absent}
    assert set(absent) == {"nvidia_gpus", "nvidia_driver_version"}
    assert facts.value("nvidia_cuda_version") == "13.1"
    assert len(measurements.measurements()[1].values) == 2


async def test_gpus_with_processes_are_busy(smi: FakeNvidiaSmi) -> None:
    runner = CommandRunner(LocalExec(environment=smi.environment), SystemClock())
    smi.write(apps="")
    assert await busy_gpus(runner) is None
    smi.write(apps="4242\n")
    assert isinstance(await busy_gpus(runner), Absent)
