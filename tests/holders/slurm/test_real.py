"""The SLURM holder source on a real SLURM with three nodes on this machine."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.holders.slurm import SlurmHolders
from gpufleet.holders.slurm.fetch import environment
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import Share
from gpufleet.ports.channel import ExecResult
from gpufleet.ports.holder import HolderReport, Naming
from tests.support.slurm import Node, Slurm, slurm
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.slow]

NODES = (
    Node(
        "gpu-a100-01",
        "gpu:h100:4",
        ("Name=gpu Type=h100 File={dev}/nvidia[3,1]", "Name=gpu File={dev}/nvidia[0,2] Type=h100"),
    ),
    Node("gpu-a100-02", "gpu:h100:3", ("Name=gpu Type=h100 File={dev}/nvidia[4-5,8]",)),
    Node(
        "mixed1",
        "gpu:b:1,gpu:a:1,shard:4",
        ("Name=gpu Type=a File={dev}/nvidia6", "Name=gpu Type=b File={dev}/nvidia7", "Name=shard Count=4"),
    ),
)  # fmt: skip
A, B, MIXED = (node.name for node in NODES)

HOSTILE = f"x\nJobId=99 JobName=y UserId=root(0) GroupId=root(0) Nodes={A} CPU_IDs=0 Mem=0 GRES=gpu:h100:4(IDX:0-3)"


class CountedExec:
    """The commands of this machine, counted."""

    def __init__(self, channel: LocalExec) -> None:
        self._channel = channel
        self.commands: list[tuple[str, ...]] = []

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        self.commands.append(tuple(argv))
        return await self._channel.run(argv, timeout_seconds=timeout_seconds, max_output_bytes=max_output_bytes)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, peer: Callable[[str], Path]) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm") / "s", peer("slurmctld"), NODES) as started:
        yield started


def commands_of(running: Slurm) -> CountedExec:
    return CountedExec(LocalExec(environment=environment(running.environment)))


def source_of(running: Slurm, commands: CountedExec | None = None, *, host: str = "") -> SlurmHolders:
    found = subprocess.run(["hostname", "-s"], capture_output=True, text=True, check=True).stdout.strip()
    return SlurmHolders(commands or commands_of(running), LocalFiles(), host=host or found, folder=str(running.folder))


def placed(report: HolderReport) -> dict[int, set[str]]:
    """Return job id to its device minors."""
    assert all(device.naming is Naming.MINOR for claim in report.claims for device in claim.devices)
    return {int(claim.holder.id): {device.text for device in claim.devices} for claim in report.claims}


def cancel_all(running: Slurm) -> None:
    (running.folder / "completing").unlink(missing_ok=True)
    if running.states():
        running.run("scancel", *running.states())
    wait_until(lambda: not running.states(), what="no jobs", seconds=30)


async def test_jobs_arrays_and_shards_have_their_devices(running: Slurm) -> None:
    one = running.submit("-w", A, "--gres=gpu:2", "-J", HOSTILE, "-A", f"a Nodes={A} GRES=gpu:4(IDX:0-3)")
    two = running.submit("-w", A, "--gres=gpu:1")
    array = running.submit("-w", B, "--gres=gpu:1", "-a", "3,7,8", "-J", "sweep")
    running.wait_for("RUNNING", one, two, array)
    typed = running.submit("-w", MIXED, "--gres=gpu:a:1")
    running.wait_for("RUNNING", typed)
    shard = running.submit("-w", MIXED, "--gres=shard:2")
    processor = running.submit("-w", A, "-J", "cpu")
    running.wait_for("RUNNING", shard, processor)
    commands = commands_of(running)
    source = source_of(running, commands)
    report = await source.report()
    assert (report.complete, report.detail) == (True, "")
    claims = {int(claim.holder.id): claim for claim in report.claims}
    tasks = {claim.holder.array_task: number for number, claim in claims.items() if claim.holder.array_job}
    assert placed(report) == {
        one: {"3", "1"}, two: {"0"}, typed: {"6"}, shard: {"7"},
        tasks["3"]: {"4"}, tasks["7"]: {"5"}, tasks["8"]: {"8"},
    }  # fmt: skip
    assert claims[one].holder.name.startswith("xJobId=99 JobName=y UserId=root(0)")
    assert claims[one].holder.account == f"a nodes={A} gres=gpu:4(idx:0-3)"
    assert (claims[one].holder.queue, claims[one].holder.nodes, claims[one].holder.gpus) == ("batch", 1, 2)
    assert {claims[number].holder.array_job for number in tasks.values()} == {str(array)}
    assert (claims[shard].share, claims[shard].replicas, claims[shard].resource) == (Share.TIMESLICE, 2, "shard")
    assert claims[two].since is not None
    running.run("scancel", str(shard))
    wait_until(lambda: str(shard) not in running.states(), what="the end of the shard job")
    await source.report()
    commands.commands.clear()
    assert placed(await source.report()).keys() == claims.keys() - {shard}
    assert [argv[0] for argv in commands.commands] == ["scontrol"] * (len(NODES) + len(claims) - 1)
    running.run("scancel", str(two))
    wait_until(lambda: str(two) not in running.states(), what="the job's end")
    three = running.submit("-w", A, "--gres=gpu:1", "-J", "takes the same GPU")
    running.wait_for("RUNNING", three)
    after = placed(await source.report())
    assert (two in after, after[three]) == (False, {"0"})
    cancel_all(running)
    ended = await source.report()
    assert (ended.claims, ended.complete) == ((), True)


async def test_job_has_its_devices_while_a_step_uses_fewer(running: Slurm) -> None:
    job = running.submit("-w", A, "-n", "2", "--gres=gpu:3", script="srun --exact -n1 --gres=gpu:1 sleep 900 & wait")
    wait_until(lambda: f"{job}.0" in running.run("squeue", "-s", "-h", "-o", "%i"), what="the step")
    assert placed(await source_of(running).report()) == {job: {"3", "1", "0"}}
    cancel_all(running)


async def test_heterogeneous_job_spans_nodes(running: Slurm) -> None:
    first = running.submit("-w", A, "--gres=gpu:1", ":", "-w", B, "--gres=gpu:2")
    wait_until(lambda: list(running.states().values()).count("RUNNING") == 2, what="both components", seconds=90)
    report = await source_of(running).report()
    assert placed(report) == {first: {"3"}, first + 1: {"4", "5"}}
    owners = [[owner.name for owner in claim.holder.owners] for claim in report.claims]
    assert owners == [[f"{first}+{number}", str(first)] for number in (0, 1)]
    cancel_all(running)


async def test_suspended_and_completing_jobs_keep_their_devices(running: Slurm) -> None:
    job = running.submit("-N2", "-n2", "-w", f"{A},{B}", "--gres=gpu:1")
    running.wait_for("RUNNING", job)
    source = source_of(running)
    before = placed(await source.report())
    running.run("scontrol", "suspend", str(job))
    assert placed(await source.report()) == before == {job: {"3", "4"}}
    running.run("scontrol", "resume", str(job))
    (running.folder / "completing").touch()
    running.run("scancel", str(job))
    running.wait_for("COMPLETING", job)
    report = await source.report()
    assert (placed(report), report.complete) == (before, True)
    cancel_all(running)
    assert (await source.report()).claims == ()


async def test_other_host_and_missing_controller_are_errors(running: Slurm) -> None:
    with pytest.raises(HolderError) as other:
        await source_of(running, host="no-such-node").report()
    assert other.value.absence is Reason.NOT_ENABLED
    source = source_of(running)
    await source.report()
    running.stop_controller()
    try:
        with pytest.raises(HolderError) as stopped:
            await source.report()
        assert stopped.value.absence in (Reason.READER_FAILED, Reason.TIMEOUT)
    finally:
        running.start_controller()

    async def is_complete() -> bool:
        """Query again: a restarted controller first counts GPUs of jobs that it does not list."""
        return (await source.report()).complete

    await wait_until_async(is_complete, what="a complete report")
