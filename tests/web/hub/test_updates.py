"""Live updates: marks reach the streams that may have them, streams are bounded, and end with their token."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.hub.updates import marks
from gpufleet.model.access import Role
from gpufleet.model.machine import Machine
from gpufleet.web.hub import updates
from tests.fakes.batches import NODE, body
from tests.security.guarded import Guarded, guarded
from tests.support.waiting import PATIENCE, wait_until_async

OTHER = Machine(name="node-b", machine_id="b" * 32)
SPEC = {"kind": "bare_metal", "tenant": "acme"}


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Guarded]:
    monkeypatch.setattr(updates, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(updates, "RESOLVE_SECONDS", 0.2)
    async with guarded(tmp_path) as site:
        yield site


class Reader:
    """Open stream. Its lines are read with a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def line_with(self, text: bytes) -> bytes:
        """Return the next line with a text; empty if the stream ends."""
        async with asyncio.timeout(20 * PATIENCE):
            while line := await self._reader.readline():
                if text in line:
                    return line
        return b""


@contextlib.asynccontextmanager
async def stream(site: Guarded, token: str, query: str) -> AsyncIterator[Reader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.hub.port)
    writer.write(f"GET /v1/updates?{query} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    try:
        yield Reader(reader, writer)
    finally:
        writer.close()


async def post(site: Guarded, seq: int, machine: Machine = NODE) -> None:
    batch = body(seq, time.time_ns(), sender=machine.name, machine=machine)
    stored = len(site.store.seqs) + 1
    assert (await site.post(batch, site.secrets[Role.SENDER])).status == 200

    async def is_stored() -> bool:
        return len(site.store.seqs) == stored

    await wait_until_async(is_stored, what="the batch to be stored")


async def allocate(site: Guarded, name: str, machine: str, tenant: str = "acme") -> None:
    spec = {**SPEC, "target": {"cluster": "local", "machine": machine}, "tenant": tenant}
    reply = await site.request(f"/v1/allocations/{name}", site.secrets[Role.ADMIN], "PUT", spec)
    assert reply.status in (200, 201), reply.body


async def test_two_hundred_pages_get_a_mark_of_new_data(site: Guarded) -> None:
    token = site.secrets[Role.OPERATOR]
    async with contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(stream(site, token, "topic=fleet")) for _ in range(200)]
        for one in readers:
            assert await one.line_with(b"200 OK")
            assert await one.line_with(b": open")
        await post(site, 1)
        await asyncio.gather(*(one.line_with(b"event: changed") for one in readers))
        assert (await site.request("/v1/fleet", token)).status == 200


async def test_tenant_gets_marks_of_its_own_machine_only(site: Guarded) -> None:
    await post(site, 1)
    await post(site, 1, OTHER)
    await allocate(site, "mine", NODE.name)
    await allocate(site, "theirs", OTHER.name, "rival")
    token = site.secrets[Role.TENANT]
    for query, status in (
        ("topic=allocation&id=theirs", 404),
        ("topic=fleet", 403),
        ("topic=findings", 403),
        ("topic=machine&id=node-a", 403),
        ("topic=allocation", 400),
        ("topic=fleet&id=x", 400),
        ("topic=other", 400),
    ):
        assert (await site.request(f"/v1/updates?{query}", token)).status == status, query
    async with (
        stream(site, token, "topic=allocation&id=mine") as mine,
        stream(site, token, "topic=allocations") as all_,
    ):
        for one in (mine, all_):
            await one.line_with(b": open")
        await post(site, 2, OTHER)
        await allocate(site, "theirs", OTHER.name, "rival")
        for one in (mine, all_):
            assert b"heartbeat" in await one.line_with(b"e")  # and no mark before it
        await post(site, 2)
        await allocate(site, "mine", NODE.name)
        for one in (mine, all_):
            assert await one.line_with(b"event: changed")


async def test_allocation_follows_the_machine_that_answers_for_it(site: Guarded) -> None:
    """The machine reports for the first time after the stream began."""
    await allocate(site, "mine", NODE.name)
    async with stream(site, site.secrets[Role.TENANT], "topic=allocation&id=mine") as mine:
        await mine.line_with(b": open")
        await post(site, 1)
        assert await mine.line_with(b"event: changed")


async def test_revoked_token_ends_its_stream(site: Guarded) -> None:
    token, secret = await site.make(Role.OPERATOR)
    async with stream(site, secret, "topic=fleet") as reader:
        await reader.line_with(b": open")
        site.tokens.revoke(token.id, site.clock.now())
        assert await reader.line_with(b"event: end")
        assert await reader.line_with(b"revoked_token")
        assert await reader.line_with(b"0\r\n") == b"0\r\n"  # the last chunk


async def test_streams_are_bounded_and_freed(site: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks.ChangeMarks, "most_per_token", 2)
    token = site.secrets[Role.OPERATOR]
    async with stream(site, token, "topic=fleet") as first, stream(site, token, "topic=fleet") as second:
        for one in (first, second):
            await one.line_with(b": open")
        refused = await site.request("/v1/updates?topic=fleet", token)
        assert (refused.status, refused.error) == (429, "too_many_streams")
        assert int(refused.headers["retry-after"]) > 0
        first.writer.close()
        async with asyncio.timeout(20 * PATIENCE):
            while True:
                async with stream(site, token, "topic=fleet") as third:
                    if b"200" in await third.line_with(b"HTTP"):
                        break


async def test_stopping_hub_ends_streams(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with guarded(tmp_path) as site:
            reader = await stack.enter_async_context(stream(site, site.secrets[Role.OPERATOR], "topic=fleet"))
            await reader.line_with(b": open")
            began = time.monotonic()
        assert time.monotonic() - began < 4 * PATIENCE
        assert await reader.line_with(b"never") == b""
