"""Kubernetes nodes and machines: matched by identity."""

from typing import Any

import pytest

from gpufleet.fleet.cluster_nodes import (
    NodeDeletion,
    NodeMatch,
    hiding_taints,
    match_node,
    node_deletion,
    pool_labels,
    search_names,
)
from gpufleet.model.kubernetes import ClusterNode, NodeTaint
from gpufleet.model.machine import Machine
from gpufleet.model.stored.kubernetes import StoredObject, object_names

ID, OTHER = "1" * 32, "2" * 32
UUID = "00000000-0000-4000-8000-000000000001"


def node(uid: str = "uid-1", name: str = "gpu-1", **fields: Any) -> ClusterNode:
    return ClusterNode(uid=uid, name=name, **fields)


@pytest.mark.parametrize(
    ("machine", "nodes", "expected"),
    [
        (Machine(name="x", k8s_node_uid="uid-1"), [node(), node("uid-2", "x")], "uid-1"),
        (Machine(name="x", system_uuid=UUID), [node(system_uuid=UUID.upper()), node("uid-2", "x")], "uid-1"),
        (Machine(name="x", machine_id=ID), [node(machine_id=ID)], "uid-1"),
        # a cloned machine id is not enough if the system UUID differs
        (Machine(name="x", machine_id=ID, system_uuid=UUID), [node(machine_id=ID, system_uuid=OTHER)], None),
        (Machine(name="gpu-1"), [node(machine_id=ID)], "uid-1"),
        (Machine(name="GPU-1"), [node()], "uid-1"),
        (Machine(name="host", k8s_node_name="gpu-1"), [node(), node("uid-2", "host")], "uid-1"),
        (Machine(name="gpu-1", machine_id=OTHER), [node(machine_id=ID)], None),
        (Machine(name="gpu-1", k8s_node_uid="old"), [node()], None),
        (Machine(name="gpu-1", k8s_node_uid="old", machine_id=ID), [node(machine_id=ID)], "uid-1"),
        (Machine(name="gpu-2"), [node()], None),
    ],
)  # fmt: skip
def test_node_of_a_machine(machine: Machine, nodes: list[ClusterNode], expected: str | None) -> None:
    for listed in (nodes, nodes[::-1]):
        found = match_node(machine, listed)
        assert (found.node.uid if found.node else None, found.candidates) == (expected, ())


def test_several_nodes_of_a_machine_are_named() -> None:
    nodes = [node(machine_id=ID), node("uid-2", "gpu-2", machine_id=ID)]
    assert match_node(Machine(name="gpu-1", machine_id=ID), nodes) == NodeMatch(None, ("gpu-1", "gpu-2"))


def test_a_node_is_found_by_each_of_its_names() -> None:
    machine = Machine(name="Host", k8s_node_name="gpu-1", machine_id=ID, system_uuid=UUID)
    assert search_names(machine) == ("gpu-1", "host", ID, UUID)
    assert set(object_names(node(machine_id=ID, system_uuid=UUID.upper()))) == {"gpu-1", ID, UUID}


def stored(record: ClusterNode, ended_at: int | None = None) -> StoredObject:
    return StoredObject(cluster="c", record=record, known_at=1000, ended_at=ended_at)


@pytest.mark.parametrize(
    ("machine", "nodes", "expected"),
    [
        (Machine(name="x", k8s_node_uid="uid-1"), [stored(node(), 500)], NodeDeletion(500, is_recreated=False)),
        (Machine(name="x", machine_id=ID), [stored(node(machine_id=ID), 500)], NodeDeletion(500, is_recreated=False)),
        # the newest deletion of several
        (
            Machine(name="x", machine_id=ID),
            [stored(node(machine_id=ID), 500), stored(node("uid-2", machine_id=ID), 700)],
            NodeDeletion(700, is_recreated=False),
        ),
        # created again: by identity, or by its name if nothing contradicts
        (
            Machine(name="x", k8s_node_uid="uid-1", machine_id=ID),
            [stored(node(), 500), stored(node("uid-2", "y", machine_id=ID))],
            NodeDeletion(500, is_recreated=True),
        ),
        (
            Machine(name="gpu-1", k8s_node_uid="uid-1"),
            [stored(node(), 500), stored(node("uid-2"))],
            NodeDeletion(500, is_recreated=True),
        ),
        (
            Machine(name="gpu-1", k8s_node_uid="uid-1", machine_id=ID),
            [stored(node(), 500), stored(node("uid-2", machine_id=OTHER))],
            NodeDeletion(500, is_recreated=False),
        ),
        # no deletion: only the name agrees, the system UUID differs, or its reports only stopped
        (Machine(name="gpu-1"), [stored(node(), 500)], None),
        (
            Machine(name="x", machine_id=ID, system_uuid=UUID),
            [stored(node(machine_id=ID, system_uuid=OTHER), 500)],
            None,
        ),
        (Machine(name="x", k8s_node_uid="uid-1"), [stored(node())], None),
        (Machine(name="x", k8s_node_uid="uid-1"), [], None),
    ],
)
def test_deletion_of_the_node_of_a_machine(
    machine: Machine, nodes: list[StoredObject], expected: NodeDeletion | None
) -> None:
    for listed in (nodes, nodes[::-1]):
        assert node_deletion(machine, listed, 1000) == expected


def test_taints_and_pools_are_selected() -> None:
    taints = tuple(NodeTaint(key="k", effect=effect) for effect in ("NoSchedule", "PreferNoSchedule", "NoExecute"))
    labels = {"karpenter.sh/nodepool": "a100", "app": "x"}
    found = node(taints=taints, labels=labels)
    assert [one.effect for one in hiding_taints(found)] == ["NoSchedule", "NoExecute"]
    assert pool_labels(found) == {"karpenter.sh/nodepool": "a100"}
