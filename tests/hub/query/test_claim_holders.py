"""Holders by ResourceClaims in the hub's answers: devices, nodes and the list of holders."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.hub.query import claim_holders
from gpufleet.model.holdings import DeviceState, Holder, HolderKind, HolderState, Holding, HoldingVerdict, Share
from gpufleet.model.kubernetes import (
    AllocatedDevice,
    ClaimUser,
    ClusterClaim,
    ClusterDevice,
    ClusterNode,
    ClusterSlice,
    CopyState,
    CopyStatus,
)
from gpufleet.model.stored.kubernetes import ObjectKind
from gpufleet.model.time import NANOS
from tests.fakes.batches import NODE, gpu_view, make_batch
from tests.support.cluster_objects import pod
from tests.web.hub.site import Site, now, running_site
from tests.web.hub.test_cluster_objects import Collector, items

DRIVER, POOL = "gpu.nvidia.com", "kube-a"
UIDS = [f"{number}f2b6a1e-8d1c-4c1e-9a43-0b6f1d2c7e10" for number in range(3)]
COPIES = (ObjectKind.NODE, ObjectKind.POD, ObjectKind.SLICE, ObjectKind.CLAIM)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(claim_holders, "VALID_SECONDS", 0.0)
    async with running_site(tmp_path) as site:
        yield site


def copies(state: CopyState = CopyState.SYNCED) -> list[CopyStatus]:
    return [CopyStatus(resource=kind, state=state, since=now(), objects=2) for kind in COPIES]


async def collect(site: Site, *, state: CopyState = CopyState.SYNCED, system_uid: str = "kube-1", **more: Any) -> None:
    """Send a node with two GPUs, each with a claim of a pod that runs since an hour."""
    started = now() - 3600 * NANOS
    devices = tuple(
        ClusterDevice(driver=DRIVER, pool=POOL, name=f"gpu-{n}", node="kube-a", uuid=f"gpu-{n}") for n in range(2)
    )
    claims = [
        ClusterClaim(
            uid=f"claim-{n}",
            namespace="ml",
            name=f"c{n}",
            devices=(AllocatedDevice(driver=DRIVER, pool=POOL, name=f"gpu-{n}"),),
            reserved_for=(ClaimUser(resource="pods", name=f"p{n}", uid=UIDS[n]),),
        )
        for n in range(2)
    ]
    pods = [
        pod(UIDS[n], name=f"p{n}", node="kube-a", phase="Running", started=started, claims=(f"c{n}",), queue=f"q{n}")
        for n in range(2)
    ]
    await Collector(site, more.pop("name", "collector"), system_uid=system_uid).send(
        nodes=[ClusterNode(uid="n", name="kube-a", machine_id=NODE.machine_id or "")],
        slices=[ClusterSlice(uid="s", name="s", driver=DRIVER, pool=POOL, slices=1, node="kube-a", devices=devices)],
        claims=claims,
        pods=pods,
        copies=copies(state),
        **more,
    )


async def report(site: Site, *holdings: Holding, states: dict[int, HolderState] | None = None) -> None:
    """Post the report of an agent with three GPUs."""
    at = now()
    devices = tuple(DeviceState(view=gpu_view(n).key, state=state) for n, state in (states or {}).items())
    batch = make_batch(1, at, gpus=3)
    (one,) = batch.reports
    one = msgspec.structs.replace(one, holdings=holdings, device_holders=devices or None)
    await site.post(encode(msgspec.structs.replace(batch, reports=(one,))))


def held(number: int, id_: str, **fields: Any) -> Holding:
    known = {"share": Share.DRA, "since": now() - 60 * NANOS, "verdict": HoldingVerdict.AGREED, "container": "main"}
    holder = Holder(kind=HolderKind.POD, id=id_)
    return Holding(view=gpu_view(number).key, holder=holder, methods=("kubelet",), **{**known, **fields})


async def rows(site: Site, **query: Any) -> list[tuple[str, str, str]]:
    """Return name, verdict and methods of each row of the list of holders."""
    found = await items(site, "/v1/holders", **query)
    return [(one["holder"].get("name", ""), one["verdict"], "+".join(one["methods"])) for one in found]


async def shown(site: Site) -> list[tuple[str, list[str]]]:
    """Return the state of each GPU and the verdicts of its holders."""
    found = [one["holders"] for one in await items(site, "/v1/gpus")]
    return [(one["state"], [each["verdict"] for each in one.get("holdings", [])]) for one in found]


async def test_claims_name_the_holders_that_no_agent_reports(site: Site) -> None:
    await report(site)
    await collect(site)
    assert await rows(site) == [(f"p{n}", "declared_only", "resource_claim") for n in range(2)]
    assert await shown(site) == [("held", ["declared_only"]), ("held", ["declared_only"]), ("unknown", [])]
    (node,) = await items(site, "/v1/nodes/gpus")
    assert [one["holder"]["id"] for one in node["holders"]] == UIDS[:2]
    (row,) = await items(site, "/v1/holders", queue="q1")
    assert (row["claim"], row["share"], row["uuid"], row["current"]) == ("ml/c1", "dra", "GPU-1", True)
    for query in ({"name": "x"}, {"kind": "job"}, {"user": "u"}, {"machine": "other"}, {"id": UIDS[2]}):
        assert await rows(site, **query) == [], query
    assert await rows(site, start="2020-01-01T00:00:00Z") == []  # the past is not known


async def test_claim_and_kubelet_are_one_holder(site: Site) -> None:
    await report(site, held(0, UIDS[0]), held(1, "ml/p1", verdict=HoldingVerdict.UNKNOWN))
    await collect(site)
    assert await rows(site) == [
        ("p0", "agreed", "kubelet+resource_claim"),
        ("", "declared_only", "kubelet+resource_claim"),
    ]
    assert [verdicts for _, verdicts in (await shown(site))[:2]] == [["agreed"], ["declared_only"]]


async def test_claim_and_node_in_conflict_name_both(site: Site) -> None:
    free = dict.fromkeys((1, 2), HolderState.FREE)
    await report(site, held(0, UIDS[2], share=Share.EXCLUSIVE), states=free)
    await collect(site)
    assert await shown(site) == [("held", ["conflict", "conflict"]), ("held", ["conflict"]), ("free", [])]


async def test_pages_of_holders_have_each_row_once(site: Site) -> None:
    await report(site, held(0, UIDS[0]), held(2, UIDS[2]))
    await collect(site)
    whole, parts, cursor = await items(site, "/v1/holders"), [], None
    for _ in range(9):
        _, page = await site.request("/v1/holders?limit=1" + (f"&cursor={cursor}" if cursor else ""))
        parts += page["items"]
        cursor = page.get("next")
        if not cursor:
            break
    names = [[(one["device"], one["holder"]["id"]) for one in found] for found in (whole, parts)]
    assert names[0] == names[1] == [(f"local/{whole[0]['machine']}/gpu/GPU-{n}", UIDS[n]) for n in range(3)]


async def test_claims_of_stale_copies_are_not_certain(site: Site) -> None:
    await report(site)
    await collect(site, state=CopyState.STALE)
    assert {verdict for _, verdict, _ in await rows(site)} == {"unknown"}


async def test_claims_of_two_clusters_under_one_name_are_ignored(site: Site) -> None:
    await report(site)
    await collect(site)
    await collect(site, name="other", system_uid="kube-2")
    assert await rows(site) == []
