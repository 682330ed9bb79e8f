"""Clusters: registration, configuration and closing while the hub runs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from tests.fakes.batches import body
from tests.web.hub.site import Site, _exchange, now, running_site

NETDATA = "http://{node}:19999/"
SPEC = {
    "environment": "production",
    "team": "blue",
    "contact": "ops@example.org",
    "expected": {"H200": 64},
    "netdata_url": NETDATA,
}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


async def post(site: Site, seq: int, cluster: str) -> int:
    batch = body(seq, now(), cluster=cluster)
    return (await asyncio.to_thread(_exchange, f"{site.hub.url}/v1/batches", "POST", batch, CONTENT_TYPE))[0]


async def test_cluster_is_served_from_registration_to_close(site: Site) -> None:
    assert await post(site, 1, "b") == 403
    status, record = await site.request("/v1/clusters/b", "PUT", SPEC)
    assert (status, record["cluster"]["spec"], record["served"], record["configured"]) == (201, SPEC, True, False)
    assert await post(site, 1, "b") == 200
    bare: dict[str, Any] = {"kind": "bare_metal", "target": {"cluster": "b", "machine": "node-a"}}
    assert (await site.request("/v1/allocations/a", "PUT", bare))[0] == 201
    status, record = await site.request("/v1/clusters/b", "DELETE")
    assert (status, record["served"], "closed_at" in record["cluster"]) == (200, False, True)
    assert await post(site, 2, "b") == 403
    assert await post(site, 1, "b") == 403
    assert (await site.request("/v1/clusters/b", "DELETE"))[1]["cluster"] == record["cluster"]
    assert (await site.request("/v1/clusters/b", "PUT", {}))[0] == 200
    assert await post(site, 2, "b") == 200


async def test_configured_cluster_is_served_and_cannot_be_closed(site: Site) -> None:
    (local,) = (await site.request("/v1/clusters"))[1]
    assert (local["cluster"]["id"], local["served"], local["configured"]) == ("local", True, True)
    assert (await site.request("/v1/clusters/local", "PUT", SPEC))[0] == 201
    status, problem = await site.request("/v1/clusters/local", "DELETE")
    assert (status, problem["error"]) == (409, "conflict")
    assert await post(site, 1, "local") == 200


async def test_registered_clusters_survive_a_restart(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await site.request("/v1/clusters/b", "PUT", SPEC)
        await site.request("/v1/clusters/c", "PUT", SPEC)
        await site.request("/v1/clusters/c", "DELETE")
    async with running_site(tmp_path, clusters=("d",)) as site:
        found = {one["cluster"]["id"]: one["served"] for one in (await site.request("/v1/clusters"))[1]}
        assert found == {"b": True, "c": False, "d": True, "local": False}
        assert await post(site, 1, "b") == 200
        assert await post(site, 1, "c") == 403
        assert (await site.request("/v1/clusters/b"))[1]["cluster"]["spec"] == SPEC


async def test_unknown_and_invalid_cluster_ids(site: Site) -> None:
    for cluster in ["none", "-x", "a%20b", "x" * 300]:
        assert (await site.request(f"/v1/clusters/{cluster}"))[0] == 404, cluster
        assert (await site.request(f"/v1/clusters/{cluster}", "DELETE"))[0] == 404, cluster
        if cluster != "none":
            assert (await site.request(f"/v1/clusters/{cluster}", "PUT", {}))[0] == 400, cluster


async def test_contract_report_of_a_cluster_is_served_until_it_closes(site: Site) -> None:
    until = "2100-01-31T00:00:00Z"
    waiver = {"item": "ownership.contact", "until": until, "reason": "ticket 4711"}
    spec = {"team": "blue", "tier": 3, "waivers": [waiver, {**waiver, "item": "no.such_item"}]}
    status, record = await site.request("/v1/clusters/b", "PUT", spec)
    assert (status, record["cluster"]["spec"]) == (201, spec)
    status, report = await site.request("/v1/clusters/b/contract")
    assert (status, report["metadata"]["cluster"], report["metadata"]["tier"]) == (200, "b", 3)
    items = {one["id"]: one["status"] for own in report["spec"].values() for one in own}
    assert (items["ownership.team"], items["ownership.contact"]) == ("Implemented", "Waived")
    assert items["metadata.environment"] == "Not Implemented"
    assert "metadata.environment" in [one["item"] for one in report["not_visible"]]
    assert len(report["ignored_waivers"]) == 1
    assert (await site.request("/v1/clusters/b/contract?format=csv"))[0] == 400
    await site.request("/v1/clusters/b", "DELETE")
    for cluster in ("b", "none"):
        assert (await site.request(f"/v1/clusters/{cluster}/contract"))[0] == 404, cluster


async def test_invalid_cluster_spec_is_refused(site: Site) -> None:
    urls = ("javascript:alert(1)", "http://user:secret@host/", 'https://host/"onclick', "ftp://host/")
    wrong = [
        *({"surprise": 1}, {"expected": {"H200": -1}}, {"team": ""}, [], {"contact": 7}, {"tier": 5}),
        *({"netdata_url": url} for url in urls),
    ]
    for document in [*wrong, {"waivers": [{"item": "ownership.team"}]}]:
        assert (await site.request("/v1/clusters/b", "PUT", document))[0] == 400, document
        assert (await site.request("/v1/clusters/b"))[0] == 404, document
