"""Names that stand for machines, clusters and devices, and the list of the nodes' GPUs."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.model.catalogue import Lane
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import body, gpu_sample, gpu_view, host_sample, make_batch
from tests.web.hub.site import Site, now, running_site

UUIDS = ("GPU-5a61abb5-f88e-4df2-8e2f-bd67b3cf7a55", "GPU-5a61abb6-f88e-4df2-8e2f-bd67b3cf7a55")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def view(number: int) -> View:
    return View(kind=ViewKind.GPU, side=Side.HOST, uuid=UUIDS[number], pci_address=f"0000:1{number}:00.0", index=number)


async def post_two_gpus(site: Site) -> None:
    at = now()
    await site.post(encode(make_batch(1, at, samples=tuple(gpu_sample(view(n), at) for n in range(2)))))


@pytest.mark.parametrize(
    "name", ["GPU-5a61abb5", "gpu-5A61ABB5", "5a61abb5", UUIDS[0], "gpu/GPU-5a61abb5", "node-a/10:00.0", "node-a/0"]
)
async def test_short_id_stands_for_a_gpu(site: Site, name: str) -> None:
    await post_two_gpus(site)
    status, document = await site.request(f"/v1/gpus/{quote(name)}")
    assert (status, document["device"]["uuid"]) == (200, UUIDS[0])


async def test_gpu_keeps_its_index_if_the_newest_reader_has_none(site: Site) -> None:
    at = now()
    newest = gpu_sample(msgspec.structs.replace(view(0), index=None), at + 1)
    samples = gpu_sample(view(0), at), msgspec.structs.replace(newest, reader="netdata")
    await site.post(encode(make_batch(1, at, samples=samples)))
    _, page = await site.request("/v1/gpus")
    assert [one.get("index") for one in page["items"]] == [0]
    assert (await site.request("/v1/gpus/node-a/0"))[0] == 200


async def test_ambiguous_short_id_lists_the_devices(site: Site) -> None:
    await post_two_gpus(site)
    status, document = await site.request("/v1/gpus/GPU-5a61")
    assert (status, len(document["candidates"])) == (409, 2)
    for id_ in document["candidates"]:
        assert (await site.request(f"/v1/gpus/{id_}"))[0] == 200


@pytest.mark.parametrize("name", ["GPU-5a6", "GPU-5b61", "node-a/7", "node-a/", "node-b/0", "gpu/GPU-5b61", "%"])
async def test_name_of_no_gpu_is_404(site: Site, name: str) -> None:
    await post_two_gpus(site)
    assert (await site.request(f"/v1/gpus/{quote(name)}"))[0] == 404


async def test_exact_uuid_wins_over_longer_ones(site: Site) -> None:
    at = now()
    samples = tuple(gpu_sample(gpu_view(number), at) for number in (1000, 10_000))
    await site.post(encode(make_batch(1, at, samples=samples)))
    assert (await site.request("/v1/gpus/GPU-1000"))[1]["device"]["uuid"] == "GPU-1000"


async def test_machine_is_found_and_retired_by_name(site: Site) -> None:
    await site.post(body(1, now()))
    status, document = await site.request("/v1/machines/node-a")
    assert (status, document["machine"]["name"]) == (200, "node-a")
    status, document = await site.request("/v1/machines/node-a", "DELETE")
    assert (status, document["liveness"]["state"]) == (200, "retired")


async def test_ambiguous_machine_name_is_not_retired(site: Site) -> None:
    other = Machine(name="node-a", machine_id="b" * 32, system_uuid="other", boot_id="boot-b")
    await site.post(body(1, now()), body(1, now(), sender="other", epoch="b" * 32, machine=other))
    status, document = await site.request("/v1/machines/node-a", "DELETE")
    assert (status, len(document["candidates"])) == (409, 2)


async def test_unknown_machine_and_cluster_have_suggestions(site: Site) -> None:
    await site.post(body(1, now()))
    for path, expected in (
        ("/v1/machines/node-b", ["node-a"]),
        ("/v1/machines/zzz", None),
        ("/v1/clusters/locl", ["local"]),
        ("/v1/clusters/zzz", None),
    ):
        for method in ("GET", "DELETE"):
            status, document = await site.request(path, method)
            assert (status, document.get("candidates")) == (404, expected), (method, path)


async def test_nodes_are_listed_with_models_load_and_holders(site: Site) -> None:
    at = now()
    holder = Holder(kind=HolderKind.POD, id="uid-1", name="train-0", namespace="ml")
    holdings = tuple(
        Holding(view=gpu_view(n).key, holder=holder, since=at, methods=("kubelet",), verdict=HoldingVerdict.AGREED)
        for n in range(2)
    )
    samples = tuple(
        gpu_sample(gpu_view(n), at, gpu_power_watts=100.0, gpu_utilization_ratio=n / 2, gpu_name="NVIDIA H200")
        for n in range(2)
    )
    samples += (gpu_sample(gpu_view(2), at, gpu_power_watts=50.0, gpu_name="NVIDIA H200"),)
    batch = make_batch(1, at, samples=(host_sample(at), *samples))
    (report,) = batch.reports
    batch = msgspec.structs.replace(batch, reports=(msgspec.structs.replace(report, holdings=holdings),))
    await site.post(encode(batch))
    status, document = await site.request("/v1/nodes/gpus?cluster=local")
    assert status == 200
    (row,) = document["items"]
    assert row["models"] == {"NVIDIA H200": 3}
    assert (row["utilization_ratio"], row["utilization_gpus"]) == (0.25, 2)
    assert (row["power_watts"], row["power_gpus"]) == (250.0, 3)
    assert [(one["holder"]["name"], one["devices"], one["verdict"]) for one in row["holders"]] == [
        ("train-0", 2, "agreed")
    ]
    assert document["next"] is None


async def test_gpu_has_the_numa_node_of_its_slot(site: Site) -> None:
    """Of the newest inventory. A slot without a node, and a machine without an inventory, have none."""
    at = now()
    unplaced = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-3")
    views = {view(0): "0000:10:00.0", view(1): "0000:11:00.0", unplaced: "0000:12:00.0"}
    for seq, nodes in ((1, (5, 5, 5)), (2, (0, None, 1))):
        batch = make_batch(
            seq, at + seq, samples=tuple(gpu_sample(one, at + seq, gpu_pci_address=slot) for one, slot in views.items())
        )
        inventory = tuple(
            PciFunction(address=slot, vendor=0x10DE, device=0x2335, class_code=0x030200, numa_node=node)
            for slot, node in zip(views.values(), nodes, strict=True)
        )
        (report,) = batch.reports
        await site.post(
            encode(msgspec.structs.replace(batch, reports=(msgspec.structs.replace(report, inventory=inventory),)))
        )
    other = Machine(name="node-b", machine_id="b" * 32)
    await site.post(body(1, at, sender="node-b", machine=other, samples=(gpu_sample(gpu_view(7), at),)))
    _, page = await site.request("/v1/gpus")
    assert [one.get("numa_node") for one in page["items"]] == [0, None, 1, None]
    assert (await site.request(f"/v1/gpus/{UUIDS[0]}"))[1]["numa_node"] == 0


async def test_lost_gpu_does_not_report_in_any_answer(site: Site) -> None:
    at = now()
    working = [gpu_sample(view(number), at, gpu_power_watts=100.0, gpu_state="ok") for number in range(2)]
    slow = msgspec.structs.replace(working[0], lane=Lane.SLOW, values={"gpu_temperature_celsius": 50.0})
    await site.post(encode(make_batch(1, at, samples=(*working, slow))))
    lost = (gpu_sample(view(0), at + 1, gpu_state="lost"), gpu_sample(view(1), at + 1, gpu_power_watts=100.0))
    await site.post(encode(make_batch(2, at + 1, samples=lost)))
    _, page = await site.request("/v1/nodes")
    assert [(one["gpus"], one["gpus_reporting"]) for one in page["items"]] == [(2, 1)]
    _, fleet = await site.request("/v1/fleet")
    assert [one["reporting"] for one in page["coverage"]] == [fleet["gpus_reporting"]] == [1]
    assert fleet["gpus_expected"] == 2
