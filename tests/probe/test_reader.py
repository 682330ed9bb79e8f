"""Probe as a reader: when it runs, what a pass returns, and the metrics of a planted machine."""

import asyncio
from pathlib import Path

import pytest

from gpufleet.channels.local import LocalFiles
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, ValueType
from gpufleet.model.errors import ChannelError, ReaderError
from gpufleet.model.reading import Sample
from gpufleet.ports.channel import FetchPlan, FetchResult
from gpufleet.probe.facts import FACTS
from gpufleet.probe.reader import BOOT_SECONDS, COLD, METRICS, REPEAT_SECONDS, ProbeReader
from tests.fakes.clock import FakeClock
from tests.fakes.commands import FakeCommands, printed
from tests.probe.test_machine import TREE
from tests.support.trees import plant

OUTPUTS = {
    "nvidia-smi": printed("| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: 12.4 |"),
    "nvidia-smi -L": printed("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70)"),
    "docker": printed("Docker version 28.2.2, build e6534b4"),
}


class Probed:
    """A planted machine and its reader."""

    def __init__(self, root: Path, *, waits: bool = True) -> None:
        plant(TREE, root)
        self.root, self.clock, self.commands = root, FakeClock(), FakeCommands(**OUTPUTS)
        self.request, self.is_released = 0, False
        self.reader = ProbeReader(
            LocalFiles(root),
            self.commands,
            self.clock,
            requested=lambda: self.request,
            is_released=lambda: self.is_released,
            waits=waits,
        )

    async def read(self) -> Sample | None:
        """Return the sample of a pass."""
        return next(iter((await self.reader.read(Lane.STATIC)).samples), None)

    def write(self, path: str, text: str) -> None:
        """Replace a file of the machine."""
        (self.root / path.lstrip("/")).write_text(text)


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    return Probed(tmp_path)


async def test_probe_is_a_sample_of_the_machine(probed: Probed) -> None:
    sample = await probed.read()
    assert sample is not None
    assert (sample.view, sample.reader, sample.lane) == (None, "probe", Lane.STATIC)
    assert set(sample.values) == {metric.name for metric in METRICS}
    expected = {
        "probe_hugepages": "1048576kB: 64, 2048kB: 0",
        "probe_smt_active": 1,
        "probe_numa_nodes": 3,
        "probe_nvidia_peermem": 1,
        "probe_docker_default_runtime": "nvidia",
        "probe_nvidia_gpus": 1,
        "probe_nvidia_cuda_version": "12.4",
        "probe_docker_version": "28.2.2",
    }
    assert {name: sample.values[name] for name in expected} == expected
    boot = sample.values["probe_boot_kernel_seconds"]
    assert isinstance(boot, Absent)
    assert boot.reason is Reason.NOT_ENABLED


async def test_values_have_the_type_of_their_metric(probed: Probed) -> None:
    sample = await probed.read()
    assert sample is not None
    types = {ValueType.INT: int, ValueType.FLOAT: float, ValueType.TEXT: str}
    for name, value in sample.values.items():
        assert isinstance(value, Absent) or type(value) is types[CATALOGUE[name].type], name


def test_each_metric_has_a_fact_or_a_measurement() -> None:
    facts = {f"probe_{name.removeprefix('host_')}" for name in FACTS}
    assert {one.name for one in METRICS if not one.name.endswith("_seconds")} <= facts


async def test_later_passes_return_the_same_sample(probed: Probed) -> None:
    first = await probed.read()
    calls = len(probed.commands.calls)
    probed.clock.advance(600)
    assert await probed.read() is first
    assert len(probed.commands.calls) == calls


@pytest.mark.parametrize("cause", ["boot", "request", "age", "booting"])
async def test_probe_runs_again_when_it_is_due(probed: Probed, cause: str) -> None:
    if cause == "booting":
        probed.write("/proc/uptime", f"{BOOT_SECONDS - 1} 1.0\n")
    first = await probed.read()
    probed.clock.advance(REPEAT_SECONDS if cause == "age" else 600)
    probed.request += cause == "request"
    if cause == "boot":
        probed.write("/proc/sys/kernel/random/boot_id", "9c2c3b3e-7d1a-4e0e-9d3f-1f2f3f4f5f6f\n")
    probed.write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n")
    again = await probed.read()
    assert first is not None
    assert again is not None
    assert again.measured_at > first.measured_at
    assert again.values["probe_hugepages"] == "1048576kB: 64, 2048kB: 512"


async def test_first_call_of_a_boot_stays_the_cold_one(probed: Probed) -> None:
    def slow(seconds: float) -> None:
        def call(_: object) -> object:
            probed.clock.advance(seconds)
            return OUTPUTS["nvidia-smi"]

        probed.commands.answers["nvidia-smi"] = call  # type: ignore[assignment]

    slow(7.0)
    first = await probed.read()
    slow(1.0)
    probed.request += 1
    second = await probed.read()
    probed.write("/proc/sys/kernel/random/boot_id", "9c2c3b3e-7d1a-4e0e-9d3f-1f2f3f4f5f6f\n")
    third = await probed.read()
    assert [one.values[COLD] for one in (first, second, third) if one is not None] == [7.0, 7.0, 1.0]


async def test_first_pass_of_an_agent_does_not_wait(tmp_path: Path) -> None:
    probed = Probed(tmp_path, waits=False)
    assert await probed.read() is None
    assert await probed.read() is not None


async def test_running_probe_ends_with_the_reader(tmp_path: Path) -> None:
    probed = Probed(tmp_path, waits=False)
    await probed.read()
    running = {task for task in asyncio.all_tasks() if task.get_name() == "performance probe"}
    await probed.reader.close()
    assert {task.cancelled() for task in running} == {True}


async def test_no_probe_is_started_while_the_gpus_are_released(probed: Probed) -> None:
    probed.is_released = True
    assert await probed.read() is None
    assert probed.commands.calls == []
    probed.is_released = False
    assert await probed.read() is not None


class BrokenFiles:
    """Files of a guest that is gone."""

    async def fetch(self, plan: FetchPlan) -> FetchResult:
        raise ChannelError("the guest is gone")


async def test_broken_channel_is_an_error_of_the_reader() -> None:
    reader = ProbeReader(BrokenFiles(), FakeCommands(), FakeClock())
    with pytest.raises(ReaderError) as caught:
        await reader.read(Lane.STATIC)
    assert caught.value.absence is Reason.READER_FAILED
