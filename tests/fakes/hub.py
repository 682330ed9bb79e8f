"""Batch endpoint of a hub over real HTTP, with scripted answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Self

from aiohttp import web

from gpufleet.codecs.batch import decode
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, WAITED_HEADER, unpack
from gpufleet.model.wire.batch import WireBatch

Answer = tuple[int, dict[str, str]]


class FakeHub:
    """Hub that answers `POST /v1/batches` with `answer(batch)` and records what it receives.

    Attributes:
        posts: every batch received.
        taken: batches answered with 200.
        takes_bundles: whether bundles are accepted.
        response_body: body of every answer; None for a default.
    """

    def __init__(self, answer: Callable[[WireBatch], Answer] = lambda _: (200, {})) -> None:
        self.answer = answer
        self.posts: list[WireBatch] = []
        self.taken: list[WireBatch] = []
        self.takes_bundles = True
        self.response_body: str | None = None
        self.tokens: set[str] = set()
        self.waited: list[str] = []
        self.url = ""
        self.arrived = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, answer: Callable[[WireBatch], Answer] = lambda _: (200, {}), port: int = 0
    ) -> AsyncIterator[Self]:
        """Serve on loopback while the context is open."""
        hub = cls(answer)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/batches", hub._take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        hub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield hub
        finally:
            await runner.cleanup()

    @property
    def seqs(self) -> list[int]:
        """Sequence numbers of the accepted batches, in order of arrival."""
        return [batch.seq for batch in self.taken]

    async def _take(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization", ""))
        self.waited.append(request.headers.get(WAITED_HEADER, ""))
        if request.content_type == BUNDLE_CONTENT_TYPE and self.takes_bundles:
            answers = [self._judge(body)[0] for body in unpack(await request.read())]
            return web.json_response({"answers": [{"status": status} for status in answers]})
        if request.content_type != "application/vnd.gpufleet.batch":
            return web.json_response({"error": "bad_content_type", "detail": "unsupported content type"}, status=415)
        status, headers = self._judge(await request.read())
        content = self.response_body
        if content is None:
            content = '{"status": "accepted"}' if status == 200 else '{"error": "scripted", "detail": "by the test"}'
        return web.Response(text=content, status=status, headers=headers, content_type="application/json")

    def _judge(self, body: bytes) -> Answer:
        batch = decode(body)
        self.posts.append(batch)
        status, headers = self.answer(batch)
        if status == 200:
            self.taken.append(batch)
        self.arrived.set()
        return status, headers
