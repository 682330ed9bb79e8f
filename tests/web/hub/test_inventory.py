"""Inventory history over HTTP: moved and replaced GPUs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.model.machine import Machine
from gpufleet.model.time import NANOS
from tests.fakes.batches import body, gpu_sample, gpu_view
from tests.web.hub.site import Site, now, running_site

FIRST, SECOND = "0000:1b:00.0", "0000:2b:00.0"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Yield a hub after GPU-0 was replaced by GPU-1 in node-a, moved to node-b, and moved to another slot there."""
    async with running_site(tmp_path) as site:
        at = now() - 60 * NANOS
        for second, (name, gpu, slot) in enumerate(
            [("node-a", 0, FIRST), ("node-a", 1, FIRST), ("node-b", 0, FIRST), ("node-b", 0, SECOND)]
        ):
            instant = at + second * NANOS
            sample = gpu_sample(gpu_view(gpu), instant, gpu_power_watts=1.0, gpu_pci_address=slot)
            machine = Machine(name=name, machine_id=f"{name:0>32}")
            await site.post(body(second + 1, instant, sender=name, machine=machine, samples=(sample,)))
        yield site


async def test_changes_are_listed_newest_first(site: Site) -> None:
    _, page = await site.request("/v1/gpus/changes")
    changes = [
        (one["kind"], one["node"], one["pci_address"], one["device"], one["before_pci_address"], one["before_device"])
        for one in page["items"]
    ]
    assert changes == [
        ("moved", "node-b", SECOND, "gpu/GPU-0", FIRST, None),
        ("moved", "node-b", FIRST, "gpu/GPU-0", FIRST, None),
        ("replaced", "node-a", FIRST, "gpu/GPU-1", None, "gpu/GPU-0"),
    ]
    assert page["items"][1]["before_machine"] != page["items"][1]["machine"]
    assert page["next"] is None
    for query, expected in (
        ("kind=replaced", ["node-a"]),
        ("machine=node-b", ["node-b", "node-b"]),
        ("machine=unknown", []),
        ("cluster=other", []),
        ("until=2020-01-01T00:00:00Z", []),
    ):
        _, page = await site.request(f"/v1/gpus/changes?{query}")
        assert [one["node"] for one in page["items"]] == expected, query
    for invalid in ("kind=x", "limit=0", "since=x", "since=2030-01-01T00:00:00Z", "cursor=x"):
        assert (await site.request(f"/v1/gpus/changes?{invalid}"))[0] == 400, invalid
    found, cursor = [], ""
    while True:
        _, page = await site.request(f"/v1/gpus/changes?limit=1{cursor}")
        assert "items" in page, page
        found += page["items"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert [one["kind"] for one in found] == ["moved", "moved", "replaced"]


async def test_gpu_history_has_its_places_and_its_slot(site: Site) -> None:
    (machine,) = [one for one in (await site.request("/v1/machines"))[1]["items"] if one["machine"]["name"] == "node-b"]
    _, gpu = await site.request(f"/v1/gpus/local/{machine['id']}/gpu/GPU-0")
    places = [(one["node"], one["pci_address"], one["is_newest"]) for one in gpu["history"]["places"]]
    assert places == [("node-b", SECOND, True), ("node-b", FIRST, False), ("node-a", FIRST, False)]
    assert [one["id"] for one in gpu["history"]["slot"]] == [f"local/{machine['id']}/gpu/GPU-0"]
    _, other = await site.request("/v1/gpus/GPU-1")
    assert [one["id"].rpartition("/")[2] for one in other["history"]["slot"]] == ["GPU-1", "GPU-0"]
    assert all("history" not in one for one in (await site.request("/v1/gpus"))[1]["items"])


async def test_pools_are_a_list(site: Site) -> None:
    assert await site.request("/v1/gpus/pools") == (200, [])
    assert (await site.request("/v1/gpus/pools?cursor=x"))[0] == 400
