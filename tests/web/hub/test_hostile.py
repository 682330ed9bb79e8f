"""Hostile clients of the hub, over real sockets."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.config.hub import FlushConfig, HubConfig, IngestConfig
from gpufleet.model.errors import StoreError, StoreStartingError
from gpufleet.model.wire.batch import WIRE_VERSION
from gpufleet.wiring.hub import RunningHub, running_hub
from tests.fakes.batches import body
from tests.fakes.store import MemoryStore
from tests.support.waiting import wait_until_async

NOW = 1_800_000_000_000_000_000
MAX_BODY = 1 << 20


class Site(msgspec.Struct):
    hub: RunningHub
    store: MemoryStore


@contextlib.asynccontextmanager
async def running(folder: Path, **ingest: object) -> AsyncIterator[Site]:
    store = MemoryStore()
    config = HubConfig(
        listen="127.0.0.1:0",
        state=str(folder),
        ingest=msgspec.convert({"max_body_bytes": MAX_BODY, "max_pending_bytes": 4 * MAX_BODY, **ingest}, IngestConfig),
        flush=FlushConfig(interval_seconds=0.1),
    )
    async with running_hub(config, store=lambda _: store) as hub:
        yield Site(hub, store)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running(tmp_path) as site:
        yield site


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    document: dict[str, object]


async def send(site: Site, raw: bytes, *, half_close: bool = False) -> Answer | None:
    """Send raw bytes and return the response, or None if the connection was closed without it."""
    reader, writer = await asyncio.open_connection(site.hub.host, site.hub.port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(raw)
            await writer.drain()
            if half_close:
                writer.write_eof()
        try:
            async with asyncio.timeout(20):
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                pairs = (line.partition(": ") for line in lines[1:] if line)
                headers = {name.lower(): value for name, _, value in pairs}
                content = await reader.readexactly(int(headers.get("content-length", "0")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        is_json = headers.get("content-type", "").startswith("application/json")
        return Answer(int(lines[0].split()[1]), headers, msgspec.json.decode(content) if is_json else {})
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def request(content: bytes, *, content_type: str = CONTENT_TYPE, length: int | None = None) -> bytes:
    size = len(content) if length is None else length
    head = f"POST /v1/batches HTTP/1.1\r\nHost: hub\r\nContent-Type: {content_type}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + content


async def post(site: Site, content: bytes, **more: object) -> Answer:
    answer = await send(site, request(content, **more))  # type: ignore[arg-type]
    assert answer is not None
    return answer


async def still_works(site: Site, seq: int = 1) -> None:
    answer = await post(site, body(seq, NOW))
    assert (answer.status, answer.document) == (200, {"status": "accepted", "seq": seq})


async def test_batch_and_its_replay_are_acknowledged(site: Site) -> None:
    await still_works(site)
    answer = await post(site, body(1, NOW))
    assert (answer.status, answer.document) == (200, {"status": "duplicate", "seq": 1})

    async def written() -> bool:
        return site.store.seqs == [1]

    await wait_until_async(written, what="one batch in the store")


async def test_truncated_batch_is_refused(site: Site) -> None:
    whole = body(1, NOW)
    for length in range(0, len(whole), 7):
        answer = await post(site, whole[:length])
        assert answer.status == 400
        assert answer.document["error"] == "bad_batch"
    await still_works(site)


async def test_random_bytes_are_refused(site: Site) -> None:
    chance = random.Random(7)
    for size in [0, 1, 2, 10, 100, 10_000] * 5:
        answer = await post(site, chance.randbytes(size))
        assert 400 <= answer.status < 500
        assert set(answer.document) <= {"error", "detail", "field"}
    await still_works(site)


async def test_flipped_bytes_never_break_the_hub(site: Site) -> None:
    chance = random.Random(11)
    whole = bytearray(body(1, NOW))
    for _ in range(150):
        mutant = bytearray(whole)
        mutant[chance.randrange(len(mutant))] ^= 1 << chance.randrange(8)
        answer = await post(site, bytes(mutant))
        assert answer.status in (200, 400, 403, 409, 413)
    await still_works(site, seq=1_000_000)


async def test_unknown_version_is_refused_with_both_versions(site: Site) -> None:
    fields = [WIRE_VERSION + 1, 1, "local", "s", "0" * 32, 1, 1]
    answer = await post(site, msgspec.msgpack.encode(fields))
    assert (answer.status, answer.document["error"]) == (400, "bad_version")
    assert str(WIRE_VERSION + 1) in str(answer.document["detail"])
    assert str(WIRE_VERSION) in str(answer.document["detail"])


async def test_query_parameter_of_a_batch_is_rejected(site: Site) -> None:
    answer = await send(site, request(body(1, NOW)).replace(b"/v1/batches ", b"/v1/batches?cluster=other "))
    assert answer is not None
    assert (answer.status, answer.document["error"], answer.document["field"]) == (400, "bad_request", "cluster")


async def test_foreign_cluster_is_forbidden(site: Site) -> None:
    answer = await post(site, body(1, NOW, cluster="elsewhere"))
    assert (answer.status, answer.document["error"], answer.document["field"]) == (403, "foreign_cluster", "cluster")


async def test_too_large_body_is_refused_before_it_is_read(site: Site) -> None:
    answer = await post(site, b"", length=MAX_BODY + 1)
    assert (answer.status, answer.document["error"]) == (413, "too_large")
    assert answer.headers["connection"] == "close"
    await still_works(site)


async def test_too_large_body_without_length_is_aborted(site: Site) -> None:
    head = f"POST /v1/batches HTTP/1.1\r\nHost: h\r\nContent-Type: {CONTENT_TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    answer = await send(site, head.encode() + chunk * (MAX_BODY // 0x10000 + 4))
    assert answer is None or answer.status == 413
    await still_works(site)


async def test_unknown_content_type_is_refused(site: Site) -> None:
    for content_type in ["", "application/json", "text/plain; charset=utf-8"]:
        answer = await post(site, body(1, NOW), content_type=content_type)
        assert (answer.status, answer.document["error"]) == (415, "bad_content_type"), content_type


async def test_other_methods_are_refused(site: Site) -> None:
    answer = await send(site, b"GET /v1/batches HTTP/1.1\r\nHost: h\r\n\r\n")
    assert answer is not None
    assert (answer.status, answer.document["error"]) == (405, "method_not_allowed")


async def test_body_shorter_than_content_length_is_not_acknowledged(site: Site) -> None:
    content = body(1, NOW)
    assert await send(site, request(content, length=len(content) + 10), half_close=True) is None
    assert (await post(site, content)).document["status"] == "accepted"


async def test_body_is_cut_at_content_length(site: Site) -> None:
    content = body(1, NOW)
    answer = await post(site, content, length=len(content) - 5)
    assert answer.status == 400
    await still_works(site)


async def test_slow_body_times_out(tmp_path: Path) -> None:
    async with running(tmp_path, body_timeout_seconds=0.3) as site:
        answer = await send(site, request(body(1, NOW), length=100_000))
        assert answer is not None
        assert (answer.status, answer.document["error"]) == (408, "slow_body")


@pytest.mark.parametrize(
    ("path", "encoding"), [("/api/v1/write", "snappy"), ("/v1/metrics", "gzip"), ("/v1/logs", "gzip")]
)
async def test_slow_foreign_writer_receives_503_so_that_it_retries(tmp_path: Path, path: str, encoding: str) -> None:
    async with running(tmp_path, body_timeout_seconds=0.3) as site:
        head = f"POST {path} HTTP/1.1\r\nHost: hub\r\nContent-Type: application/x-protobuf\r\n"
        more = f"Content-Encoding: {encoding}\r\nContent-Length: 100000\r\n\r\n"
        answer = await send(site, (head + more).encode() + b"x")
        assert answer is not None
        assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (503, "2", "close")


async def test_memory_of_incomplete_bodies_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, max_pending_bytes=2 * MAX_BODY) as site:
        held = []
        part = b"x" * (MAX_BODY - 1)
        for _ in range(2):
            reader, writer = await asyncio.open_connection(site.hub.host, site.hub.port)
            writer.write(request(part, length=MAX_BODY))  # one byte short: the body stays incomplete
            await writer.drain()
            held.append((reader, writer))

        async def refused() -> bool:
            answer = await post(site, b"x" * 1000)
            return answer.status == 503

        await wait_until_async(refused, what="503 while bodies of 2 MiB are incomplete")
        answer = await post(site, body(1, NOW))
        assert (answer.document["error"], answer.headers["retry-after"]) == ("overloaded", "2")
        for _, writer in held:
            writer.close()
            await writer.wait_closed()

        async def works_again() -> bool:
            return (await post(site, body(1, NOW))).status == 200

        await wait_until_async(works_again, what="the hub to accept batches again")


async def test_full_wal_refuses_batches_while_the_store_is_down(tmp_path: Path) -> None:
    async with running(tmp_path, max_body_bytes=4096, wal_max_bytes=16_384) as site:
        site.store.down = True
        accepted = 0
        while (answer := await post(site, body(accepted + 1, NOW))).status == 200:
            accepted += 1
        assert (answer.status, answer.document["error"]) == (503, "log_full")
        assert answer.headers["retry-after"] == "2"
        assert accepted > 5
        site.store.down = False

        async def flushed() -> bool:
            return len(site.store.seqs) == accepted

        await wait_until_async(flushed, what="all acknowledged batches to be stored")
        assert sorted(site.store.seqs) == list(range(1, accepted + 1))

        async def taken() -> bool:  # WAL space is released after the store has answered
            return (await post(site, body(accepted + 1, NOW))).status == 200

        await wait_until_async(taken, what="space in the WAL")


async def test_endless_request_head_is_aborted(site: Site) -> None:
    answer = await send(site, b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * (1 << 20))
    assert answer is None or answer.status == 431
    await still_works(site)


async def test_request_that_is_not_http_is_refused(site: Site) -> None:
    answer = await send(site, random.Random(3).randbytes(4096) + b"\r\n\r\n")
    assert answer is None or answer.status == 400
    await still_works(site)


async def test_json_that_is_not_utf_8_is_refused(site: Site) -> None:
    content = b'{"kind": "\xff"}'
    head = f"PUT /v1/allocations/a HTTP/1.1\r\nHost: hub\r\nContent-Length: {len(content)}\r\n\r\n"
    answer = await send(site, head.encode() + content)
    assert answer is not None
    assert (answer.status, answer.document["error"]) == (400, "bad_request")
    assert "UTF-8" in str(answer.document["detail"])


async def test_store_timeout_is_answered_with_retry_after(site: Site) -> None:
    def broken(*_: object) -> None:
        raise StoreError("it is gone")

    site.store.check = broken  # type: ignore[method-assign]
    answer = await send(site, b"GET /readyz HTTP/1.1\r\nHost: hub\r\n\r\n")
    assert answer is not None
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")


async def test_answer_about_the_fleet_during_a_load_is_starting(site: Site) -> None:
    def loading(*_: object) -> None:
        raise StoreStartingError("chdb:///secret: the newest samples are being loaded")

    site.store.reporting_gpus = loading  # type: ignore[assignment]
    answer = await send(site, b"GET /v1/fleet HTTP/1.1\r\nHost: hub\r\n\r\n")
    assert answer is not None
    assert (answer.status, answer.headers["retry-after"], answer.document["error"]) == (503, "2", "starting")
    assert "secret" not in str(answer.document)
