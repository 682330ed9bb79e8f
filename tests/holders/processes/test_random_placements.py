"""Attribution of random holders with processes and cgroups on disk: every device is right or explicitly unknown."""

import itertools
from pathlib import Path

import pytest

from gpufleet.fleet.attribution.holdings import HoldingTracker
from gpufleet.model.holdings import HolderKind, HoldingVerdict
from tests.support.placements import Node, run_node
from tests.support.tree_placements import TreeNode

SEEDS = {
    kind: next(seed for seed in itertools.count() if Node(seed).kind is kind)
    for kind in (HolderKind.POD, HolderKind.JOB, HolderKind.VM)
}


@pytest.mark.parametrize("kind", SEEDS)
@pytest.mark.parametrize("permitted", [True, False])
def test_no_device_is_attributed_to_the_wrong_holder(kind: HolderKind, permitted: bool, tmp_path: Path) -> None:
    score = run_node(TreeNode(SEEDS[kind], tmp_path, permitted=permitted), 15)

    assert score.wrong == 0
    assert score.right > 0


@pytest.mark.parametrize("kind", SEEDS)
def test_processes_of_the_trees_confirm_their_holders(kind: HolderKind, tmp_path: Path) -> None:
    node = TreeNode(SEEDS[kind], tmp_path, permitted=True)
    while not any(one.works for one in node.placed) or node.outage or any(one.stale for one in node.placed):
        node.step()
    working = {one.holder.id for one in node.placed if one.works}
    result = HoldingTracker().update(node.answers(), node.index, node.now)
    agreed = {
        one.holder.id
        for device in result.devices.values()
        for one in device.holdings
        if one.verdict is HoldingVerdict.AGREED
    }

    assert agreed
    assert agreed <= working
