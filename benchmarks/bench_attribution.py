"""Attribution of devices to holders on random placements, beside a guess by order.

Method: simulated nodes with 8 GPUs (whole, time-sliced or MIG), one round each 10 s. In each round up to four holders
start, end, or are recreated under their name on other devices. In 3 % of the rounds the kubelet, SLURM or libvirt
begins to fail for up to 80 s. In 3 % the kubelet restarts and lists few pods for up to 200 s. In 1 % the agent
restarts. Each device is scored in each round: right, explicitly unknown, or wrong. "All permissions" has cgroups,
processes and pod UIDs all the time; "few permissions" lacks some on most nodes. The guess gives the pods, sorted by
name, the GPUs in the driver's order, as some exporters do; it is scored on whole GPUs that pods hold.
"""

import sys
import time

from benchmarks.table import Table
from tests.support.placements import Node, Score, run

NODES, ROUNDS = 150, 200


def total(*, permitted: bool) -> Score:
    """Return the sum over all nodes."""
    score = Score()
    for seed in range(NODES):
        one = run(seed, ROUNDS, permitted=permitted)
        for field in Score.__struct_fields__:
            setattr(score, field, getattr(score, field) + getattr(one, field))
    return score


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
    return int(wrong > 0)


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
