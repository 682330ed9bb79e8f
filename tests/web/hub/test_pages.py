"""Pagination of fleet lists, and coverage: reporting and expected GPUs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import body, gpu_view
from tests.support.accepted import accept
from tests.web.hub.site import Site, now, running_site

NODES = 7


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        names = [f"node-{number}" for number in (3, 1, 6, 2, 7, 5, 4)]
        await site.post(
            *(body(1, now(), sender=name, machine=Machine(name=name, machine_id=f"{name:0>32}")) for name in names)
        )
        yield site


async def pages(site: Site, path: str) -> list[Any]:
    found = []
    cursor = ""
    while True:
        status, page = await site.request(f"{path}{'&' if '?' in path else '?'}{cursor}")
        assert status == 200, page
        found.append(page)
        if page["next"] is None:
            return found
        cursor = f"cursor={page['next']}"


async def test_pages_join_in_order_without_duplicates(site: Site) -> None:
    for limit in [1, 2, 3, NODES, NODES + 1]:
        expected = [f"node-{number}" for number in range(1, NODES + 1)]
        found = await pages(site, f"/v1/nodes?limit={limit}")
        assert [one["machine"]["machine"]["name"] for page in found for one in page["items"]] == expected, limit
        assert len(found) == -(-NODES // limit), limit
        assert {(one["gpus"], one["gpus_reporting"]) for page in found for one in page["items"]} == {(2, 2)}, limit
        found = await pages(site, f"/v1/machines?limit={limit}")
        assert [one["machine"]["name"] for page in found for one in page["items"]] == expected, limit
        assert {one["gpus"] for page in found for one in page["items"]} == {2}, limit


async def test_devices_of_a_machine_are_on_one_page(site: Site) -> None:
    for limit in [1, 3, 4, 1000]:
        found = await pages(site, f"/v1/gpus?limit={limit}")
        assert [(one["node"], one["index"]) for page in found for one in page["items"]] == [
            (f"node-{number}", index) for number in range(1, NODES + 1) for index in (0, 1)
        ]
        for page in found:
            assert len(page["items"]) >= min(limit, 2) or page["next"] is None, limit
            assert len(page["items"]) <= limit + 16, limit


async def test_gpus_are_filtered_by_machine_name_or_id(site: Site) -> None:
    (machine, *_) = (await site.request("/v1/machines?limit=1"))[1]["items"]
    for machine_ref in ("node-1", machine["id"]):
        (page,) = await pages(site, f"/v1/gpus?machine={machine_ref}")
        assert [one["device"]["uuid"] for one in page["items"]] == ["GPU-0", "GPU-1"]
    assert (await site.request("/v1/gpus?machine=unknown"))[1]["items"] == []
    assert (await site.request("/v1/gpus?machine=node-1&cluster=other"))[1]["items"] == []


async def test_coverage_shows_reporting_and_expected_gpus(site: Site) -> None:
    (coverage,) = (await site.request("/v1/nodes?limit=1"))[1]["coverage"]
    sources = {"registration": None, "pci": None, "nvml": 14, "kubernetes": None}
    assert (coverage["reporting"], coverage["sources"], coverage["summary"]) == (
        14,
        sources,
        "14 of 14 expected by nvml",
    )
    await site.request("/v1/clusters/local", "PUT", {"team": "blue", "expected": {"H200": 500, "A100": 12}})
    await site.request("/v1/clusters/empty", "PUT", {"expected": {"H200": 8}})
    for path in ("/v1/nodes", "/v1/machines", "/v1/gpus"):
        content = [one["summary"] for one in (await site.request(f"{path}?limit=1"))[1]["coverage"]]
        assert content == ["0 of 8 expected by registration", "14 of 512 expected by registration"]
        (coverage,) = (await site.request(f"{path}?cluster=empty"))[1]["coverage"]
        assert (coverage["cluster"], coverage["reporting"]) == ("empty", 0)


async def test_invalid_parameters_are_refused_with_their_name(site: Site) -> None:
    for path in ["/v1/nodes", "/v1/machines", "/v1/gpus"]:
        for query, field in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("cursor=x", "cursor"),
            ("cursor=" + "A" * 9000, "cursor"),
            ("cursor=", "cursor"),
            ("limit=1&limit=2", "limit"),
            ("cluster=local&cluster=other", "cluster"),
            ("format=json&format=csv", "format"),
            ("clutser=local", "clutser"),
        ]:
            status, content = await site.request(f"{path}?{query}")
            assert (status, content["field"]) == (400, field), (query, field, path)


async def test_unknown_parameter_is_rejected_with_the_known_ones(site: Site) -> None:
    status, content = await site.request("/v1/nodes?node=node-1")
    assert (status, content["error"]) == (400, "bad_request")
    assert content["field"] == "node"
    assert content["detail"].endswith("cluster, cursor, format, limit")
    assert (await site.request("/v1/events?kind=xid&kind=gpu_lost&code=48&code=79"))[0] == 200
    assert (await site.request("/healthz?verbose=1"))[0] == 200  # health checks accept any parameter


def seen(view: View, reader: str, at: int) -> Sample:
    return Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=at, values={"gpu_power_watts": 90.0})


def listed(at: int) -> list[Sample]:
    """Return samples of GPUs that a fallback reader identifies by index only."""
    views = [View(kind=ViewKind.GPU, side=Side.HOST, instance=f"netdata/gpu{n}", index=n) for n in range(2)]
    return [seen(view, "netdata", at) for view in views]


@pytest.mark.parametrize("others", [0, 2])
async def test_gpus_known_by_index_are_counted_once(tmp_path: Path, others: int) -> None:
    async with running_site(tmp_path) as site:
        at = now()
        named = [seen(gpu_view(number), "nvml", at) for number in range(others)]
        await site.post(body(1, at, samples=(*listed(at), *named)))
        gpus = (await site.request("/v1/gpus"))[1]
        assert [one["device"].get("uuid") for one in gpus["items"]] == (["GPU-0", "GPU-1"] if others else [None, None])
        (node,) = (await site.request("/v1/nodes"))[1]["items"]
        assert (node["gpus"], node["gpus_reporting"], node["machine"]["gpus"]) == (2, 2, 2)
        (machine,) = (await site.request("/v1/machines"))[1]["items"]
        assert machine["gpus"] == 2
        assert (await site.request(f"/v1/machines/{machine['id']}"))[1]["gpus"] == 2
        assert gpus["coverage"][0]["reporting"] == 2


async def test_removed_mig_instance_is_not_listed(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        at = now() - 2 * NANOS
        gpu = gpu_view(0)
        mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=gpu.key)
        await site.post(body(1, at, samples=(seen(gpu, "nvml", at), seen(mig, "nvml", at))))
        kinds = [one["device"]["kind"] for one in (await site.request("/v1/gpus"))[1]["items"]]
        assert sorted(kinds) == ["gpu", "mig"]
        await site.post(body(2, at + NANOS, samples=(seen(gpu, "nvml", at + NANOS),)))
        page = (await site.request("/v1/gpus"))[1]
        assert [one["device"]["kind"] for one in page["items"]] == ["gpu"]
        (node,) = (await site.request("/v1/nodes"))[1]["items"]
        assert (node["gpus"], node["gpus_reporting"], page["coverage"][0]["reporting"]) == (1, 1, 1)


async def test_machine_missing_from_the_registry_affects_no_other(site: Site) -> None:
    """A registry restored from an older backup lacks newer machines."""
    at = now()
    vgpu = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="5b4e07f6-3a86-4340-839d-25f2a83cdc43")
    site.store.write([accept("local", "lost", [seen(gpu_view(9), "nvml", at), seen(vgpu, "nvml", at)])], "lost")
    assert (await site.request("/v1/gpus/GPU-9"))[0] == 404
    target = {"cluster": "local", "vm_uuid": "c77c546c-c5a2-4093-bc1b-8051983e7a61"}
    spec = {"kind": "gpu_slice", "tenant": "acme", "target": target, "devices": [vgpu.uuid]}
    assert (await site.request("/v1/allocations/slice", "PUT", spec))[0] == 201
    status, answer = await site.request("/v1/allocations/slice/metrics")
    assert (status, answer["source"], answer["devices"]) == (200, "unavailable", [])
