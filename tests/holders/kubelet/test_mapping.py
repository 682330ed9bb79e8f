"""Claims from recorded answers, against what was truly placed."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from gpufleet.holders.kubelet.device_ids import Identity
from gpufleet.holders.kubelet.folders import NodeFolders, PodIdentities
from gpufleet.holders.kubelet.mapping import (
    cdi_names,
    map_pods,
    pci_identities,
    with_pci_functions,
    with_total_replicas,
)
from gpufleet.holders.kubelet.parse import (
    ClaimedDevice,
    ListedClaim,
    ListedContainer,
    ListedPod,
    parse_allocatable,
    parse_pods,
)
from gpufleet.model.holdings import Holder, HolderKind, Method, Share
from gpufleet.ports.holder import DeviceName, HolderClaim, Naming
from tests.support import recorded_kubelet

INCOMPLETE: Mapping[str, frozenset[str]] = {
    "restart-2a-first-answer": frozenset(),
    "dra-restart-first": frozenset(),
    "outage-2-restart-without-apiserver": frozenset({"static-gpu-gpu-real"}),
}
"""Scenarios just after a kubelet restart, with the pods that their answers have. The session shows the restart."""

LISTS = recorded_kubelet.answers("List")

Fact = tuple[str, str, str, str, Naming, str, int]
"""Pod UID, name, container, resource, naming, device, replicas."""


def truth(id_: str) -> tuple[Naming, str, bool]:
    """Return naming and name of a device that a plugin allocated, and whether it is a replica."""
    device, _, replica = id_.partition("::")
    if device.startswith("nvidia"):
        node, *parts = device.removeprefix("nvidia").split("/")
        instance = [part.removeprefix("gi") for part in parts if part.startswith("gi")]
        is_shared = any(part.startswith("vgpu") for part in parts)
        return (Naming.MIG_OF_MINOR if instance else Naming.MINOR), "/".join([node, *instance]), is_shared
    if device.startswith(("GPU-", "MIG-")):
        return Naming.UUID, device, bool(replica)
    if ":" in device:
        return Naming.PCI, device, False
    return (Naming.IOMMU_GROUP if device.isdigit() else Naming.MDEV), device, False


def live_pods(scenario: str) -> list[dict[str, Any]]:
    """Return the pods that the kubelet has admitted and that have not ended."""
    placed = recorded_kubelet.scenarios()[scenario]["placed"]
    live = [pod for pod in placed if pod["phase"] not in ("Succeeded", "Failed")]
    return [pod for pod in live if scenario not in INCOMPLETE or pod["name"] in INCOMPLETE[scenario]]


def placed_facts(scenario: str) -> set[Fact]:
    """Return who truly had which device of a plugin."""
    checkpoint = recorded_kubelet.scenarios()[scenario].get("kubelet_checkpoint") or []
    facts: set[Fact] = set()
    for pod in live_pods(scenario):
        for container in pod["containers"]:
            if container["kind"] == "init":
                continue  # its devices are those of the app containers; the kubelet lists no init container
            allocated: dict[str, list[str]] = container["allocated"]
            if container["state"] == "never created":
                allocated = {
                    entry["resource"]: [id_ for ids in entry["device_ids_by_numa"].values() for id_ in ids]
                    for entry in checkpoint
                    if (entry["pod_uid"], entry["container"]) == (pod["uid"], container["name"])
                }
            for resource, ids in allocated.items():
                named = [truth(id_) for id_ in dict.fromkeys(ids)]
                for naming, device, is_replica in named:
                    replicas = [one[:2] for one in named].count((naming, device)) if is_replica else 0
                    facts.add((pod["uid"], pod["name"], container["name"], resource, naming, device, replicas))
    return facts


def claimed_facts(claims: Iterable[HolderClaim]) -> list[Fact]:
    return [
        (
            claim.holder.id,
            claim.holder.name,
            claim.container,
            claim.resource,
            device.naming,
            device.text,
            claim.replicas,
        )
        for claim in claims
        if claim.share is not Share.DRA
        for device in claim.devices
    ]


def folders_of(scenario: str) -> NodeFolders:
    """Return the kubelet's folders as its pods leave them: those of ended pods remain."""
    placed = recorded_kubelet.scenarios()[scenario]["placed"]
    return NodeFolders(
        pod_logs=tuple(f"{pod['namespace']}_{pod['name']}_{pod['uid']}" for pod in placed),
        pods=frozenset(pod["uid"] for pod in placed),
    )


def claims_of(scenario: str, answer: Mapping[str, Any], cdi: Mapping[str, Identity]) -> tuple[HolderClaim, ...]:
    pods = parse_pods(recorded_kubelet.files()[answer["bin"]])
    return map_pods(pods, PodIdentities(folders_of(scenario), pods), cdi)


@pytest.mark.parametrize(("scenario", "answer"), LISTS, ids=[name for name, _ in LISTS])
def test_claims_are_what_was_truly_placed(scenario: str, answer: dict[str, Any]) -> None:
    claims = claims_of(scenario, answer, {})
    found = claimed_facts(claims)
    assert len(found) == len(set(found))
    assert set(found) == placed_facts(scenario)
    assert all(claim.method is Method.KUBELET and claim.holder.kind is HolderKind.POD for claim in claims)


GETS = recorded_kubelet.answers("Get")


@pytest.mark.parametrize(("scenario", "answer"), GETS, ids=[f"{name}-{one['pod_name']}" for name, one in GETS])
def test_claims_of_one_pod_are_what_was_truly_placed(scenario: str, answer: dict[str, Any]) -> None:
    found = claimed_facts(claims_of(scenario, answer, {}))
    uids = {
        pod["uid"]
        for pod in live_pods(scenario)
        if (pod["namespace"], pod["name"]) == (answer["pod_namespace"], answer["pod_name"])
    }
    assert len(uids) == 1
    assert len(found) == len(set(found))
    assert set(found) == {fact for fact in placed_facts(scenario) if fact[0] in uids}


UNANSWERED = [
    (name, answer)
    for name, scenario in recorded_kubelet.scenarios().items()
    for answer in scenario["answers"]
    if answer["call"] == "Get" and "bin" not in answer
]


@pytest.mark.parametrize(
    ("scenario", "answer"), UNANSWERED, ids=[f"{name}-{one['pod_name']}" for name, one in UNANSWERED]
)
def test_pod_that_get_does_not_find_has_no_claim(scenario: str, answer: dict[str, Any]) -> None:
    lists = [one for name, one in LISTS if name == scenario]
    holders = {(c.holder.namespace, c.holder.name) for one in lists for c in claims_of(scenario, one, {})}
    assert lists
    assert (answer["pod_namespace"], answer["pod_name"]) not in holders


ALLOCATABLE = recorded_kubelet.answers("GetAllocatableResources")


@pytest.mark.parametrize(("scenario", "answer"), ALLOCATABLE, ids=[name for name, _ in ALLOCATABLE])
def test_allocatable_devices_are_the_healthy_ones_of_the_plugins(scenario: str, answer: dict[str, Any]) -> None:
    plugins = recorded_kubelet.scenarios()[scenario].get("device_plugins", [])
    expected = {
        (plugin["resource"], device["id"])
        for plugin in plugins
        if plugin["connected"]
        for device in plugin["devices"]
        if device["health"] == "Healthy"
    }
    assert set(parse_allocatable(recorded_kubelet.files()[answer["bin"]])) == expected


SHARES = {
    "gpu-exclusive": {Share.EXCLUSIVE},
    "mig-mixed": {Share.EXCLUSIVE, Share.MIG},
    "mig-single": {Share.MIG},
    "timeslice-gpu": {Share.TIMESLICE},
    "timeslice-mig": {Share.TIMESLICE},
    "sandbox-kubevirt": {Share.EXCLUSIVE, Share.VGPU},
    "gke-mig": {Share.MIG},
    "gke-mig-shared": {Share.TIMESLICE},
    "dra-claims": {Share.DRA},
}


@pytest.mark.parametrize("scenario", SHARES)
def test_sharing_mode_follows_from_the_id(scenario: str) -> None:
    ((_, answer),) = [one for one in LISTS if one[0] == scenario]
    assert {claim.share for claim in claims_of(scenario, answer, {})} == SHARES[scenario]


DRA = [one for one in LISTS if "dra_prepared" in recorded_kubelet.scenarios()[one[0]]]


def prepared(scenario: str) -> dict[str, Identity]:
    """Return the CDI devices of the driver; device `gpu-N` is the GPU with device number N + 10."""
    return {
        cdi: (Naming.MINOR, str(10 + int(device["device"].removeprefix("gpu-"))))
        for claim in recorded_kubelet.scenarios()[scenario]["dra_prepared"]
        for device in claim["devices"]
        for cdi in device["cdi_device_ids"]
    }


@pytest.mark.parametrize(("scenario", "answer"), DRA, ids=[name for name, _ in DRA])
def test_claimed_devices_are_those_prepared_for_the_pod(scenario: str, answer: dict[str, Any]) -> None:
    expected: dict[str, set[str]] = {}
    containers: dict[str, set[str]] = {}
    for pod in live_pods(scenario):
        for container in pod["containers"]:
            for device in container.get("dra_devices", []):
                number = 10 + int(device.rpartition("gpu-")[2])
                expected.setdefault(pod["uid"], set()).add(str(number))
                containers.setdefault(pod["uid"], set()).add(container["name"])
    claims = [claim for claim in claims_of(scenario, answer, prepared(scenario)) if claim.share is Share.DRA]
    found: dict[str, set[str]] = {}
    for claim in claims:
        assert {device.naming for device in claim.devices} == {Naming.MINOR}
        found.setdefault(claim.holder.id, set()).update(device.text for device in claim.devices)
        uids = containers[claim.holder.id]
        # The pod `split` has a container for each request of its claim; the kubelet lists both devices for both.
        assert claim.container in uids if claim.holder.name != "split" else claim.container == ""
    assert found == expected


@pytest.mark.parametrize(("scenario", "answer"), DRA, ids=[name for name, _ in DRA])
def test_claimed_device_without_specification_is_unresolved(scenario: str, answer: dict[str, Any]) -> None:
    for claim in claims_of(scenario, answer, {}):
        assert {device.naming for device in claim.devices} == {Naming.UNRESOLVED}
        assert all(device.text.startswith("gpu.nvidia.com/gpu-real/gpu-") for device in claim.devices)
        assert claim.claim.startswith(f"{claim.holder.namespace}/")


def test_claim_of_a_pod_names_claim_and_driver() -> None:
    ((scenario, answer),) = [one for one in LISTS if one[0] == "dra-extended-resource"]
    claims = {claim.holder.name: claim for claim in claims_of(scenario, answer, prepared(scenario))}
    assert claims["c-one"].claim == "ml/one"
    assert claims["ext"].claim == "ml/ext-extended-resources-9447z"
    assert {claim.resource for claim in claims.values()} == {"gpu.nvidia.com"}


def pod(*containers: ListedContainer) -> ListedPod:
    return ListedPod("ml", "a", containers)


def mapped(*containers: ListedContainer, cdi: Mapping[str, Identity] = {}) -> tuple[HolderClaim, ...]:
    return map_pods([pod(*containers)], PodIdentities(NodeFolders(), [pod()]), cdi)


def test_channel_of_a_compute_domain_is_no_gpu() -> None:
    channel = ListedClaim("ml", "cd", (ClaimedDevice("compute-domain.nvidia.com", "n1", "channel-0"),))
    assert mapped(ListedContainer("c", (), (channel,))) == ()


def test_replicas_are_counted_for_each_device() -> None:
    first, second = "GPU-7f5e7c15-0000-4000-8000-000000000001", "GPU-fe9ef82a-0000-4000-8000-000000000002"
    ids = [f"{first}::0", f"{first}::3", f"{second}::1", f"{first}::0"]
    claims = mapped(ListedContainer("c", tuple(("nvidia.com/gpu.shared", id_) for id_ in ids)))
    assert [(claim.replicas, [one.text for one in claim.devices]) for claim in claims] == [(1, [second]), (2, [first])]


SHARED = {
    name: answer
    for name, answer in ALLOCATABLE
    if name in ("timeslice-shared", "timeslice-gpu", "timeslice-mig", "gke-shared", "gke-mig-shared")
}


@pytest.mark.parametrize("scenario", SHARED)
def test_recorded_replicas_of_each_device_are_counted(scenario: str) -> None:
    lists = [answer for name, answer in recorded_kubelet.answers("List") if name == scenario]
    allocatable = parse_allocatable(recorded_kubelet.files()[SHARED[scenario]["bin"]])
    pods = [one for answer in lists for one in parse_pods(recorded_kubelet.files()[answer["bin"]])]
    claims = with_total_replicas(map_pods(pods, PodIdentities(NodeFolders(), pods), {}), allocatable)
    assert {claim.total_replicas for claim in claims if claim.replicas} == {2 if scenario.startswith("gke") else 4}
    assert any(claim.replicas for claim in claims)


def test_replicas_of_an_unhealthy_device_are_unknown() -> None:
    first, second = "GPU-7f5e7c15-0000-4000-8000-000000000001", "GPU-fe9ef82a-0000-4000-8000-000000000002"
    ids = [("nvidia.com/gpu", f"{first}::0"), ("nvidia.com/gpu", f"{second}::0"), ("nvidia.com/gpu", "nvidia7")]
    claims = mapped(ListedContainer("c", tuple(ids)))
    allocatable = [("nvidia.com/gpu", f"{second}::{number}") for number in (0, 0, 1)] + [("other", f"{first}::0")]
    found = {
        device.text: (claim.replicas, claim.total_replicas)
        for claim in with_total_replicas(claims, allocatable)
        for device in claim.devices
    }
    assert found == {first: (1, 0), second: (1, 2), "7": (0, 0)}


def test_pod_without_uid_is_identified_by_its_name() -> None:
    (claim,) = mapped(ListedContainer("c", (("nvidia.com/gpu", "nvidia0"),)))
    assert (claim.holder.id, claim.holder.name, claim.holder.namespace) == ("ml/a", "a", "ml")
    assert claim.container_id == ""


def test_claimed_device_of_another_vendor_is_ignored() -> None:
    claim = ListedClaim("ml", "net", (ClaimedDevice("dra.net", "node", "eth1", ("dra.net/nic=eth1",)),))
    assert mapped(ListedContainer("c", (), (claim,))) == ()


def test_container_of_a_single_claimed_device_is_known() -> None:
    claim = ListedClaim("ml", "g", (ClaimedDevice("gpu.nvidia.com", "node", "gpu-0", ("x/y=gpu-0",)),))
    claims = mapped(
        ListedContainer("a", (), (claim,)), ListedContainer("b", (), (claim,)), cdi={"x/y=gpu-0": (Naming.MINOR, "0")}
    )
    assert [claim.container for claim in claims] == ["a", "b"]


def test_names_to_look_up_are_cdi_names_only() -> None:
    claim = ListedClaim("ml", "g", (ClaimedDevice("gpu.nvidia.com", "node", "gpu-0", ("x/y=gpu-0",)),))
    container = ListedContainer("a", (("nvidia.com/gpu", "nvidia.com/gpu=1"), ("nvidia.com/gpu", "nvidia0")), (claim,))
    assert cdi_names([pod(container)]) == {"x/y=gpu-0", "nvidia.com/gpu=1"}


def test_group_with_one_gpu_becomes_its_pci_function() -> None:
    claim = HolderClaim(
        holder=Holder(kind=HolderKind.POD, id="uid"),
        devices=(DeviceName(Naming.IOMMU_GROUP, "42", "42"), DeviceName(Naming.IOMMU_GROUP, "43", "43")),
        method=Method.KUBELET,
    )
    gpus = {(Naming.IOMMU_GROUP, "42"): (Naming.PCI, "0000:5e:00.0")}
    (kept,) = with_pci_functions([claim], set(), gpus)
    assert kept.devices == (DeviceName(Naming.PCI, "0000:5e:00.0", "42"), DeviceName(Naming.IOMMU_GROUP, "43", "43"))


def test_devices_that_are_not_gpus_are_left_out() -> None:
    claims = mapped(ListedContainer("c", (("nvidia.com/nic", "0000:3b:00.0"), ("nvidia.com/vm", "0000:5e:00.0"))))
    assert pci_identities(claims) == {(Naming.PCI, "0000:3b:00.0"), (Naming.PCI, "0000:5e:00.0")}
    (kept,) = with_pci_functions(claims, {(Naming.PCI, "0000:3b:00.0")}, {})
    assert [device.text for device in kept.devices] == ["0000:5e:00.0"]
