"""A hub's batch endpoint over real HTTP, that answers as told and keeps what it took."""

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
    """Answers `POST /v1/batches` with what `answer(batch)` says."""

    def __init__(self, answer: Callable[[WireBatch], Answer] = lambda _: (200, {})) -> None:
        self.answer = answer
        self.posts: list[WireBatch] = []
        self.taken: list[WireBatch] = []
        self.takes_bundles = True
        self.words: str | None = None
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
        """Numbers of what was taken, in order of arrival."""
        return [batch.seq for batch in self.taken]

    async def _take(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization", ""))
        self.waited.append(request.headers.get(WAITED_HEADER, ""))
        if request.content_type == BUNDLE_CONTENT_TYPE and self.takes_bundles:
            answers = [self._judge(body)[0] for body in unpack(await request.read())]
            return web.json_response({"answers": [{"status": status} for status in answers]})
        if request.content_type != "application/vnd.gpufleet.batch":
            return web.json_response({"error": "bad_content_type", "detail": "what is that?"}, status=415)
        status, headers = self._judge(await request.read())
        words = self.words
        if words is None:
            words = '{"status": "accepted"}' if status == 200 else '{"error": "as_told", "detail": "as the test says"}'
        return web.Response(text=words, status=status, headers=headers, content_type="application/json")

    def _judge(self, body: bytes) -> Answer:
        batch = decode(body)
        self.posts.append(batch)
        status, headers = self.answer(batch)
        if status == 200:
            self.taken.append(batch)
        self.arrived.set()
        return status, headers
