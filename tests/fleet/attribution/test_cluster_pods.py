"""Holdings of pods, completed with the objects of their cluster."""

from typing import Any

import msgspec
import pytest

from gpufleet.fleet.attribution.cluster_pods import (
    CLOCK_TOLERANCE_NS,
    complete_holding,
    identify_pod,
    node_names,
    without_repeated_names,
)
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.fleet.cluster_objects import OBJECT_TTL_NS
from gpufleet.model.holdings import MAX_LABELS, Holder, HolderKind, Holding, HoldingVerdict, Owner
from gpufleet.model.kubernetes import ChainEnd, ClusterNode, ClusterVmi
from gpufleet.model.machine import Machine
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.stored.kubernetes import StoredObject
from gpufleet.model.time import NANOS
from tests.support.cluster_objects import pod
from tests.support.holdings import T0

JOB = Owner(kind="Job", name="train", uid="job-uid", api_version="batch/v1")
SET = Owner(kind="JobSet", name="trainer", uid="set-uid")
VMI = Owner(kind="VirtualMachineInstance", name="vm-0", uid="vmi-uid")
MACHINE = Owner(kind="VirtualMachine", name="vm-0", uid="vm-uid")


def held(holder: Holder | None = None, **fields: Any) -> StoredHolding:
    one = Holding(
        view="gpu/GPU-1",
        holder=holder or Holder(kind=HolderKind.POD, id="uid"),
        since=T0,
        methods=("kubelet",),
        verdict=HoldingVerdict.AGREED,
    )
    return StoredHolding(
        cluster="c", machine="m", holding=msgspec.structs.replace(one, **fields), reported_at=T0 + 60 * NANOS
    )


def test_unknown_texts_of_a_pod_come_from_its_cluster() -> None:
    known = pod("uid", name="train-0", owners=(JOB, SET), labels={"app": "a"}, annotations={"t": "v"}, queue="research")
    found = complete_holding(held(), known, None)
    assert found.holding.holder == Holder(
        kind=HolderKind.POD,
        id="uid",
        name="train-0",
        namespace="ml",
        owners=(JOB, SET),
        labels={"app": "a"},
        annotations={"t": "v"},
        queue="research",
    )
    assert msgspec.structs.replace(found, holding=held().holding) == held()


def test_cluster_replaces_what_the_node_reports_of_a_pod() -> None:
    """A node agent reads the same API server and may have an older state, or another allow-list."""
    holder = Holder(
        kind=HolderKind.POD,
        id="uid",
        namespace="ml",
        labels={"app": "node", "team": "a"},
        queue="own",
        owners=(SET,),
        user="ada",
    )
    known = pod("uid", owners=(JOB, SET), labels={"app": "x"}, queue="q")
    completed = complete_holding(held(holder), known, None).holding.holder
    assert (completed.owners, completed.queue, completed.user) == ((JOB, SET), "q", "ada")
    assert completed.labels == {"app": "x", "team": "a"}
    assert complete_holding(held(holder), pod("uid"), None).holding.holder.queue == "own"


def test_labels_of_node_and_cluster_are_bounded() -> None:
    many = {f"label-{number:03d}": "" for number in range(MAX_LABELS)}
    holder = Holder(kind=HolderKind.POD, id="uid", labels=many)
    completed = complete_holding(held(holder), pod("uid", labels={"team": "a"}), None).holding.holder
    assert (len(completed.labels), completed.labels["team"]) == (MAX_LABELS, "a")


@pytest.mark.parametrize(
    ("node", "cluster", "end", "expected"),
    [
        ((Owner(kind="Job", name="train"),), (JOB, SET), ChainEnd.TOP, (JOB, SET)),
        ((JOB, SET), (JOB, SET), ChainEnd.TOP, (JOB, SET)),
        ((JOB, SET), (JOB,), ChainEnd.FORBIDDEN, (JOB, SET)),
        ((JOB, SET), (), ChainEnd.NOT_READ, (JOB, SET)),
        ((JOB, SET), (JOB,), ChainEnd.TOP, (JOB,)),  # it has lost its owner
        ((SET, JOB), (JOB,), ChainEnd.FORBIDDEN, (JOB,)),
    ],
)
def test_longer_owner_chain_of_node_or_cluster_counts(
    node: tuple[Owner, ...], cluster: tuple[Owner, ...], end: ChainEnd, expected: tuple[Owner, ...]
) -> None:
    holder = Holder(kind=HolderKind.POD, id="uid", owners=node)
    known = pod("uid", owners=cluster, chain_end=end)
    assert complete_holding(held(holder), known, None).holding.holder.owners == expected


@pytest.mark.parametrize("fields", [{"namespace": "other"}, {"name": "other"}])
def test_pod_with_another_name_is_not_joined(fields: dict[str, str]) -> None:
    one = held(Holder(kind=HolderKind.POD, id="uid", namespace="ml", name="uid"))
    assert complete_holding(one, pod("uid", **fields, owners=(JOB,)), None) == one


NAMED = Holder(kind=HolderKind.VM, id="ml/vm-0", name="vm-0", namespace="ml")
LAUNCHER = pod("uid", vmi="vmi-uid", owners=(VMI, MACHINE))
OBJECT = ClusterVmi(uid="vmi-uid", namespace="ml", name="vm-0", pods={"uid": "gpu-1"}, machine=MACHINE)
JOINED = Holder(kind=HolderKind.VM, id="vmi-uid", name="vm-0", namespace="ml", owners=(MACHINE,))


@pytest.mark.parametrize(
    ("launcher", "vmi"),
    [
        (LAUNCHER, None),
        (LAUNCHER, OBJECT),
        (pod("uid", vmi="vmi-uid", owners=(VMI,)), OBJECT),
        (pod("uid", vmi="vmi-uid"), OBJECT),
    ],
)
@pytest.mark.parametrize("parent", [None, NAMED])
def test_launcher_pod_has_its_virtual_machine(launcher: Any, vmi: ClusterVmi | None, parent: Holder | None) -> None:
    assert complete_holding(held(parent=parent), launcher, vmi).holding.parent == JOINED


@pytest.mark.parametrize(
    ("launcher", "vmi", "parent"),
    [
        (pod("uid", vmi="vmi-uid"), None, NAMED),  # a label alone
        (pod("uid", vmi="vmi-uid"), msgspec.structs.replace(OBJECT, pods={}), NAMED),
        (pod("uid", vmi="vmi-uid"), msgspec.structs.replace(OBJECT, namespace="other"), NAMED),
        (pod("uid", owners=(VMI,)), OBJECT, NAMED),  # a pod that is no launcher
        (LAUNCHER, OBJECT, msgspec.structs.replace(NAMED, name="vm-1", id="ml/vm-1")),
        (LAUNCHER, OBJECT, msgspec.structs.replace(NAMED, id="another-uid")),
    ],
)
def test_unproven_virtual_machine_is_not_joined(launcher: Any, vmi: ClusterVmi | None, parent: Holder) -> None:
    assert complete_holding(held(parent=parent), launcher, vmi).holding.parent == parent


NAMELESS = held(Holder(kind=HolderKind.POD, id="ml/web-0", name="web-0", namespace="ml"), until=T0 + 600 * NANOS)


def listed(uid: str, ended_at: int | None = None, **fields: Any) -> StoredObject:
    record = pod(uid, **{"name": "web-0", "node": "gpu-1", "created": T0 - NANOS, **fields})
    return StoredObject(cluster="c", record=record, known_at=T0, ended_at=ended_at)


def identified(*candidates: StoredObject, stored: StoredHolding = NAMELESS, at: int = T0 + NANOS) -> str | None:
    found = identify_pod(stored, candidates, "gpu-1", now=T0 + NANOS, at=at)
    return None if found is None else found.uid


def test_pod_without_uid_is_the_only_one_of_its_name_on_the_node() -> None:
    assert identified(listed("a"), listed("b", node="gpu-2"), listed("c", name="web-1")) == "a"
    assert identified(listed("a", ended_at=T0 - CLOCK_TOLERANCE_NS), listed("b")) == "b"
    assert identified(listed("a"), listed("b", created=T0 + 600 * NANOS + CLOCK_TOLERANCE_NS)) == "a"
    assert identified(listed("a", node="gpu-2")) is None
    assert identified() is None


def test_pod_without_uid_is_unknown_if_two_can_be_it() -> None:
    assert identified(listed("a", ended_at=T0 + CLOCK_TOLERANCE_NS + 1), listed("b")) is None
    assert identified(listed("a"), listed("b", created=None)) is None
    brief = held(NAMELESS.holding.holder, until=T0 + 2 * CLOCK_TOLERANCE_NS)
    assert identified(listed("a", ended_at=T0 - CLOCK_TOLERANCE_NS + 1), listed("b"), stored=brief) is None
    assert identified(listed("a"), listed("b", created=brief.holding.until), stored=brief) is None


def test_pod_without_uid_has_a_predecessor_and_a_successor() -> None:
    """A pod of a StatefulSet is created as soon as the pod of its name has ended."""
    end = T0 + 600 * NANOS
    before = listed("a", created=T0 - 900 * NANOS, ended_at=T0 - NANOS)
    after = listed("c", created=end + NANOS)
    assert identified(before, listed("b", created=T0, ended_at=end), after) == "b"


def test_pod_with_uid_is_not_repeated_by_its_name() -> None:
    """The name is that of a pod, then of its successor, then of neither."""
    named = Holder(kind=HolderKind.POD, id="uid", name="web-0", namespace="ml")
    first, second = held(named, since=T0 + 2, until=T0 + 5), held(named, since=T0 + 6, until=T0 + 8)
    others = [
        held(msgspec.structs.replace(named, name="web-1")),
        held(named, view="gpu/GPU-2"),
        held(named, verdict=HoldingVerdict.UNKNOWN),
    ]
    found = without_repeated_names([NAMELESS, first, second, *others], T0)
    assert found[:5] == [first, second, *others]
    spans = [(T0, T0 + 2), (T0 + 5, T0 + 6), (T0 + 8, NAMELESS.holding.until)]
    assert [(one.holding.since, one.holding.until) for one in found[5:]] == spans
    lasting = held(named, since=T0 + 1)
    assert [one.holding.until for one in without_repeated_names([LASTING, lasting], T0)] == [None, T0 + 1]
    inside = held(NAMELESS.holding.holder, since=T0 + 3, until=T0 + 4)
    assert without_repeated_names([inside, first], T0) == [first]


def test_name_of_a_pod_counts_after_the_last_report_of_its_uid() -> None:
    """The agent stops without the report of an end; the exporter continues."""
    named = Holder(kind=HolderKind.POD, id="uid", name="web-0", namespace="ml")
    lasting = held(named, since=T0)
    last = lasting.reported_at
    assert without_repeated_names([LASTING, lasting], last + HOLDING_TTL_NS) == [lasting]
    rest = msgspec.structs.replace(LASTING, holding=msgspec.structs.replace(LASTING.holding, since=last))
    assert without_repeated_names([LASTING, lasting], last + HOLDING_TTL_NS + 1) == [lasting, rest]


LASTING = msgspec.structs.replace(NAMELESS, holding=msgspec.structs.replace(NAMELESS.holding, until=None))
LAST = T0 + 600 * NANOS - CLOCK_TOLERANCE_NS
"""First end of a pod that has the device until the end of `NAMELESS`."""


@pytest.mark.parametrize(
    ("stored", "candidate", "expected"),
    [
        (NAMELESS, listed("a", created=T0 + CLOCK_TOLERANCE_NS), "a"),
        (NAMELESS, listed("a", created=T0 + CLOCK_TOLERANCE_NS + 1), None),
        (NAMELESS, listed("a", ended_at=LAST), "a"),
        (NAMELESS, listed("a", ended_at=LAST - 1), None),
        (LASTING, listed("a"), "a"),
        (LASTING, listed("a", ended_at=T0 + NANOS), None),
    ],
)
def test_pod_without_uid_exists_for_the_whole_holding(
    stored: StoredHolding, candidate: StoredObject, expected: str | None
) -> None:
    assert identified(candidate, stored=stored) == expected


def test_pod_that_is_not_repeated_ends_at_its_last_report() -> None:
    old = msgspec.structs.replace(listed("a"), known_at=T0 - 2 * CLOCK_TOLERANCE_NS)
    assert identified(old, listed("b"), at=T0 + OBJECT_TTL_NS) == "b"
    assert identified(old, listed("b"), at=T0) is None  # the copy is stale since then


def node(uid: str, ended_at: int | None = None, **fields: Any) -> StoredObject:
    record = ClusterNode(**{"uid": uid, "name": uid, "machine_id": "1" * 32, **fields})
    return StoredObject(cluster="c", record=record, known_at=T0, ended_at=ended_at)


def test_nodes_of_a_holding_existed_during_it() -> None:
    machine = Machine(name="host", machine_id="1" * 32)
    past = node("past", ended_at=T0 - CLOCK_TOLERANCE_NS)
    later = node("later", created=T0 + 600 * NANOS + CLOCK_TOLERANCE_NS)
    ended = node("a", ended_at=T0 + NANOS)
    for nodes, expected in (
        ([past, ended, later], {"a"}),
        ([past, later], set()),
        ([ended, node("uid", name="a", created=T0)], {"a"}),  # the Node object was replaced
        ([ended, node("b")], {"a", "b"}),
        ([node("other", machine_id="2" * 32)], set()),
    ):
        assert node_names(NAMELESS, machine, nodes, now=T0 + NANOS, at=T0 + NANOS) == expected
