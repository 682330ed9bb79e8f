"""Workloads over scripted commands: missing tools, refusals, failed repeats."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpufleet.bench.capture import CAPTURED
from gpufleet.bench.fio import JOBS
from gpufleet.bench.workloads import CONNECT_ATTEMPTS, WorkloadRunner
from gpufleet.channels.local import LocalExec
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.ports.channel import ExecResult
from gpufleet.probe.measurements import MeasurementList
from gpufleet.probe.records import Measurement
from gpufleet.probe.runner import CommandRunner
from tests.bench.test_gpu_copies import CSV, output
from tests.bench.test_perftest import WRITE_BW, WRITE_LAT
from tests.fakes.clock import FakeClock
from tests.fakes.commands import FakeCommands, printed

FIO = (Path(__file__).parents[1] / "data" / "bench" / "fio-3.33.json").read_bytes()
IDLE = {"nvidia-smi --query-compute-apps=pid": printed("")}


def answer_fio(argv: Sequence[str]) -> ExecResult:
    name = next(part.removeprefix("--name=") for part in argv if part.startswith("--name="))
    return printed(FIO.replace(b'"jobname" : "randread_4k_32"', f'"jobname" : "{name}"'.encode()))


def refuse_direct(argv: Sequence[str]) -> ExecResult:
    if "--direct=1" in argv:
        return printed("", code=1, stderr="fio: pid=0, err=22/file:filesetup.c:805, error=Invalid argument\n")
    return answer_fio(argv)


class Bench:
    """Workloads over a fake channel."""

    def __init__(self, channel: FakeCommands, repeats: int = 2) -> None:
        self.channel = channel
        self.measured = MeasurementList()
        self.lines: list[str] = []
        runner = CommandRunner(channel, FakeClock(), CAPTURED)
        self.run = WorkloadRunner(runner, self.measured, repeats, self.lines.append)

    @property
    def found(self) -> dict[str, Measurement]:
        return {one.name: one for one in self.measured.measurements()}


def disk(kind: str = "regular file", **answers: object) -> FakeCommands:
    known = {
        "fio --version": printed("fio-3.33\n"),
        "fio": answer_fio,
        "stat -L": printed(f"{kind}\n"),
        "stat -f": printed("ef53\n"),
    }
    channel = FakeCommands()
    channel.answers = {**known, **answers}  # type: ignore[dict-item]
    return channel


async def test_each_repeat_runs_every_job_once() -> None:
    bench = Bench(disk())
    await bench.run.measure_disk("/data/file")
    names = [part for call in bench.channel.calls for part in call if part.startswith("--name=")]
    assert names == [f"--name={job.name}" for job in JOBS] * 2
    assert {len(one.values) for one in bench.found.values()} == {2}
    assert {(one.target, one.tool_version) for one in bench.found.values()} == {("/data/file", "3.33")}
    assert len(bench.lines) == 6


async def test_refused_direct_io_falls_back_for_all_jobs() -> None:
    bench = Bench(disk(fio=refuse_direct))
    await bench.run.measure_disk("/data/file")
    assert sum("--direct=1" in call for call in bench.channel.calls) == 1
    assert all("--direct=0" in one.arguments for one in bench.found.values())
    assert {len(one.values) for one in bench.found.values()} == {2}


@pytest.mark.parametrize("kind", ["directory", "character special file", "fifo", "regular empty file", "\x1b[2J"])
async def test_other_targets_than_files_and_disks_are_not_opened(kind: str) -> None:
    bench = Bench(disk(kind))
    await bench.run.measure_disk("/dev/watchdog")
    assert {one.absent for one in bench.found.values()} == {Reason.NOT_SUPPORTED}
    assert not any("--readonly" in call for call in bench.channel.calls)


@pytest.mark.parametrize("path", ["/proc/kcore", "/sys/kernel/uevent_seqnum", "LINK"])
async def test_files_of_the_kernel_are_not_opened(path: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/sys/kernel/uevent_seqnum")
    real = LocalExec()

    class Exec(FakeCommands):
        async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
            if argv[0] == "stat":
                return await real.run(argv, timeout_seconds=timeout_seconds, max_output_bytes=max_output_bytes)
            return await super().run(argv, timeout_seconds=timeout_seconds, max_output_bytes=max_output_bytes)

    channel = Exec()
    channel.answers = dict(disk().answers)
    bench = Bench(channel)
    await bench.run.measure_disk(path.replace("LINK", f"{tmp_path}/link"))
    assert {one.absent for one in bench.found.values()} <= {Reason.NOT_SUPPORTED, Reason.READER_FAILED}
    assert not any("--readonly" in call for call in channel.calls)


async def test_missing_fio_is_absent() -> None:
    bench = Bench(FakeCommands())
    await bench.run.measure_disk("/data/file")
    assert {(one.absent, one.failed) for one in bench.found.values()} == {(Reason.NOT_ENABLED, 0)}


async def test_failed_repeat_is_counted_beside_the_others() -> None:
    answers = iter((printed("", code=1, stderr="fio: no"), printed("{}")))

    def sometimes(argv: Sequence[str]) -> ExecResult:
        return next(answers, None) or answer_fio(argv)

    bench = Bench(disk(fio=sometimes), repeats=3)
    await bench.run.measure_disk("/data/file")
    first, second, third = (bench.found[f"fio_{job.name}_latency"] for job in JOBS)
    assert (len(first.values), first.failed, first.absent) == (2, 1, Reason.READER_FAILED)
    assert (len(second.values), second.failed, second.absent) == (2, 1, Reason.INVALID_VALUE)
    assert (len(third.values), third.failed) == (3, 0)


async def test_malformed_target_is_an_error_of_the_caller() -> None:
    bench = Bench(disk())
    with pytest.raises(WireError):
        await bench.run.measure_disk("/a:b")
    assert bench.channel.calls == []


def rdma(bandwidth: object) -> FakeCommands:
    channel = FakeCommands()
    version = {
        f"{program} --version": printed("Version: 6.06\n", code=1) for program in ("ib_write_bw", "ib_write_lat")
    }
    channel.answers = {**version, "ib_write_bw": bandwidth, "ib_write_lat": printed(WRITE_LAT)}  # type: ignore[dict-item]
    return channel


async def test_rdma_tests_of_a_peer_are_measured() -> None:
    bench = Bench(rdma(printed(WRITE_BW)))
    await bench.run.measure_rdma("node-2")
    assert bench.found["rdma_write_bandwidth"].values == pytest.approx((48.5e9, 48.5e9))
    assert bench.found["rdma_write_latency"].arguments[-1] == "PEER"
    assert bench.found["rdma_write_latency"].target == "node-2"


async def test_refused_connection_is_tried_again() -> None:
    refusals = iter([printed("", code=1, stderr="Couldn't connect to node-2:18515")] * 2)
    bench = Bench(rdma(lambda _: next(refusals, None) or printed(WRITE_BW)), repeats=1)
    await bench.run.measure_rdma("node-2")
    assert bench.found["rdma_write_bandwidth"].values == pytest.approx((48.5e9,))
    assert sum(call[0] == "ib_write_bw" for call in bench.channel.calls) == 1 + CONNECT_ATTEMPTS


async def test_rdma_without_hardware_has_the_message_of_the_tool() -> None:
    message = " Unable to find the Infiniband/RoCE device\n"
    bench = Bench(rdma(printed("", code=1, stderr=message)))
    await bench.run.measure_rdma("node-2")
    found = bench.found["rdma_write_bandwidth"]
    assert (found.absent, found.failed) == (Reason.READER_FAILED, 2)
    assert message.strip() in found.detail


async def test_rdma_without_a_peer_runs_nothing() -> None:
    bench = Bench(FakeCommands())
    await bench.run.measure_rdma(None)
    assert bench.channel.calls == []
    assert {one.absent for one in bench.found.values()} == {Reason.NOT_COLLECTED}


async def test_gpu_copies_are_measured_by_nvbandwidth() -> None:
    channel = FakeCommands()
    channel.answers = {**IDLE, "nvbandwidth": lambda argv: printed(output(name=argv[-1]))}
    bench = Bench(channel)
    await bench.run.measure_copies(None)
    assert [one.values for one in bench.found.values()] == [pytest.approx((54.2e9, 54.2e9))] * 4


async def test_bandwidth_test_is_used_without_nvbandwidth() -> None:
    channel = FakeCommands()
    channel.answers = {**IDLE, "bandwidthTest": printed(CSV)}
    bench = Bench(channel)
    await bench.run.measure_copies(None)
    assert {one.tool for one in bench.found.values()} == {"bandwidthTest"}
    assert bench.found["gpu_host_to_device"].values == pytest.approx((12.3e9, 12.3e9))


async def test_gpu_copies_without_a_tool_are_absent() -> None:
    channel = FakeCommands()
    channel.answers = dict(IDLE)
    bench = Bench(channel)
    await bench.run.measure_copies(None)
    assert {(one.tool, one.absent) for one in bench.found.values()} == {("nvbandwidth", Reason.NOT_ENABLED)}


async def test_gpus_in_use_are_not_disturbed() -> None:
    channel = FakeCommands()
    channel.answers = {"nvidia-smi --query-compute-apps=pid": printed("4242\n"), "nvbandwidth": printed("")}
    bench = Bench(channel)
    await bench.run.measure_copies(None)
    assert {one.absent for one in bench.found.values()} == {Reason.NOT_COLLECTED}
    assert [call[0] for call in channel.calls] == ["nvidia-smi"]


async def test_gpu_copies_without_a_driver_run_nothing() -> None:
    bench = Bench(FakeCommands())
    await bench.run.measure_copies(Absent(Reason.NO_DRIVER, "no driver"))
    assert {one.absent for one in bench.found.values()} == {Reason.NO_DRIVER}
    assert bench.channel.calls == []
