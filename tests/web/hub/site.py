"""Hub with an in-memory store, and an HTTP client for it."""

import asyncio
import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.config.hub import FlushConfig, HubConfig
from gpufleet.wiring.hub import RunningHub, running_hub
from tests.fakes.store import MemoryStore
from tests.support.waiting import PATIENCE, wait_until_async


class Site:
    """Running hub and its store."""

    def __init__(self, hub: RunningHub, store: MemoryStore) -> None:
        self.hub = hub
        self.store = store

    async def request(self, path: str, method: str = "GET", document: object = None) -> tuple[int, Any]:
        """Send a request and return status and JSON document."""
        content = None if document is None else msgspec.json.encode(document)
        status, body = await asyncio.to_thread(_exchange, self.hub.url + path, method, content, "application/json")
        return status, msgspec.json.decode(body)

    async def text(self, path: str) -> str:
        """Return the body of a GET request as text."""
        return (await asyncio.to_thread(_exchange, self.hub.url + path, "GET", None, ""))[1].decode()

    async def try_post(self, content: bytes) -> int:
        """Post a batch and return the status."""
        url = f"{self.hub.url}/v1/batches"
        return (await asyncio.to_thread(_exchange, url, "POST", content, CONTENT_TYPE))[0]

    async def post(self, *bodies: bytes) -> None:
        """Post batches and wait until the store has them."""
        expected = len(self.store.seqs) + len(bodies)
        for body in bodies:
            status, detail = await asyncio.to_thread(
                _exchange, f"{self.hub.url}/v1/batches", "POST", body, CONTENT_TYPE
            )
            assert status == 200, detail

        async def stored() -> bool:
            return len(self.store.seqs) == expected

        await wait_until_async(stored, what="the batches to be stored")


@contextlib.asynccontextmanager
async def running_site(folder: Path, store: MemoryStore | None = None, **settings: object) -> AsyncIterator[Site]:
    store = store or MemoryStore()
    config = HubConfig(
        listen="127.0.0.1:0",
        state=str(folder),
        flush=FlushConfig(interval_seconds=0.1),
        **settings,  # type: ignore[arg-type]
    )
    async with running_hub(config, store=lambda _: store) as hub:
        yield Site(hub, store)
    assert store.closed


def now() -> int:
    return time.time_ns()


def _exchange(url: str, method: str, content: bytes | None, content_type: str) -> tuple[int, bytes]:
    headers = {"Content-Type": content_type} if content is not None else {}
    request = urllib.request.Request(url, data=content, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
