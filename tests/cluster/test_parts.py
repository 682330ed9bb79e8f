"""Parts of bounded size."""

import msgspec

from gpufleet.cluster.parts import split_objects
from gpufleet.cluster.tracker import DueObjects, Removal
from gpufleet.model.kubernetes import ClusterNode, ClusterPod
from gpufleet.model.stored.kubernetes import ClusterObject, ObjectKind
from gpufleet.model.wire.batch import ClusterPart

STATUS = ClusterPart(observed_at=1, system_uid="u")


def due(pods: int, nodes: int = 0, removed: int = 0) -> dict[ObjectKind, DueObjects[ClusterObject]]:
    return {
        ObjectKind.NODE: DueObjects({f"n{i}": ClusterNode(uid=f"n{i}", name=f"n{i}") for i in range(nodes)}),
        ObjectKind.POD: DueObjects(
            {f"p{i}": ClusterPod(uid=f"p{i}", namespace="a", name=f"p{i}") for i in range(pods)},
            tuple(Removal(f"r{i}", None, 7) for i in range(removed)),
        ),
    }


def test_nothing_due_is_no_part() -> None:
    assert list(split_objects(due(0))) == []


def test_parts_have_every_object_once_and_removals_first() -> None:
    parts = [one.part(STATUS) for one in split_objects(due(11, nodes=5, removed=4), max_objects=6)]
    assert [len(one.removed) + len(one.nodes) + len(one.pods) for one in parts] == [6, 6, 6, 2]
    assert [one.uid for one in parts[0].removed] == ["r0", "r1", "r2", "r3"]
    assert {(one.resource, one.at) for one in parts[0].removed} == {("pods", 7)}
    assert [one.uid for part in parts for one in part.nodes] == [f"n{i}" for i in range(5)]
    assert [one.uid for part in parts for one in part.pods] == [f"p{i}" for i in range(11)]
    assert {one.system_uid for one in parts} == {"u"}


def test_parts_are_bounded_in_bytes() -> None:
    parts = [one.part(STATUS) for one in split_objects(due(1000), max_bytes=4096)]
    assert len(parts) > 5
    assert all(len(msgspec.msgpack.encode(one)) < 5000 for one in parts)
    large = ClusterPod(uid="p", namespace="a", name="x" * 5000)
    (part,) = split_objects({ObjectKind.POD: DueObjects({"p": large})}, max_bytes=4096)
    assert part.present == ((ObjectKind.POD, large),)
