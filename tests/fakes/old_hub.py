"""A hub of an earlier build, by the rules that were written down when it was new: `rules/hub-N.json`."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import msgspec
import zstandard
from aiohttp import web

RULES = Path(__file__).parent / "rules"
ZSTD = b"\x28\xb5\x2f\xfd"


class OldHub:
    """Judges bodies by its rules alone, and keeps those that it takes, by the version of the format.

    The rules say which versions it reads, whether it takes bundles, and what it answered, to the word.
    """

    def __init__(self, name: str) -> None:
        self.rules: dict[str, Any] = json.loads((RULES / f"{name}.json").read_text())
        self.taken: list[tuple[int, int]] = []
        self.bodies: list[bytes] = []
        self.refused: list[str] = []
        self.url = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, name: str) -> AsyncIterator[Self]:
        """Serve on loopback while the context is open."""
        hub = cls(name)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/batches", hub._take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield hub
        finally:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        content = await request.read()
        if request.content_type == "application/vnd.gpufleet.bundle" and self.rules["bundles"]:
            answers = [self._judge(body) for body in _bodies(content)]
            return web.json_response({"answers": [_of_bundle(status, words) for status, words in answers]})
        if request.content_type != "application/vnd.gpufleet.batch":
            return self._answer(*self._refuse("bad_content_type", given=request.content_type))
        return self._answer(*self._judge(content))

    def _judge(self, body: bytes) -> tuple[int, dict[str, Any]]:
        message = zstandard.ZstdDecompressor().decompress(body) if body.startswith(ZSTD) else body
        elements = msgspec.msgpack.decode(message)
        version, seq = elements[0], elements[5]
        if version not in self.rules["versions"]:
            return self._refuse("bad_version", given=version)
        self.taken.append((version, seq))
        self.bodies.append(body)
        status, words = self.rules["answers"]["accepted"]
        return status, {**words, "seq": seq}

    def _refuse(self, error: str, given: object) -> tuple[int, dict[str, Any]]:
        self.refused.append(error)
        status, words = self.rules["answers"][error]
        return status, {name: text.replace("GIVEN", str(given)) for name, text in words.items()}

    @staticmethod
    def _answer(status: int, words: dict[str, Any]) -> web.Response:
        return web.json_response(words, status=status)


def _of_bundle(status: int, words: dict[str, Any]) -> dict[str, Any]:
    return {**words, "status": status, "result": words.get("status", "")}


def _bodies(content: bytes) -> list[bytes]:
    bodies, at = [], 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "little")
        bodies.append(content[at + 4 : at + 4 + length])
        at += 4 + length
    return bodies
