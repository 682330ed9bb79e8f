"""Bundles at a hub: every body has the result of a single post."""

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, MAX_BODIES, WAITED_HEADER, pack
from gpufleet.config.hub import IngestConfig
from gpufleet.model.machine import Machine
from tests.fakes.batches import body
from tests.support.waiting import PATIENCE, wait_until_async
from tests.web.hub.site import Site, now, running_site


async def post(site: Site, content: bytes, **more: str) -> tuple[int, Any]:
    def exchange() -> tuple[int, Any]:
        headers = {"Content-Type": BUNDLE_CONTENT_TYPE, **more}
        request = urllib.request.Request(f"{site.hub.url}/v1/batches", data=content, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return await asyncio.to_thread(exchange)


async def test_each_body_has_its_own_answer(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        first = body(1, now())
        bodies = [
            first,
            b"nonsense",
            body(1, now(), cluster="elsewhere"),
            first,
            body(1, now(), sender="node-b", epoch="f" * 32),
            body(1, now(), gpus=1),
        ]
        status, answer = await post(site, pack(bodies))
        assert status == 200
        answers = answer["answers"]
        assert [one["status"] for one in answers] == [200, 400, 403, 200, 200, 409]
        assert [one.get("result") for one in answers[:5]] == ["accepted", None, None, "duplicate", "accepted"]
        assert (answers[5]["error"], answers[5]["field"]) == ("epoch_conflict", "epoch")
        assert [one.get("error") for one in answers[:5]] == [None, "bad_batch", "foreign_cluster", None, None]

        async def stored() -> bool:
            return len(site.store.seqs) == 2

        await wait_until_async(stored, what="two batches in the store")
        assert 'gpufleet_hub_rejected_batches_total{reason="bad_batch"} 1' in await site.text("/metrics")


async def test_queueing_time_at_a_relay_makes_a_node_stale(tmp_path: Path) -> None:
    other = Machine(name="node-b", machine_id="b" * 32)
    async with running_site(tmp_path) as site:
        then = now() - 600 * 10**9
        bodies = [body(1, then), body(1, then, sender="node-b", epoch="f" * 32, machine=other)]
        assert (await post(site, pack(bodies), **{WAITED_HEADER: "600000,40000"}))[0] == 200

        async def stored() -> bool:
            return len(site.store.seqs) == 2

        await wait_until_async(stored, what="two batches in the store")
        _, page = await site.request("/v1/nodes")
        nodes = {one["machine"]["machine"]["name"]: one for one in page["items"]}
        assert {name: (one["stale"], one["gpus_reporting"]) for name, one in nodes.items()} == {
            "node-a": (True, 0),
            "node-b": (False, 2),
        }


async def test_invalid_queueing_time_is_rejected(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        for content, kind in ((pack([body(1, now())]), BUNDLE_CONTENT_TYPE), (body(1, now()), CONTENT_TYPE)):
            headers = {"Content-Type": kind, WAITED_HEADER: "soon"}
            status, answer = await post(site, content, **headers)
            assert (status, answer["error"], answer["field"]) == (400, "bad_waited", WAITED_HEADER)
        assert site.store.seqs == []


@pytest.mark.parametrize(
    ("content", "status", "error"),
    [
        (b"", 400, "bad_bundle"),
        (pack([b"x"]) + b"\0", 400, "bad_bundle"),
        (b"\xff\xff\xff\xff", 400, "bad_bundle"),
        (pack([b""] * (MAX_BODIES + 1)), 413, "too_large"),
        (pack([bytes(10_000)] * 7), 413, "too_large"),
    ],
    ids=["empty", "trailing data", "truncated", "too many", "too large"],
)
async def test_invalid_bundle_is_rejected_as_a_whole(tmp_path: Path, content: bytes, status: int, error: str) -> None:
    async with running_site(tmp_path, ingest=IngestConfig(max_body_bytes=64 << 10)) as site:
        answered, answer = await post(site, content)
        assert (answered, answer["error"]) == (status, error)
        assert (await site.request("/healthz"))[0] == 200
        assert site.store.seqs == []
