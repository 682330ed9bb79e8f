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

In the second table, a fake kubelet serves the pods over its gRPC protocol, with the device ids of the device plugins,
and the kubelet source reads them.

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
from tests.support.kubelet_placements import is_of_pods, run_over_grpc
from tests.support.placements import Intervals, Node, Score, deliver, run

NODES, ROUNDS = 150, 200
GRPC_NODES, GRPC_ROUNDS = 10, 60


def total(*, permitted: bool) -> Score:
    """Return the sum over all nodes."""
    return _sum(run(seed, ROUNDS, permitted=permitted) for seed in range(NODES))


def total_over_grpc(*, permitted: bool) -> Score:
    """Return the sum over the first nodes of pods."""
    seeds = itertools.islice(filter(is_of_pods, itertools.count()), GRPC_NODES)
    return _sum(run_over_grpc(seed, GRPC_ROUNDS, permitted=permitted) for seed in seeds)


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
    over_grpc = Table(
        f"Pods over gRPC, {GRPC_NODES} nodes x {GRPC_ROUNDS} rounds",
        *("sources", "placements", "device states", "right", "unknown", "wrong"),
    )
    for name, permitted in (("all permissions", True), ("few permissions", False)):
        score = total_over_grpc(permitted=permitted)
        states = score.right + score.unknown + score.wrong
        wrong += score.wrong
        over_grpc.row(
            name,
            f"{score.placements:,}",
            f"{states:,}",
            f"{score.right / states:.1%}",
            f"{score.unknown / states:.1%}",
            f"{score.wrong:,}",
        )
    over_grpc.print()
    found = delivered()
    intervals = Table("Intervals at a hub", "true", "certain holdings", "wrong", "overlapping")
    intervals.row(f"{found.true:,}", f"{found.stored:,}", f"{found.wrong:,}", f"{found.overlapping:,}")
    intervals.print()
    return int(wrong + found.wrong + found.overlapping > 0)


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
