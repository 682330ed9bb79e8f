"""Random jobs on a real SLURM with two nodes on this machine, their cgroups as trees on disk, and the truth.

The truth about a job is what SLURM wrote into its environment, which the job stores in a file when it starts. The
holder source reads the controller instead.
"""

import asyncio
import random
import time
from pathlib import Path

import msgspec

from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.fleet.attribution.device_index import DeviceIndex, IndexedDevice
from gpufleet.fleet.attribution.holdings import Answer, HoldingTracker
from gpufleet.holders.slurm import SlurmHolders
from gpufleet.holders.slurm.fetch import environment
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import HolderKind
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.holder import HolderId
from tests.support.placements import Score, count_devices
from tests.support.slurm import Node as SlurmNode
from tests.support.slurm import Slurm, slurm
from tests.support.tree_placements import FIRST, ProcessTrees, TreeProcess

NODES = (
    SlurmNode(
        "n1", "gpu:h100:5", ("Name=gpu Type=h100 File={dev}/nvidia[5,2]", "Name=gpu Type=h100 File={dev}/nvidia[0-1,7]")
    ),
    SlurmNode(
        "n2", "gpu:b:1,gpu:a:2", ("Name=gpu Type=a File={dev}/nvidia[6,3]", "Name=gpu Type=b File={dev}/nvidia4")
    ),
)
MINORS = {"n1": (5, 2, 0, 1, 7), "n2": (4, 6, 3)}
"""Numbers of the device files by SLURM's index: in the order of the types, then of the lines."""

QUERIES = 100
"""Queries to the controller after which a round without a placement of every job is not scored."""

STEP = "srun --exact -n1 --gres=gpu:1 sleep 1000 & "


class Job(msgspec.Struct):
    """A running job: its node, the minors of its GPUs, and whether it has a step on the first only."""

    id: int
    node: str
    minors: tuple[int, ...]
    has_step: bool


class SlurmJobs:
    """Jobs that start and end at random.

    Args:
        seed: decides the changes. Which GPU a job has, SLURM decides.
        running: SLURM with `NODES`.
        root: folder of the trees.
    """

    def __init__(self, seed: int, running: Slurm, root: Path) -> None:
        self.random = random.Random(seed)
        self.placements = 0
        self.outage = 0
        self._settled = True
        self._slurm, self._truth = running, root / "truth"
        self._truth.mkdir()
        self._steps: set[int] = set()
        self._trees = ProcessTrees(root)
        uuids = self.random.sample(range(8), 8)
        gpus = [View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}") for number in uuids]
        self._views = {minor: gpu.key for minor, gpu in enumerate(gpus)}
        self.index = DeviceIndex([IndexedDevice(gpu, minor=minor) for minor, gpu in enumerate(gpus)])
        self._source = SlurmHolders(
            LocalExec(environment=environment(running.environment)),
            LocalFiles(),
            host="",
            nodes=tuple(MINORS),
            folder=str(running.folder),
        )
        self.jobs: list[Job] = []

    def step(self) -> None:
        """Change some jobs, or stop or start the controller, until SLURM has placed every job that fits."""
        if self.outage:
            self.outage -= 1
            if self.outage == 0:
                self._slurm.start_controller()
            return
        if self._settled:
            for _ in range(self.random.choice((1, 1, 2, 3))):
                self.random.choice((self._submit, self._submit, self._cancel))()
        queries = (self._placed_jobs() for _ in range(QUERIES))
        placed = next((jobs for jobs in queries if jobs is not None), None)
        self._settled = placed is not None
        if placed is None:
            return
        self.jobs = placed
        if self.random.random() < 0.08:
            self._slurm.stop_controller()
            self.outage = self.random.randint(1, 3)

    def is_unchanged(self) -> bool:
        """Return whether every job is placed, and no waiting job has started since: the truth lacks such a job."""
        if self.outage or not self._settled:
            return self._settled
        return {job for job, state in self._slurm.states().items() if state == "RUNNING"} == {
            str(job.id) for job in self.jobs
        }

    def truth(self) -> dict[str, set[HolderId]]:
        """Return the holders of each device."""
        truth: dict[str, set[HolderId]] = {view: set() for view in self.index.leaves}
        for job in self.jobs:
            for minor in job.minors:
                truth[self._views[minor]].add((HolderKind.JOB, str(job.id)))
        return truth

    def answers(self) -> dict[str, Answer]:
        """Return what SLURM's controller and the processes show."""
        try:
            declared: Answer = asyncio.run(self._source.report())
        except HolderError as error:
            declared = error
        processes = [self._process(job) for job in self.jobs if job.id % 3]
        living = [_cgroup(job) for job in self.jobs]
        self._trees.show(processes, living, sees_host=True, sees_cgroups=True)
        return {"slurm": declared, "processes": self._trees.answer()}

    def _process(self, job: Job) -> TreeProcess:
        used = job.minors[:1] if job.has_step else job.minors
        return TreeProcess(FIRST + job.id, _cgroup(job), views=[self._views[minor] for minor in used])

    def _submit(self) -> None:
        node = self.random.choice(tuple(MINORS))
        count = self.random.choice((1, 1, 2, 3) if node == "n1" else (1, 1, 2))
        gpu = self.random.choice(("gpu:a", "gpu:b")) if node == "n2" and count == 1 else "gpu"
        options = ["-w", node, "-n", "2", f"--gres={gpu}:{count}", "-J", f"{self.random.choice('abc')}-{count}"]
        has_step = count > 1 and self.random.random() < 0.5
        if not has_step and self.random.random() < 0.3:
            options += ["-a", "3,7"]
        file = f"{self._truth}/$SLURM_JOB_ID"
        script = f'echo "$SLURMD_NODENAME $SLURM_JOB_GPUS" > {file}.new; mv {file}.new {file}; '
        job = self._slurm.submit(*options, script=script + (STEP if has_step else "") + "sleep 1000")
        if has_step:
            self._steps.add(job)
        self.placements += 2 if "-a" in options else 1

    def _cancel(self) -> None:
        if self.jobs:
            self._slurm.run("scancel", str(self.jobs.pop(self.random.randrange(len(self.jobs))).id))

    def _placed_jobs(self) -> list[Job] | None:
        """Return the running jobs. None while a job does not wait for GPUs and has not stored them."""
        found: list[Job] = []
        for line in self._slurm.run("squeue", "-h", "-o", "%A %T %r").splitlines():
            job, state, reason = line.split(maxsplit=2)
            stored = self._truth / job
            if state == "RUNNING" and stored.exists():
                node, indexes = stored.read_text().split()
                minors = tuple(MINORS[node][int(index)] for index in indexes.split(","))
                found.append(Job(int(job), node, minors, int(job) in self._steps))
            elif state != "PENDING" or reason == "None":
                return None
        return found


def _cgroup(job: Job) -> str:
    step = "step_0" if job.has_step else "step_batch"
    return f"/system.slice/{job.node}_slurmstepd.scope/job_{job.id}/{step}/user/task_0"


def run_over_slurm(seed: int, rounds: int, folder: Path, program: Path) -> Score:
    """Run jobs on a real SLURM, and score each device in each round.

    Args:
        seed: of the changes.
        rounds: number of rounds.
        folder: folder of all files.
        program: the unpacked slurmctld.
    """
    score, tracker = Score(), HoldingTracker()
    root = folder / "root"
    root.mkdir()
    with slurm(folder / "slurm", program, NODES) as running:
        jobs = SlurmJobs(seed, running, root)
        for _ in range(rounds):
            jobs.step()
            result = tracker.update(jobs.answers(), jobs.index, time.time_ns())
            if jobs.is_unchanged():
                count_devices(score, jobs.truth(), result)
        score.placements = jobs.placements
    return score
