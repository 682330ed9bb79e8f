"""Prometheus remote write to the hub."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1, encode_2
from gpufleet.config.hub import FlushConfig, HubConfig, IngestConfig
from gpufleet.model.time import NANOS
from gpufleet.wiring.hub import running_hub
from tests.fakes.batches import make_batch
from tests.fakes.store import MemoryStore
from tests.support.remote_write import request
from tests.support.waiting import PATIENCE, wait_until_async
from tests.web.hub.site import Site, now, running_site

V1 = "application/x-protobuf"
V2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
KINDS = ("samples", "histograms", "exemplars")
NAMES = {
    "DCGM_FI_DEV_POWER_USAGE": "gpu_power_watts",
    "DCGM_FI_DEV_GPU_TEMP": "gpu_temperature_celsius",
    "DCGM_FI_DEV_FB_USED": "gpu_memory_used_bytes",
}


def point(name: str, gpu: int, value: float | None, at: int, host: str = "node-a") -> WritePoint:
    labels = {"__name__": name, "gpu": str(gpu), "UUID": f"GPU-{gpu}", "Hostname": host, "instance": f"{host}:9400"}
    return WritePoint(labels, value, at)


def now_ms() -> int:
    return time.time_ns() // 1_000_000 * 1_000_000


async def write(
    url: str,
    body: bytes,
    content_type: str = V1,
    query: str = "",
    *,
    path: str = "/api/v1/write",
    method: str = "POST",
    **more: str,
) -> tuple[int, dict[str, str], bytes]:
    headers = {"Content-Type": content_type, "Content-Encoding": "snappy", **more}
    request = urllib.request.Request(f"{url}{path}{query}", data=body, headers=headers, method=method)

    def send() -> tuple[int, dict[str, str], bytes]:
        try:
            with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
                return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()

    return await asyncio.to_thread(send)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


async def gpus(site: Site) -> dict[str, dict[str, float | None]]:
    _, page = await site.request("/v1/gpus")
    return {
        one["device"]["uuid"]: {
            name: reading.get("value") for name, reading in one["device"]["readings"].items() if name in NAMES.values()
        }
        for one in page["items"]
    }


@pytest.mark.parametrize(("encode", "content_type"), [(encode_1, V1), (encode_2, V2)])
async def test_machines_of_remote_write_are_listed(site: Site, encode: object, content_type: str) -> None:
    at = now_ms()
    points = [
        *(point("DCGM_FI_DEV_POWER_USAGE", gpu, 100.5 + gpu, at) for gpu in range(2)),
        *(point("DCGM_FI_DEV_FB_USED", gpu, 512 + gpu, at) for gpu in range(2)),
        WritePoint({"__name__": "up", "instance": "node-a:9400"}, 1.0, at),
    ]
    status, headers, body = await write(site.hub.url, encode(points), content_type)  # type: ignore[operator]
    assert (status, body) == (204, b"")
    if content_type == V2:
        assert headers["x-prometheus-remote-write-samples-written"] == "5"

    async def stored() -> bool:
        return len(await gpus(site)) == 2

    await wait_until_async(stored, what="two GPUs")
    assert {
        uuid: {k: v for k, v in gpu_readings.items() if v is not None}
        for uuid, gpu_readings in (await gpus(site)).items()
    } == {
        f"GPU-{gpu}": {"gpu_power_watts": 100.5 + gpu, "gpu_memory_used_bytes": (512 + gpu) << 20} for gpu in range(2)
    }
    (machine,) = (await site.request("/v1/machines"))[1]["items"]
    assert (machine["machine"]["name"], machine["liveness"]["state"], machine["gpus"]) == ("node-a", "live", 2)
    _, gpu = await site.request("/v1/gpus/GPU-0")
    assert gpu["device"]["source"] == "imported"
    (sender,) = (await site.request("/v1/senders"))[1]
    assert (sender["sender"], sender["missing"]) == ("remote_write/prometheus", 0)
    freshness = (await site.request("/v1/fleet"))[1]["clusters"][0]["freshness"]
    assert (freshness["dropped_batches"], freshness["queued_batches"]) == (None, None)
    page = await site.text("/metrics")
    assert "gpufleet_hub_imported_samples_total 5" in page
    assert "gpufleet_hub_unrecognised_samples_total 1" in page


async def test_writers_do_not_count_for_the_clock_of_the_hub(site: Site) -> None:
    for number in range(3):
        at = now()
        batch = make_batch(1, at, sender=f"agent-{number}", epoch=f"{number:032x}")
        await site.post(encode(msgspec.structs.replace(batch, sent_at=at + 300 * NANOS)))
    for number in range(4):
        points = [point("DCGM_FI_DEV_POWER_USAGE", number, 1.0, now_ms(), host=f"w{number}")]
        assert (await write(site.hub.url, encode_1(points), query=f"?sender=prom-{number}"))[0] < 300
    _, senders = await site.request("/v1/senders")
    offsets = {one["sender"]: one["clock_ahead_seconds"] for one in senders}
    assert len(offsets) == 7
    for sender, offset in offsets.items():
        assert offset == (pytest.approx(300, abs=30) if sender.startswith("agent-") else None)
    _, fleet = await site.request("/v1/fleet")
    assert fleet["hub"]["clock_behind_seconds"] == pytest.approx(300, abs=30)
    assert fleet["clusters"][0]["freshness"]["clock_ahead_seconds"] == pytest.approx(300, abs=30)


async def test_split_scrape_is_joined_across_a_hub_restart(tmp_path: Path) -> None:
    store, at = MemoryStore(), now_ms()
    config = HubConfig(listen="127.0.0.1:0", state=str(tmp_path), flush=FlushConfig(interval_seconds=0.1))
    for number, name in enumerate(NAMES):  # each part to another hub process
        async with running_hub(config, store=lambda _: store) as hub:
            body = encode_1([point(name, 0, 10.0 + number, at)])
            for _ in range(2):  # the second write is a retry
                assert (await write(hub.url, body))[0] == 204
    async with running_hub(config, store=lambda _: store) as hub:
        found = await gpus(Site(hub, store))
    assert found == {
        "GPU-0": {"gpu_power_watts": 10.0, "gpu_temperature_celsius": 11.0, "gpu_memory_used_bytes": 12 << 20}
    }


async def test_known_machines_go_on_while_new_ones_exceed_the_limit(tmp_path: Path) -> None:
    def points(hosts: str, value: float) -> list[WritePoint]:
        at = now_ms()
        return [point("DCGM_FI_DEV_POWER_USAGE", n, value, at, f"node-{host}") for n, host in enumerate(hosts)]

    async with running_site(tmp_path, ingest=IngestConfig(max_machines=4)) as site:
        url = site.hub.url
        assert (await write(url, encode_1(points("a", 1.0))))[0] == 204
        status, headers, body = await write(url, encode_2(points("abcd", 2.0)), V2)
        assert (status, json.loads(body)["error"]) == (400, "partial_write")
        assert headers["x-prometheus-remote-write-samples-written"] == "2"
        status, _, body = await write(url, encode_1(points("cd", 3.0)))
        assert (status, json.loads(body)["error"]) == (403, "too_many_machines"), "nothing of it can be used"

        async def stored() -> bool:
            found = await gpus(site)
            return {uuid: one["gpu_power_watts"] for uuid, one in found.items()} == {"GPU-0": 2.0, "GPU-1": 2.0}

        await wait_until_async(stored, what="the known machine and the new one that fits")
        assert 'gpufleet_hub_rejected_samples_total{reason="too_many_machines"} 2\n' in await site.text("/metrics")


async def test_write_waits_for_the_backlog(tmp_path: Path) -> None:
    store, at = MemoryStore(), now_ms()
    config = HubConfig(listen="127.0.0.1:0", state=str(tmp_path), flush=FlushConfig(interval_seconds=0.1))
    store.down = True
    first, second = (encode_1([point(name, 0, 10.0, at)]) for name in list(NAMES)[:2])
    async with running_hub(config, store=lambda _: store) as hub:
        assert (await write(hub.url, first))[0] == 204  # stored in the WAL
    async with running_hub(config, store=lambda _: store) as hub:
        status, headers, body = await write(hub.url, second)
        assert (status, headers["retry-after"]) == (503, "2")
        assert body
        store.down = False

        async def taken() -> bool:
            return (await write(hub.url, second))[0] == 204

        await wait_until_async(taken, what="the WAL to be empty")

        async def whole() -> bool:
            return len((await gpus(Site(hub, store))).get("GPU-0", {})) == 2

        await wait_until_async(whole, what="both parts")


async def test_ended_series_is_absent(site: Site) -> None:
    at = now_ms() - 5_000_000_000
    for value, when in ((1.0, at), (None, at + 1_000_000_000)):
        assert (await write(site.hub.url, encode_1([point("DCGM_FI_DEV_POWER_USAGE", 0, value, when)])))[0] == 204

    async def absent() -> bool:
        status, gpu = await site.request("/v1/gpus/GPU-0")
        return status == 200 and gpu["device"]["readings"]["gpu_power_watts"].get("absent") == "no_data"

    await wait_until_async(absent, what="the end of the series")


@pytest.mark.parametrize(
    ("body", "content_type", "query", "more", "status", "error"),
    [
        (b"nonsense", V1, "", {}, 400, "bad_request"),
        (encode_1([]), "application/json", "", {}, 415, "bad_content_type"),
        (encode_1([]), f"{V1};proto=io.prometheus.write.v9.Request", "", {}, 415, "bad_content_type"),
        (encode_1([]), V1, "", {"Content-Encoding": "gzip"}, 415, "bad_content_type"),
        (encode_1([]), V1, "?cluster=elsewhere", {}, 403, "foreign_cluster"),
        (encode_1([]), V1, "?sender=" + "x" * 200, {}, 400, "bad_request"),
        (encode_1([]), V1, "?clustr=local", {}, 400, "bad_request"),
        (encode_1([]), V1, "?cluster=local&cluster=local", {}, 400, "bad_request"),
        (encode_1([]), V1, "?sender=", {}, 400, "bad_request"),
        (encode_1([]), V1, "?pod_labels=theirs", {}, 400, "bad_request"),
        (encode_1([]), V1, "?" + "&".join(f"a{n}=1" for n in range(20)), {}, 400, "bad_request"),
        (b"\xff\xff\xff\xff\x0f" + b"x" * 100, V1, "", {}, 400, "too_large"),
    ],
)
async def test_invalid_writes_are_refused_with_an_error_code(
    site: Site, body: bytes, content_type: str, query: str, more: dict[str, str], status: int, error: str
) -> None:
    received_status, _, content = await write(site.hub.url, body, content_type, query, **more)
    assert received_status == status
    assert f'"error":"{error}"'.encode() in content
    assert f'gpufleet_hub_rejected_batches_total{{reason="{error}"}} 1' in await site.text("/metrics")


@pytest.mark.parametrize("parameter", [";Proto={}", '; proto="{}"'])
async def test_content_type_parameters_are_parsed_per_http(site: Site, parameter: str) -> None:
    body = encode_2([point("DCGM_FI_DEV_POWER_USAGE", 0, 1.0, now_ms())])
    status, headers, _ = await write(site.hub.url, body, V1 + parameter.format("io.prometheus.write.v2.Request"))
    assert (status, headers["x-prometheus-remote-write-samples-written"]) == (204, "1")


@pytest.mark.parametrize(("content_type", "written"), [(V2, "0"), (V1, None), (f"{V1};proto=x", None)])
async def test_rejected_version_2_write_reports_nothing_written(
    site: Site, content_type: str, written: str | None
) -> None:
    status, headers, _ = await write(site.hub.url, b"nonsense", content_type)
    assert status in (400, 415)
    for kind in ("samples", "histograms", "exemplars"):
        assert headers.get(f"x-prometheus-remote-write-{kind}-written") == written


async def test_foreign_series_are_not_failures(site: Site) -> None:
    at = now_ms() // 1_000_000
    gpu_readings = [
        {"labels_refs": [1, 2], "samples": [{"value": 1.0, "timestamp": at}], "exemplars": [{"value": 1.0}] * 2},
        {"labels_refs": [1, 3], "histograms": [{"count": 3, "timestamp": at}] * 3, "exemplars": [{"value": 1.0}]},
        {"labels_refs": [1, 4, 5, 6, 7, 8], "samples": [{"value": 1.0, "timestamp": at}]},
        {"labels_refs": [1, 9, 5, 6, 7, 8], "samples": [{"value": 1.0, "timestamp": at}]},
    ]
    symbols = ["", "__name__", "up", "rpc_seconds", "DCGM_FI_DEV_GPU_TEMP", "UUID", "GPU-1", "Hostname", "n"]
    body = request(2, symbols=[*symbols, "DCGM_FI_DEV_OF_TOMORROW"], timeseries=gpu_readings)
    for _ in range(2):  # parsed first, then from the cache
        status, headers, _content = await write(site.hub.url, body, V2)
        counts = {kind: headers.get(f"x-prometheus-remote-write-{kind}-written") for kind in KINDS}
        assert (status, counts) == (204, {"samples": "2", "histograms": "3", "exemplars": "3"})


@pytest.mark.parametrize(("encode", "content_type"), [(encode_1, V1), (encode_2, V2)])
async def test_valid_series_of_a_request_are_accepted(
    site: Site, encode: Callable[[list[WritePoint]], bytes], content_type: str
) -> None:
    at = now_ms()
    crowded = {f"label_{number}": "x" for number in range(300)}
    bad = [
        WritePoint({**point("DCGM_FI_DEV_POWER_USAGE", 1, 1.0, at).labels, **crowded}, 1.0, at),
        WritePoint({**point("DCGM_FI_DEV_POWER_USAGE", 2, 1.0, at).labels, "note": "x" * 5000}, 1.0, at),
        WritePoint(point("DCGM_FI_DEV_POWER_USAGE", 3, 1.0, at).labels, 1.0, 0),
    ]
    good = [point("DCGM_FI_DEV_POWER_USAGE", 0, 100.5, at), point("DCGM_FI_DEV_GPU_TEMP", 0, 40.0, at)]
    status, headers, content = await write(site.hub.url, encode([bad[0], good[0], *bad[1:], good[1]]), content_type)
    assert status == 400
    assert b'"error":"partial_write"' in content
    assert b"3 samples are rejected (label_too_long 1, timestamp 1, too_many_labels 1)" in content
    counts = {kind: headers.get(f"x-prometheus-remote-write-{kind}-written") for kind in KINDS}
    assert counts == (
        {"samples": "2", "histograms": "0", "exemplars": "0"} if content_type == V2 else dict.fromkeys(KINDS)
    )

    async def stored() -> bool:
        return bool(await gpus(site))

    await wait_until_async(stored, what="the accepted GPU")
    gpu_readings = (await gpus(site))["GPU-0"]
    assert (gpu_readings["gpu_power_watts"], gpu_readings["gpu_temperature_celsius"]) == (100.5, 40.0)
    page = await site.text("/metrics")
    for reason in ("label_too_long", "timestamp", "too_many_labels"):
        assert f'gpufleet_hub_rejected_samples_total{{reason="{reason}"}} 1' in page
    assert "partial_write" not in page  # not counted as a rejected batch


async def test_write_to_a_hub_of_several_clusters_needs_a_cluster(tmp_path: Path) -> None:
    async with running_site(tmp_path, clusters=("a", "b")) as site:
        body = encode_1([point("DCGM_FI_DEV_POWER_USAGE", 0, 1.0, now_ms())])
        status, _, content = await write(site.hub.url, body)
        assert (status, b"?cluster=ID" in content) == (400, True)
        assert (await write(site.hub.url, body, query="?cluster=b&sender=left"))[0] == 204
        (sender,) = (await site.request("/v1/senders"))[1]
        assert (sender["cluster"], sender["sender"]) == ("b", "remote_write/left")
