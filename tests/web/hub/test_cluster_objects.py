"""Objects of Kubernetes in the hub's answers: collectors, nodes, and owners of pods."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from gpufleet.cli.query.fleet import fleet_tables
from gpufleet.cli.query.machines import nodes_tables
from gpufleet.cli.table import Layout, render
from gpufleet.cluster.machines import CountedNode, machine_report, node_machine
from gpufleet.codecs.batch import encode
from gpufleet.fleet.cluster_objects import OBJECT_TTL_NS
from gpufleet.model.access import Role
from gpufleet.model.api.answer import NodePage
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict, Owner, Share
from gpufleet.model.kubernetes import (
    ClusterNode,
    ClusterPod,
    ClusterVmi,
    CopyState,
    CopyStatus,
    GpuResourceKind,
    NodeCondition,
    NodeGpuResource,
    NodeTaint,
)
from gpufleet.model.machine import Machine
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import Batch, ClusterPart, MachineReport, RemovedObject
from tests.fakes.batches import EPOCH, NODE, gpu_sample, gpu_view, host_sample
from tests.security.guarded import guarded
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, now, running_site

UID = "5f2b6a1e-8d1c-4c1e-9a43-0b6f1d2c7e10"
OTHER = "6f2b6a1e-8d1c-4c1e-9a43-0b6f1d2c7e10"
JOB = Owner(kind="Job", name="train", uid="job-uid", api_version="batch/v1")
SET = Owner(kind="JobSet", name="trainer", uid="set-uid", api_version="jobset.x-k8s.io/v1alpha2")
POD = ClusterPod(
    uid=UID, namespace="ml", name="train-0", node="kube-a", created=1, owners=(JOB, SET), queue="research",
    labels={"app": "train"},
)  # fmt: skip
KUBE_NODE = ClusterNode(
    uid="node-uid",
    name="kube-a",
    machine_id=NODE.machine_id or "",
    labels={"karpenter.sh/nodepool": "h200"},
    resources=(NodeGpuResource(name="nvidia.com/gpu", kind=GpuResourceKind.GPU, capacity=8, allocatable=7),),
    conditions=(NodeCondition(kind="Ready", status="True"),),
    taints=(NodeTaint(key="nvidia.com/gpu", effect="NoSchedule"), NodeTaint(key="x", effect="PreferNoSchedule")),
    unschedulable=True,
)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


class Collector:
    """Sender of cluster parts and machine reports."""

    def __init__(self, site: Site, name: str = "collector", cluster: str = "local", system_uid: str = "kube-1") -> None:
        self.site, self.name, self.cluster, self.system_uid = site, name, cluster, system_uid
        self.seq = 0

    async def send(self, *, at: int | None = None, reports: Sequence[MachineReport] = (), **lists: Any) -> None:
        self.seq += 1
        at = now() if at is None else at
        status = [CopyStatus(resource="pods", state=CopyState.SYNCED, since=at - NANOS, objects=1)]
        fields = {"system_uid": self.system_uid, "server_version": "v1.36.2", "copies": status, **lists}
        part = ClusterPart(observed_at=at, **fields)
        batch = Batch(cluster=self.cluster, sender=self.name, epoch=EPOCH, seq=self.seq, sent_at=at, reports=())
        await self.site.post(encode(msgspec.structs.replace(batch, reports=tuple(reports), cluster_part=part)))


async def agent(site: Site, *holders: Holder, machine: Machine = NODE, gpus: int = 2, **fields: Any) -> None:
    """Post the report of an agent: each holder has a GPU."""
    at = now()
    fields = {"since": at - 60 * NANOS, **fields}
    held = [
        Holding(
            view=gpu_view(number).key, holder=holder, methods=("kubelet",), verdict=HoldingVerdict.AGREED, **fields
        )
        for number, holder in enumerate(holders)
    ]  # fmt: skip
    samples = (host_sample(at), *(gpu_sample(gpu_view(number), at) for number in range(gpus)))
    report = MachineReport(machine=machine, samples=samples, holdings=tuple(held))
    epoch = (machine.machine_id or EPOCH)[:32]
    await site.post(
        encode(Batch(cluster="local", sender=machine.name, epoch=epoch, seq=1, sent_at=at, reports=(report,)))
    )


def pod(uid: str = UID, **fields: Any) -> Holder:
    return Holder(kind=HolderKind.POD, id=uid, **fields)


async def items(site: Site, path: str, **query: Any) -> list[dict[str, Any]]:
    status, document = await site.request(f"{path}?{urlencode(query)}")
    assert status == 200, document
    return list(document["items"])


async def test_pod_has_the_owners_that_its_cluster_knows(site: Site) -> None:
    await agent(site, pod())
    await Collector(site).send(pods=[POD])
    expected = {
        "kind": "pod", "id": UID, "name": "train-0", "namespace": "ml", "queue": "research", "labels": {"app": "train"},
        "owners": [msgspec.to_builtins(one) for one in (JOB, SET)],
    }  # fmt: skip
    (row,) = await items(site, "/v1/holders")
    assert row["holder"] == expected
    assert [one["holders"]["holdings"][0]["holder"] for one in (await items(site, "/v1/gpus"))[:1]] == [expected]
    (node,) = await items(site, "/v1/nodes/gpus")
    assert [one["holder"] for one in node["holders"]] == [expected]
    for query in ({"queue": "research"}, {"namespace": "ml"}, {"name": "train-0"}):
        assert len(await items(site, "/v1/holders", **query)) == 1, query
    for query in ({"queue": "other"}, {"queue": ""}, {"namespace": ""}, {"name": "x"}):
        assert await items(site, "/v1/holders", **query) == [], query


async def test_ended_pod_keeps_its_owners(site: Site) -> None:
    await agent(site, pod(), until=now() - NANOS)
    collector = Collector(site)
    await collector.send(pods=[POD])
    await collector.send(removed=[RemovedObject("pods", UID, now())])
    (row,) = await items(site, "/v1/holders", start="2020-01-01T00:00:00Z")
    assert [one["name"] for one in row["holder"]["owners"]] == ["train", "trainer"]


async def test_pod_of_another_cluster_or_name_is_not_joined(site: Site) -> None:
    await site.request("/v1/clusters/other", "PUT", {})
    await agent(site, pod(namespace="ml", name="train-0"))
    await Collector(site, cluster="other").send(pods=[POD])
    await Collector(site).send(pods=[msgspec.structs.replace(POD, namespace="other")])
    (row,) = await items(site, "/v1/holders")
    assert row["holder"] == {"kind": "pod", "id": UID, "name": "train-0", "namespace": "ml"}


async def test_pod_without_uid_is_identified_on_its_node(site: Site) -> None:
    await agent(site, pod("ml/train-0", namespace="ml", name="train-0"))
    collector = Collector(site)
    elsewhere = msgspec.structs.replace(POD, uid=OTHER, node="kube-b")
    await collector.send(pods=[POD, elsewhere], nodes=[KUBE_NODE])
    (row,) = await items(site, "/v1/holders")
    assert (row["holder"]["id"], row["holder"]["queue"]) == (UID, "research")
    await collector.send(pods=[msgspec.structs.replace(elsewhere, node="kube-a")])
    (row,) = await items(site, "/v1/holders")
    assert (row["holder"]["id"], "queue" in row["holder"]) == ("ml/train-0", False)
    assert len(await items(site, "/v1/holders", name="train-0")) == 1
    assert await items(site, "/v1/holders", queue="research") == []


async def test_holders_are_selected_by_the_queue_of_an_identified_pod(site: Site) -> None:
    await agent(site, pod("ml/train-0", namespace="ml", name="train-0"))
    await Collector(site).send(pods=[POD], nodes=[KUBE_NODE])
    (row,) = await items(site, "/v1/holders", queue="research")
    assert row["holder"]["id"] == UID
    assert await items(site, "/v1/holders", queue="other") == []


HOUR = 3600 * NANOS
NAMELESS = Holder(kind=HolderKind.POD, id="ml/train-0", namespace="ml", name="train-0")


async def past_pod(site: Site) -> str:
    (row,) = await items(site, "/v1/holders", start="2020-01-01T00:00:00Z")
    return str(row["holder"]["id"])


async def test_past_pod_is_identified_after_the_end_of_its_node(site: Site) -> None:
    at = now()
    await agent(site, NAMELESS, since=at - 2 * HOUR, until=at - HOUR)
    collector = Collector(site)
    last_report = at - OBJECT_TTL_NS - 60 * NANOS
    await collector.send(at=last_report, pods=[msgspec.structs.replace(POD, created=at - 3 * HOUR)], nodes=[KUBE_NODE])
    assert await past_pod(site) == UID
    successor = msgspec.structs.replace(KUBE_NODE, uid="u2", name="kube-b", created=at - 1800 * NANOS)
    await collector.send(removed=[RemovedObject("nodes", "node-uid", at - 1800 * NANOS)], nodes=[successor])
    assert await past_pod(site) == UID


async def test_pod_is_not_identified_before_its_creation_or_after_its_end(site: Site) -> None:
    at = now()
    await agent(site, NAMELESS, since=at - 2 * HOUR)
    collector = Collector(site)
    await collector.send(pods=[msgspec.structs.replace(POD, created=at - HOUR)], nodes=[KUBE_NODE])
    assert await past_pod(site) == "ml/train-0"
    await collector.send(removed=[RemovedObject("pods", UID, at - 3 * HOUR)])
    await collector.send(pods=[msgspec.structs.replace(POD, uid=OTHER, created=at - 3 * HOUR)])
    assert await past_pod(site) == OTHER
    await collector.send(removed=[RemovedObject("pods", OTHER, at - HOUR)])
    assert await past_pod(site) == "ml/train-0"


async def test_pods_are_not_identified_while_collectors_are_in_conflict(site: Site) -> None:
    await agent(site, NAMELESS, pod(OTHER))
    await Collector(site, "a").send(nodes=[KUBE_NODE])
    listed = [POD, msgspec.structs.replace(POD, uid=OTHER, name="train-1")]
    await Collector(site, "b", system_uid="kube-2").send(pods=listed)
    found = {row["holder"]["id"]: row["holder"].get("queue") for row in await items(site, "/v1/holders")}
    assert found == {"ml/train-0": None, OTHER: "research"}


async def test_pod_of_another_node_is_not_joined(site: Site) -> None:
    await agent(site, pod())
    collector = Collector(site)
    await collector.send(pods=[msgspec.structs.replace(POD, node="kube-b")])
    (row,) = await items(site, "/v1/holders")
    assert row["holder"]["queue"] == "research"  # the node of the machine is unknown
    await collector.send(nodes=[KUBE_NODE])
    (row,) = await items(site, "/v1/holders")
    assert row["holder"] == {"kind": "pod", "id": UID}


async def test_objects_of_a_stale_copy_stay(site: Site) -> None:
    lost = now() - 2 * HOUR
    await agent(site, pod())
    collector = Collector(site)
    await collector.send(at=lost, pods=[POD], nodes=[KUBE_NODE])
    await collector.send(copies=[CopyStatus(resource="nodes", state=CopyState.STALE, since=lost + NANOS)])
    (node,) = await items(site, "/v1/nodes")
    assert node["kubernetes_node"]["age_seconds"] >= 7200
    await collector.send(copies=[CopyStatus(resource="nodes", state=CopyState.SYNCED, since=now())])
    (node,) = await items(site, "/v1/nodes")
    assert node.get("kubernetes_node") is None


async def test_launcher_pod_has_its_virtual_machine(site: Site) -> None:
    machine = Owner(kind="VirtualMachine", name="vm-0", uid="vm-uid")
    vmi = ClusterVmi(uid="vmi-uid", namespace="ml", name="vm-0", pods={UID: "kube-a"}, machine=machine)
    await agent(site, pod())
    await Collector(site).send(pods=[msgspec.structs.replace(POD, vmi="vmi-uid", owners=())], vmis=[vmi])
    (row,) = await items(site, "/v1/holders")
    assert row["parent"] == {
        "kind": "vm", "id": "vmi-uid", "name": "vm-0", "namespace": "ml", "owners": [msgspec.to_builtins(machine)]
    }  # fmt: skip


async def test_node_shows_its_kubernetes_node(site: Site) -> None:
    await agent(site)
    collector = Collector(site)
    await collector.send(nodes=[KUBE_NODE, ClusterNode(uid="u", name=NODE.name)])
    (node,) = await items(site, "/v1/nodes")
    found = node["kubernetes_node"]
    assert found.pop("age_seconds") < 60
    assert found == {
        "uid": "node-uid",
        "name": "kube-a",
        "ready": "True",
        "cordoned": True,
        "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
        "pools": {"karpenter.sh/nodepool": "h200"},
    }
    page = msgspec.convert((await site.request("/v1/nodes"))[1], NodePage)
    text = str(render(nodes_tables(page, {}), Layout(wide=True), width=1000))
    assert all(one in text for one in ("kube-a", "ready, cordoned", "nvidia.com/gpu:NoSchedule", "h200"))
    await collector.send(nodes=[msgspec.structs.replace(KUBE_NODE, uid="u2", name="kube-b")])
    (node,) = await items(site, "/v1/nodes")
    assert (node.get("kubernetes_node"), node["kubernetes_candidates"]) == (None, ["kube-a", "kube-b"])


async def test_node_without_agent_is_expected_and_not_seen(site: Site) -> None:
    await agent(site)
    unseen = msgspec.structs.replace(KUBE_NODE, uid="u2", name="kube-b", machine_id="b" * 32)
    nodes = [KUBE_NODE, unseen]
    reports = [report for one in nodes if (report := machine_report(CountedNode(one), now())) is not None]
    await Collector(site).send(nodes=nodes, reports=reports)
    _, cluster = await site.request("/v1/clusters/local")
    assert cluster["coverage"]["sources"]["kubernetes"] == 16
    assert cluster["coverage"]["summary"] == "2 of 16 expected by kubernetes"
    found = {one["machine"]["machine"]["name"]: one for one in await items(site, "/v1/nodes")}
    assert {name: one["machine"].get("named_only", False) for name, one in found.items()} == {
        NODE.name: False,
        "kube-b": True,
    }
    assert {one["kubernetes_node"]["name"] for one in found.values()} == {"kube-a", "kube-b"}
    assert node_machine(unseen).k8s_node_uid == "u2"


async def collection(site: Site) -> dict[str, Any]:
    _, cluster = await site.request("/v1/clusters/local")
    return dict(cluster["collection"])


async def test_collector_and_its_copies_are_shown(site: Site) -> None:
    found = await collection(site)
    assert (found["state"], "collectors" in found) == ("absent", False)
    at = now()
    copies = [
        CopyStatus(resource="pods", state=CopyState.SYNCED, since=at - 5 * NANOS, objects=3),
        CopyStatus(resource="nodes", state=CopyState.STALE, since=at - 90 * NANOS, detail="timeout"),
        CopyStatus(resource="x.y", state=CopyState.NOT_SERVED, since=at),
        CopyStatus(resource="z", state=CopyState.STARTING, since=at),
    ]
    await Collector(site).send(at=at, copies=copies)
    found = await collection(site)
    assert (found["state"], found["detail"]) == ("partial", "nodes stale, z starting")
    (one,) = found["collectors"]
    assert (one["sender"], one["server_version"], one["system_uid"]) == ("collector", "v1.36.2", "kube-1")
    ages = {copy["resource"]: copy.get("age_seconds") for copy in one["copies"]}
    assert ages["pods"] < 60 <= ages["nodes"]
    assert ages["z"] is None
    answer = msgspec.convert((await site.request("/v1/fleet"))[1], FleetAnswer)
    text = str(render(fleet_tables(answer), Layout(wide=True), width=1000))
    assert "partial" in text
    assert "v1.36.2" in text


async def test_collectors_of_two_clusters_are_a_conflict(site: Site) -> None:
    await Collector(site, "a").send()
    assert (await collection(site))["state"] == "current"
    await Collector(site, "b").send(system_uid="kube-2")
    found = await collection(site)
    assert (found["state"], [one["current"] for one in found["collectors"]]) == ("conflict", [True, True])


async def test_collector_that_does_not_report_is_absent(site: Site) -> None:
    await Collector(site).send(at=now() - OBJECT_TTL_NS - NANOS, nodes=[KUBE_NODE])
    await agent(site)
    found = await collection(site)
    assert (found["state"], [one["current"] for one in found["collectors"]]) == ("absent", [False])
    (node,) = await items(site, "/v1/nodes")
    assert "kubernetes_node" not in node or node["kubernetes_node"] is None


async def test_hostile_objects_cost_themselves(site: Site) -> None:
    await agent(site, pod())
    bad = [msgspec.structs.replace(POD, uid="a\x1b"), msgspec.structs.replace(POD, uid="b/c")]
    good = msgspec.structs.replace(POD, queue="re\x1b[31msearch", labels={"a\x07": "b\n"})
    ends = [RemovedObject("pods.x", UID, 1), RemovedObject("secrets", UID, 1)]
    await Collector(site).send(pods=[*bad, POD, good], removed=ends)
    (row,) = await items(site, "/v1/holders")
    assert (row["holder"]["queue"], row["holder"]["labels"]) == ("re[31msearch", {"a": "b"})
    assert "gpufleet_hub_dropped_objects_total 5" in await site.text("/metrics")


async def test_tenants_see_nothing_of_the_pods_of_others(tmp_path: Path) -> None:
    own = msgspec.structs.replace(POD, owners=())
    secret = msgspec.structs.replace(POD, uid=OTHER, name="hidden-pod", owners=(SET,), labels={"hidden": "hidden"})
    async with guarded(tmp_path) as site:
        at = now()
        held = tuple(
            Holding(
                view=gpu_view(0).key,
                holder=pod(one.uid),
                since=at - NANOS,
                methods=("kubelet",),
                verdict=HoldingVerdict.AGREED,
                share=Share.TIMESLICE,
            )
            for one in (own, secret)
        )
        report = MachineReport(machine=NODE, samples=(gpu_sample(gpu_view(0), at),), holdings=held)
        part = ClusterPart(observed_at=at, pods=[own, secret], nodes=[KUBE_NODE])
        batch = Batch(cluster="local", sender="s", epoch=EPOCH, seq=1, sent_at=at, reports=(report,), cluster_part=part)
        assert (await site.post(encode(batch), site.secrets[Role.SENDER])).status == 200

        async def stored() -> bool:
            return bool(site.store.seqs)

        await wait_until_async(stored, what="the batch to be stored")
        spec = {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": UID}, "tenant": "acme"}
        spec |= {"valid_from": to_datetime(at - NANOS).isoformat()}
        assert (await site.request("/v1/allocations/a", site.secrets[Role.ADMIN], "PUT", spec)).status == 201
        tenant, operator = site.secrets[Role.TENANT], site.secrets[Role.OPERATOR]
        listed = await site.request("/v1/holders", operator)
        assert b"hidden-pod" in listed.body
        for path in (
            "/v1/holders",
            "/v1/gpus",
            "/v1/nodes",
            "/v1/nodes/gpus",
            "/v1/clusters",
            "/v1/usage?group_by=owner",
        ):
            assert (await site.request(path, tenant)).status in (400, 403), path
        window = f"start={to_datetime(at - NANOS).isoformat()}".replace("+", "%2B")
        for path in ("/v1/allocations/a/metrics", "/v1/allocations/a", f"/v1/usage?{window}"):
            reply = await site.request(path, tenant)
            assert reply.status == 200, path
            assert not any(text in reply.body for text in (b"hidden", b"research", b"trainer", OTHER.encode())), path


async def test_usage_by_owner_and_queue_has_the_pods_of_the_cluster(site: Site) -> None:
    await agent(site, pod(), pod(OTHER))
    collector = Collector(site)
    await collector.send(pods=[POD, msgspec.structs.replace(POD, uid=OTHER, owners=(JOB,), queue="")])
    await collector.send(removed=[RemovedObject("pods", UID, now())])
    end = to_datetime(now()).isoformat().replace("+", "%2B")
    begin = to_datetime(now() - 3600 * NANOS).isoformat().replace("+", "%2B")
    _, found = await site.request(f"/v1/usage?group_by=owner,queue&start={begin}&end={end}")
    rows = [row["group"] for row in found["rows"] if row.get("holder_absent") is None]
    assert sorted(rows, key=str) == [
        {"owner": "Job/train", "queue": None},
        {"owner": "JobSet/trainer", "queue": "research"},
    ]


async def test_next_pod_of_a_name_leaves_the_past_to_the_one_before(site: Site) -> None:
    """A pod of a StatefulSet is known by its name only. Its successor is another pod of this name on its node."""
    at = now()
    await agent(site, NAMELESS, since=at - 2 * HOUR, until=at - HOUR)
    collector = Collector(site)
    first = msgspec.structs.replace(POD, created=at - 2 * HOUR)
    await collector.send(pods=[first], nodes=[KUBE_NODE])
    window = urlencode({"start": to_datetime(at - 3 * HOUR).isoformat(), "end": to_datetime(at - HOUR).isoformat()})

    async def by_owner() -> dict[str | None, float]:
        rows = (await site.request(f"/v1/usage?group_by=owner&{window}"))[1]["rows"]
        held = [row for row in rows if row.get("holder_absent") is None]
        return {row["group"]["owner"]: round(row["held_gpu_hours"], 6) for row in held}

    assert await by_owner() == {"JobSet/trainer": 1.0}
    successor = msgspec.structs.replace(POD, uid=OTHER, created=at - HOUR + 2 * NANOS, owners=(JOB,))
    await collector.send(removed=[RemovedObject("pods", UID, at - HOUR)], pods=[successor])
    assert await by_owner() == {"JobSet/trainer": 1.0}
    assert await past_pod(site) == UID
