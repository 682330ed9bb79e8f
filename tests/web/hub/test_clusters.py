"""Clusters are registered, served and closed while the hub runs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from tests.fakes.batches import body
from tests.web.hub.site import Site, _exchange, now, running_site

SPEC = {"environment": "production", "team": "blue", "contact": "ops@example.org", "expected": {"H200": 64}}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


async def post(site: Site, seq: int, cluster: str) -> int:
    batch = body(seq, now(), cluster=cluster)
    return (await asyncio.to_thread(_exchange, f"{site.hub.url}/v1/batches", "POST", batch, CONTENT_TYPE))[0]


async def test_a_cluster_is_served_from_its_registration_to_its_close(site: Site) -> None:
    assert await post(site, 1, "b") == 403
    status, record = await site.ask("/v1/clusters/b", "PUT", SPEC)
    assert (status, record["cluster"]["spec"], record["served"], record["configured"]) == (201, SPEC, True, False)
    assert await post(site, 1, "b") == 200
    bare: dict[str, Any] = {"kind": "bare_metal", "target": {"cluster": "b", "machine": "node-a"}}
    assert (await site.ask("/v1/allocations/a", "PUT", bare))[0] == 201
    status, record = await site.ask("/v1/clusters/b", "DELETE")
    assert (status, record["served"], "closed_at" in record["cluster"]) == (200, False, True)
    assert await post(site, 2, "b") == 403
    assert await post(site, 1, "b") == 403
    assert (await site.ask("/v1/clusters/b", "DELETE"))[1] == record
    assert (await site.ask("/v1/clusters/b", "PUT", {}))[0] == 200
    assert await post(site, 2, "b") == 200


async def test_one_of_the_configuration_is_served_beside_them(site: Site) -> None:
    (local,) = (await site.ask("/v1/clusters"))[1]
    assert (local["cluster"]["id"], local["served"], local["configured"]) == ("local", True, True)
    assert (await site.ask("/v1/clusters/local", "PUT", SPEC))[0] == 201
    status, words = await site.ask("/v1/clusters/local", "DELETE")
    assert (status, words["error"]) == (409, "conflict")
    assert await post(site, 1, "local") == 200


async def test_what_was_registered_outlives_the_hub(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await site.ask("/v1/clusters/b", "PUT", SPEC)
        await site.ask("/v1/clusters/c", "PUT", SPEC)
        await site.ask("/v1/clusters/c", "DELETE")
    async with running_site(tmp_path, clusters=("d",)) as site:
        found = {one["cluster"]["id"]: one["served"] for one in (await site.ask("/v1/clusters"))[1]}
        assert found == {"b": True, "c": False, "d": True, "local": False}
        assert await post(site, 1, "b") == 200
        assert await post(site, 1, "c") == 403
        assert (await site.ask("/v1/clusters/b"))[1]["cluster"]["spec"] == SPEC


async def test_what_is_not_there_or_cannot_be(site: Site) -> None:
    for cluster in ["none", "-x", "a%20b", "x" * 300]:
        assert (await site.ask(f"/v1/clusters/{cluster}"))[0] == 404, cluster
        assert (await site.ask(f"/v1/clusters/{cluster}", "DELETE"))[0] == 404, cluster
        if cluster != "none":
            assert (await site.ask(f"/v1/clusters/{cluster}", "PUT", {}))[0] == 400, cluster


async def test_a_body_that_cannot_be_meant(site: Site) -> None:
    for document in [{"surprise": 1}, {"expected": {"H200": -1}}, {"team": ""}, [], {"contact": 7}]:
        assert (await site.ask("/v1/clusters/b", "PUT", document))[0] == 400, document
        assert (await site.ask("/v1/clusters/b"))[0] == 404, document
