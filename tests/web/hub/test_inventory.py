"""The inventory's history over HTTP: what moved, what was replaced, and where a GPU was."""

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
    """Give a hub that was told of GPU-0 in node-a, GPU-1 in its place, GPU-0 in node-b, and there in another slot."""
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


async def test_what_changed_newest_first(site: Site) -> None:
    _, page = await site.ask("/v1/gpus/changes")
    told = [
        (one["kind"], one["node"], one["pci_address"], one["device"], one["before_pci_address"], one["before_device"])
        for one in page["items"]
    ]
    assert told == [
        ("moved", "node-b", SECOND, "gpu/GPU-0", FIRST, None),
        ("moved", "node-b", FIRST, "gpu/GPU-0", FIRST, None),
        ("replaced", "node-a", FIRST, "gpu/GPU-1", None, "gpu/GPU-0"),
    ]
    assert page["items"][1]["before_machine"] != page["items"][1]["machine"]
    assert page["next"] is None
    for asked, expected in (
        ("kind=replaced", ["node-a"]),
        ("machine=node-b", ["node-b", "node-b"]),
        ("machine=nobody", []),
        ("cluster=other", []),
        ("until=2020-01-01T00:00:00Z", []),
    ):
        _, page = await site.ask(f"/v1/gpus/changes?{asked}")
        assert [one["node"] for one in page["items"]] == expected, asked
    for wrong in ("kind=x", "limit=0", "since=x", "since=2030-01-01T00:00:00Z", "cursor=x"):
        assert (await site.ask(f"/v1/gpus/changes?{wrong}"))[0] == 400, wrong
    found, cursor = [], ""
    while True:
        _, page = await site.ask(f"/v1/gpus/changes?limit=1{cursor}")
        assert "items" in page, page
        found += page["items"]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert [one["kind"] for one in found] == ["moved", "moved", "replaced"]


async def test_where_one_gpu_was_and_what_was_in_its_slot(site: Site) -> None:
    (machine,) = [one for one in (await site.ask("/v1/machines"))[1]["items"] if one["machine"]["name"] == "node-b"]
    _, gpu = await site.ask(f"/v1/gpus/local/{machine['id']}/gpu/GPU-0")
    places = [(one["node"], one["pci_address"], one["is_newest"]) for one in gpu["history"]["places"]]
    assert places == [("node-b", SECOND, True), ("node-b", FIRST, False), ("node-a", FIRST, False)]
    assert [one["id"] for one in gpu["history"]["slot"]] == [f"local/{machine['id']}/gpu/GPU-0"]
    _, other = await site.ask("/v1/gpus/GPU-1")
    assert [one["id"].rpartition("/")[2] for one in other["history"]["slot"]] == ["GPU-1", "GPU-0"]
    assert all("history" not in one for one in (await site.ask("/v1/gpus"))[1]["items"])


async def test_pools_are_a_list(site: Site) -> None:
    assert await site.ask("/v1/gpus/pools") == (200, [])
    assert (await site.ask("/v1/gpus/pools?cursor=x"))[0] == 400
