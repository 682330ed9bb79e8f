"""Attribution of devices to holders on random placements, beside a guess by order.

Method: simulated nodes with 8 GPUs (whole, MIG, or shared by time slices, claims or MPS; for virtual machines whole or
vGPUs), one round each 10 s. In each round up to four holders
start, end, are requeued, or are recreated under their name on other devices. In 3 % of the rounds the kubelet, SLURM
or libvirt begins to fail for up to 80 s. In 3 % the kubelet restarts and lists few pods for up to 200 s. In 5 % the
MIG layout of a GPU changes, in 1 % the agent restarts, in 0.5 % the node reboots. Local users run processes in
cgroups with the names of holders. GPUs of virtual machines can share an IOMMU group. Each device is scored in each
round: right, explicitly unknown, or wrong. "All permissions" has cgroups, processes and pod UIDs all the time; "few
permissions" lacks some on most nodes. The guess gives the pods, sorted by name, the GPUs in the driver's order, as
some exporters do; it is scored on whole GPUs that pods hold.

In the second table, holder sources read the node. A fake kubelet serves the pods over its gRPC protocol, with the
device ids of the device plugins. Processes and cgroups, also of jobs and virtual machines, are trees of /proc, /sys and
cgroup file systems on disk, in the forms of several container runtimes. Jobs run on a real SLURM with two nodes: they
start and end, are in arrays, and have steps with fewer GPUs; its controller fails in 8 % of the rounds. The truth about
a job is what SLURM wrote into its environment. A round in which a waiting job starts is not scored.

The third table compares the holdings that a hub receives with the true intervals. The agent is killed in 5 % of the
rounds, and 20 % of its batches cannot be queued. "Wrong" covers more than a round in which the holder did not have the
device; "overlapping" would count hours twice.
"""

import asyncio
import itertools
import logging
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.table import Table
from gpufleet.agent.collect.holders import SavedHoldings
from gpufleet.agent.collect.saved import SavedFile
from gpufleet.model.holdings import HolderKind
from tests.support import peers
from tests.support.kubelet_placements import is_of_pods, run_over_grpc
from tests.support.placements import Intervals, Node, Score, deliver, run, run_node
from tests.support.slurm_placements import run_over_slurm
from tests.support.tree_placements import TreeNode

NODES, ROUNDS = 150, 200
SOURCE_NODES, SOURCE_ROUNDS = 5, 40
SLURM_RUNS, SLURM_ROUNDS = 4, 15


def total(*, permitted: bool) -> Score:
    """Return the sum over all nodes."""
    return _sum(run(seed, ROUNDS, permitted=permitted) for seed in range(NODES))


def total_over_grpc(*, permitted: bool) -> Score:
    """Return the sum over the first nodes of pods."""
    seeds = itertools.islice(filter(is_of_pods, itertools.count()), SOURCE_NODES)
    return _sum(run_over_grpc(seed, SOURCE_ROUNDS, permitted=permitted) for seed in seeds)


def total_over_trees(kind: HolderKind, *, permitted: bool) -> Score:
    """Return the sum over the first nodes of a kind of holders, with processes and cgroups on disk."""
    seeds = itertools.islice((seed for seed in itertools.count() if Node(seed).kind is kind), SOURCE_NODES)
    return _sum(_over_trees(seed, permitted=permitted) for seed in seeds)


def _over_trees(seed: int, *, permitted: bool) -> Score:
    with tempfile.TemporaryDirectory() as folder:
        return run_node(TreeNode(seed, Path(folder), permitted=permitted), SOURCE_ROUNDS)


def total_over_slurm() -> Score | None:
    """Return the sum of the runs on a real SLURM; None without it."""
    program = peers.find("slurmctld")
    return None if program is None else _sum(_over_slurm(seed, program) for seed in range(SLURM_RUNS))


def _over_slurm(seed: int, program: Path) -> Score:
    with tempfile.TemporaryDirectory() as folder:
        return run_over_slurm(seed, SLURM_ROUNDS, Path(folder), program)


def _sum(scores: Iterable[Score]) -> Score:
    total = Score()
    for one in scores:
        for field in Score.__struct_fields__:
            setattr(total, field, getattr(total, field) + getattr(one, field))
    return total


def main() -> int:
    """Print the table; return 1 if a device was attributed to the wrong holder."""
    table = Table(
        f"Attribution, {NODES} nodes x {ROUNDS} rounds",
        *("sources", "placements", "device states", "right", "unknown", "wrong", "guess by order right", "us a round"),
    )
    wrong = 0
    for name, permitted in (("all permissions", True), ("few permissions", False)):
        began = time.process_time()
        score = total(permitted=permitted)
        seconds = time.process_time() - began - idle_seconds(permitted=permitted)
        states = score.right + score.unknown + score.wrong
        wrong += score.wrong
        table.row(
            name,
            f"{score.placements:,}",
            f"{states:,}",
            f"{score.right / states:.1%}",
            f"{score.unknown / states:.1%}",
            f"{score.wrong:,}",
            f"{score.guessed_right / max(1, score.guessed):.1%}",
            f"{seconds / NODES / ROUNDS * 1e6:,.0f}",
        )
    table.print()
    wrong += over_sources()
    found = delivered()
    intervals = Table("Intervals at a hub", "true", "certain holdings", "wrong", "overlapping")
    intervals.row(f"{found.true:,}", f"{found.stored:,}", f"{found.wrong:,}", f"{found.overlapping:,}")
    intervals.print()
    return int(wrong + found.wrong + found.overlapping > 0)


def over_sources() -> int:
    """Print the table of the real sources; return the number of wrong devices."""
    title = f"Over the sources, {SOURCE_NODES} nodes x {SOURCE_ROUNDS} rounds each, SLURM {SLURM_RUNS} x {SLURM_ROUNDS}"
    table = Table(title, *("holders", "sources", "placements", "device states", "right", "unknown", "wrong"))
    scores: list[tuple[str, str, Score | None]] = []
    for name, permitted in (("all permissions", True), ("few permissions", False)):
        scores += [
            ("pods: gRPC and trees", name, total_over_grpc(permitted=permitted)),
            ("jobs: trees", name, total_over_trees(HolderKind.JOB, permitted=permitted)),
            ("virtual machines: trees", name, total_over_trees(HolderKind.VM, permitted=permitted)),
        ]
    scores.append(("jobs: real SLURM and trees", "all permissions", total_over_slurm()))
    for holders, name, score in scores:
        if score is None:
            table.row(holders, name, "slurmctld is missing: run `make peers`", "", "", "", "")
            continue
        states = score.right + score.unknown + score.wrong
        shares = (f"{score.right / states:.1%}", f"{score.unknown / states:.1%}")
        table.row(holders, name, f"{score.placements:,}", f"{states:,}", *shares, f"{score.wrong:,}")
    table.print()
    return sum(score.wrong for _, _, score in scores if score is not None)


def delivered() -> Intervals:
    """Return the sum of the interval comparisons over all nodes."""
    logging.disable(logging.ERROR)  # the failing sources
    total = Intervals()
    for seed in range(NODES):
        with tempfile.TemporaryDirectory() as folder:
            file = SavedFile(Path(folder, "holdings.json"), SavedHoldings, loss="holdings begin again")
            one = asyncio.run(deliver(seed, ROUNDS // 2, file, permitted=bool(seed % 2)))
        for field in Intervals.__struct_fields__:
            setattr(total, field, getattr(total, field) + getattr(one, field))
    return total


def idle_seconds(*, permitted: bool) -> float:
    """Return the processor time of the simulation itself."""
    began = time.process_time()
    for seed in range(NODES):
        node = Node(seed, permitted=permitted)
        for _ in range(ROUNDS):
            node.step()
            node.answers()
            node.truth()
            node.guess()
    return time.process_time() - began


if __name__ == "__main__":
    sys.exit(main())
