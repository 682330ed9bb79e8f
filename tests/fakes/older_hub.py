"""Fake hub that reads given versions of the batch format only."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self

import msgspec
import zstandard
from aiohttp import web

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, unpack

_ZSTD = b"\x28\xb5\x2f\xfd"


class OlderHub:
    """Hub that accepts batches of the versions in `reads` and answers `bad_version` to others.

    Attributes:
        reads: accepted versions.
        bundles: whether bundles are accepted.
        accepted: version and sequence number of each accepted batch.
        rejected: error code of each rejected request or batch.
    """

    def __init__(self, *reads: int) -> None:
        self.reads = set(reads)
        self.bundles = True
        self.accepted: list[tuple[int, int]] = []
        self.rejected: list[str] = []
        self.url = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, *reads: int) -> AsyncIterator[Self]:
        """Serve on loopback while the context is open."""
        hub = cls(*reads)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/batches", hub._receive)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield hub
        finally:
            await runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        content = await request.read()
        if request.content_type == BUNDLE_CONTENT_TYPE and self.bundles:
            answers = [
                {**document, "status": status, "result": document.get("status", "")}
                for status, document in map(self._judge, unpack(content))
            ]
            return web.json_response({"answers": answers})
        if request.content_type != CONTENT_TYPE:
            status, document = self._reject(415, "bad_content_type")
        else:
            status, document = self._judge(content)
        return web.json_response(document, status=status)

    def _judge(self, body: bytes) -> tuple[int, dict[str, Any]]:
        message = zstandard.ZstdDecompressor().decompress(body) if body.startswith(_ZSTD) else body
        elements = msgspec.msgpack.decode(message)
        version, seq = elements[0], elements[5]
        if version not in self.reads:
            return self._reject(400, "bad_version", f"version: {version} is not supported")
        self.accepted.append((version, seq))
        return 200, {"status": "accepted", "seq": seq}

    def _reject(self, status: int, error: str, detail: str = "") -> tuple[int, dict[str, Any]]:
        self.rejected.append(error)
        return status, {"error": error, "detail": detail}
