"""Holders by ResourceClaims: claim to device to pod, and their agreement with what the node reports."""

from typing import Any

import msgspec
import pytest

from gpufleet.fleet.attribution.resource_claims import (
    SETTLE_NS,
    allocated_counts,
    claim_holdings,
    device_views,
    reserved_devices,
    with_claims,
)
from gpufleet.holders.kubernetes.parse.dynamic_resources import parse_claim
from gpufleet.model.holdings import DeviceState, Holder, HolderKind, HolderState, Holding, HoldingVerdict, Share
from gpufleet.model.kubernetes import AllocatedDevice, ClaimUser, ClusterClaim, ClusterDevice, ClusterPod, ClusterSlice
from gpufleet.model.stored.holdings import StoredHolding
from tests.support import recorded_kubelet
from tests.support.cluster_objects import pod

DRIVER = "gpu.nvidia.com"
T0 = 1_000 * SETTLE_NS
NOW = T0 + SETTLE_NS
VIEW = "gpu/GPU-5a61"


def gpu(name: str = "gpu-0", **fields: Any) -> ClusterDevice:
    known = {"uuid": "GPU-5A61", "kind": "gpu", "node": "n1"}
    return ClusterDevice(driver=DRIVER, pool="n1", name=name, **{**known, **fields})


def pool(*devices: ClusterDevice, generation: int = 1, uid: str = "s") -> ClusterSlice:
    return ClusterSlice(
        uid=uid, name=uid, driver=DRIVER, pool="n1", generation=generation, slices=1, node="n1", devices=devices
    )


def claim(*devices: str, users: tuple[str, ...] = ("p",), name: str = "c", **fields: Any) -> ClusterClaim:
    return ClusterClaim(
        uid=name,
        namespace="ml",
        name=name,
        devices=tuple(AllocatedDevice(driver=DRIVER, pool="n1", name=one, **fields) for one in devices),
        reserved_for=tuple(ClaimUser(resource="pods", name=one, uid=one) for one in users),
    )


def user(uid: str = "p", **fields: Any) -> ClusterPod:
    return pod(uid, **{"node": "n1", "phase": "Running", "started": T0, "claims": ("c",), **fields})


def held(claims: list[ClusterClaim], pods: list[ClusterPod], *slices: ClusterSlice) -> list[tuple[str, str, str]]:
    """Return node, view and pod of each holding."""
    found = claim_holdings(
        reserved_devices([(one, T0) for one in claims], pods), device_views(slices or [pool(gpu())]), is_current=True
    )
    return [(node, one.view, one.holder.id) for node, own in found.items() for one, _ in own]


def test_claim_gives_its_pod_the_device_of_the_slice() -> None:
    (found,) = claim_holdings(
        reserved_devices([(claim("gpu-0"), T0)], [user(queue="q")]), device_views([pool(gpu())]), is_current=True
    )["n1"]
    holding, known_at = found
    assert (holding.view, holding.holder.id, holding.holder.queue) == (VIEW, "p", "q")
    assert (holding.claim, holding.share, holding.since, known_at) == ("ml/c", Share.DRA, T0, T0)
    assert (holding.methods, holding.verdict) == (("resource_claim",), HoldingVerdict.DECLARED_ONLY)


def test_shared_claim_has_several_pods() -> None:
    pods = [user("p"), user("q"), user("other", claims=())]
    assert held([claim("gpu-0", users=("p", "q", "other"))], pods) == [("n1", VIEW, "p"), ("n1", VIEW, "q")]


@pytest.mark.parametrize(
    "pods",
    [
        [],
        [user(phase="Succeeded")],
        [user(started=None)],
        [user(node="")],
        [user(node="n2")],
        [user(claims=("other",))],
        [user(namespace="other")],
        [user("same-name-other-uid", name="p")],
    ],
)
def test_pod_that_does_not_use_the_claim_holds_nothing(pods: list[ClusterPod]) -> None:
    assert held([claim("gpu-0")], pods) == []


def test_claim_for_other_objects_or_administration_gives_nothing() -> None:
    others = msgspec.structs.replace(claim("gpu-0"), reserved_for=(ClaimUser(resource="podgroups", name="p", uid="p"),))
    assert held([others, claim("gpu-0", admin_access=True)], [user()]) == []


@pytest.mark.parametrize(
    ("device", "view"),
    [
        (gpu(), VIEW),
        (gpu(uuid="gpu-5a61"), VIEW),
        (gpu(kind="mig", uuid="MIG-7B"), "mig/MIG-7b"),
        (gpu(kind="vfio", uuid="x", pci_address="0000:1b:00.0"), "gpu/pci/0000:1b:00.0"),
        (gpu(uuid=""), None),
        (gpu(uuid="0"), None),
        (gpu(kind="mig"), None),
        (gpu(kind="vfio", pci_address=""), None),
        (gpu(node="n2"), None),
        (gpu("other"), None),
    ],
)
def test_device_is_identified_by_its_slice_only(device: ClusterDevice, view: str | None) -> None:
    assert [one[1] for one in held([claim("gpu-0")], [user()], pool(device))] == ([] if view is None else [view])


def test_earlier_generations_and_repeated_names_identify_nothing() -> None:
    old, new = pool(gpu(uuid="GPU-01")), pool(gpu(uuid="GPU-02"), generation=2, uid="t")
    assert held([claim("gpu-0")], [user()], old, new) == [("n1", "gpu/GPU-02", "p")]
    assert held([claim("gpu-0")], [user()], pool(gpu(uuid="GPU-01"), gpu(uuid="GPU-02"))) == []


def test_devices_are_counted_once_for_each_node() -> None:
    claims = [claim("gpu-0", "gpu-1", users=("p", "q")), claim("gpu-1", "gpu-2", users=("p",), name="d")]
    pods = [user(claims=("c", "d"), node="N1"), user("q", node="N1")]
    assert allocated_counts(reserved_devices([(one, T0) for one in claims], pods)) == {"n1": 3}


def stored(id_: str = "p", methods: tuple[str, ...] = ("kubelet",), **fields: Any) -> StoredHolding:
    kind = fields.pop("kind", HolderKind.POD)
    known = {"view": VIEW, "since": T0 - 1, "verdict": HoldingVerdict.DECLARED_ONLY, "share": Share.DRA}
    holding = Holding(holder=Holder(kind=kind, id=id_), methods=methods, **{**known, **fields})
    return StoredHolding(cluster="c", machine="m", holding=holding, reported_at=T0)


def by_claim(**fields: Any) -> StoredHolding:
    found = stored(methods=("resource_claim",), claim="ml/c", **{"since": T0, **fields})
    holder = Holder(kind=HolderKind.POD, id="p", namespace="ml", name="p")
    return msgspec.structs.replace(found, holding=msgspec.structs.replace(found.holding, holder=holder))


def outcomes(
    known: list[StoredHolding], *, state: HolderState | None = None, now: int = NOW, **fields: Any
) -> list[tuple[str, str, str]]:
    """Return id, verdict and methods of the joined holdings."""
    states = {} if state is None else {VIEW: DeviceState(view=VIEW, state=state)}
    found = with_claims(known, [by_claim(**fields)], states, now)
    return [(one.holding.holder.id, one.holding.verdict.value, "+".join(one.holding.methods)) for one in found]


@pytest.mark.parametrize(
    ("before", "methods", "after"),
    [
        ("declared_only", "kubelet", "declared_only"),
        ("agreed", "kubelet", "agreed"),
        ("unknown", "kubelet", "declared_only"),
        ("observed_only", "process", "agreed"),
        ("conflict", "kubelet", "conflict"),
    ],
)
@pytest.mark.parametrize("id_", ["p", "ml/p"])
def test_claim_confirms_the_holder_that_the_node_reports(id_: str, before: str, methods: str, after: str) -> None:
    known = stored(id_, (methods,), verdict=HoldingVerdict(before), container="main")
    assert outcomes([known]) == [(id_, after, f"{methods}+resource_claim")]
    (found,) = with_claims([known], [by_claim()], {}, NOW)
    assert (found.holding.claim, found.holding.since, found.holding.container) == ("ml/c", T0 - 1, "main")


def test_claim_alone_declares_its_pod() -> None:
    expected = [("p", "declared_only", "resource_claim")]
    assert outcomes([]) == expected
    assert outcomes([], state=HolderState.UNKNOWN) == expected


def test_device_that_its_node_reports_as_free_is_a_conflict_after_a_while() -> None:
    assert outcomes([], state=HolderState.FREE) == [("p", "conflict", "resource_claim")]
    assert outcomes([], state=HolderState.FREE, now=NOW - 1) == [("p", "declared_only", "resource_claim")]


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        (stored("q", share=Share.EXCLUSIVE), "conflict"),
        (stored("7", ("slurm",), share=Share.EXCLUSIVE, kind=HolderKind.JOB), "conflict"),
        (stored("q"), "declared_only"),
        (stored("q", ("process",), share=Share.EXCLUSIVE, verdict=HoldingVerdict.OBSERVED_ONLY), "declared_only"),
        (
            stored("q", ("exporter_labels",), share=Share.EXCLUSIVE, verdict=HoldingVerdict.OBSERVED_ONLY),
            "declared_only",
        ),
        (stored("q", share=Share.EXCLUSIVE, verdict=HoldingVerdict.UNKNOWN), "declared_only"),
        (stored("q", share=Share.EXCLUSIVE, view="gpu/GPU-0"), "declared_only"),
    ],
)
def test_another_exclusive_holder_of_the_device_is_a_conflict(known: StoredHolding, verdict: str) -> None:
    first, second = outcomes([known])
    assert second == ("p", verdict, "resource_claim")
    assert first[1] == (verdict if verdict == "conflict" else known.holding.verdict)


def test_stale_claim_contradicts_and_confirms_nothing() -> None:
    known = stored("q", share=Share.EXCLUSIVE)
    unknown = HoldingVerdict.UNKNOWN
    assert outcomes([known], verdict=unknown)[1] == ("p", "unknown", "resource_claim")
    assert outcomes([], state=HolderState.FREE, verdict=unknown) == [("p", "unknown", "resource_claim")]
    assert outcomes([stored(verdict=unknown)], verdict=unknown)[0][:2] == ("p", "unknown")


RECORDED = {name: one for name, one in recorded_kubelet.scenarios().items() if "resource_claims" in one}


@pytest.mark.parametrize("scenario", RECORDED)
def test_claims_of_a_real_cluster_give_its_pods_what_they_have(scenario: str) -> None:
    """Claims of an API server 1.36, and the devices that its kubelet 1.36 prepared for the containers of each pod."""
    recorded = RECORDED[scenario]
    documents = [
        {
            "metadata": {"uid": one["uid"], "namespace": one["namespace"], "name": one["name"]},
            "status": {"allocation": one["allocation"], "reservedFor": one["reservedFor"]},
        }
        for one in recorded["resource_claims"]
    ]
    claims = [read for one in documents if (read := parse_claim(msgspec.json.encode(one))) is not None]
    pods = [
        ClusterPod(
            uid=one["uid"],
            namespace=one["namespace"],
            name=one["name"],
            node="gpu-real",
            phase=one["phase"],
            started=T0,
            claims=tuple(each.name for each in claims),  # the status of pods was not recorded
        )
        for one in recorded["placed"]
    ]
    found = {(one.pod.name, one.place[2]) for one in reserved_devices([(each, T0) for each in claims], pods)}
    prepared = {
        (pod["name"], device.split()[1])
        for pod in recorded["placed"]
        for container in pod["containers"]
        for device in container.get("dra_devices", ())
        if container["state"] == "running" and pod["name"] != "exporter"  # it has access for administration
    }
    assert found == prepared
