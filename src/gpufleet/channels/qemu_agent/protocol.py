"""The QEMU guest agent's protocol: one JSON document per line, answered in order and without request ids.

Protocol: QEMU's `docs/interop/qemu-ga-ref`; timeouts and stale answers were measured with qemu-ga 7.2. An answer does
not identify its request. Each connection therefore begins with 0xFF and `guest-sync-delimited`, whose answer carries
our id after an 0xFF of its own. Everything before that answer is dropped.
"""

import json
import secrets
from typing import Any

from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.model.text import clean
from gpufleet.ports.channel import Stream

SYNC = b"\xff"

MAX_LINE_BYTES = 8 << 20
"""4 MiB of output are 5.6 MB of base64 in one line."""

MAX_DROPPED_BYTES = 32 << 20
"""Maximum bytes before the answer to a synchronisation. One unread answer has at most 22 MB."""

MAX_DEPTH_BYTES = 2000
"""Maximum brackets in a line. A line with more is not parsed: it cannot be an agent's answer."""

_CHUNK = 64 << 10
_MAX_ERROR_LENGTH = 200


class QemuAgentConnection:
    """Requests and answers over one stream."""

    def __init__(self, stream: Stream, name: str) -> None:
        self._stream, self._name = stream, name
        self._rest = b""

    async def synchronise(self) -> None:
        """Drop answers to other clients' requests up to the answer to our own. Raises ChannelError."""
        number = secrets.randbelow(1 << 53)
        request = {"execute": "guest-sync-delimited", "arguments": {"id": number}}
        await self._stream.send(SYNC + json.dumps(request).encode() + b"\n")
        dropped = 0
        while True:
            stale, mark, self._rest = self._rest.partition(SYNC)
            dropped += len(stale)
            if dropped > MAX_DROPPED_BYTES:
                raise self._error(f"more than {MAX_DROPPED_BYTES} bytes of stale answers", ChannelProblem.TOO_LARGE)
            if not mark:
                self._rest = await self._receive()
                continue
            line, found, rest = self._rest.partition(b"\n")
            while not found and SYNC not in line and len(line) <= 4096:
                self._rest += await self._receive()
                line, found, rest = self._rest.partition(b"\n")
            if found and _loads(line) == {"return": number}:
                self._rest = rest
                return

    async def execute(self, command: str, **arguments: object) -> Any:
        """Send a request and return the agent's answer.

        Raises:
            ChannelError: if the agent refuses, closes the socket or gives a malformed answer. The problem is
                `NOT_ENABLED` if the command is unknown or disabled.
        """
        request: dict[str, object] = {"execute": command}
        if arguments:
            request["arguments"] = arguments
        await self._stream.send(json.dumps(request).encode() + b"\n")
        answer = _loads(await self._line())
        if isinstance(answer, dict) and "return" in answer:
            return answer["return"]
        error = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(error, dict):
            raise self._error(f"{command}: malformed answer", ChannelProblem.PROTOCOL)
        message = clean(str(error.get("desc", "")))[:_MAX_ERROR_LENGTH]
        unknown = error.get("class") == "CommandNotFound"
        raise self._error(f"{command}: {message}", ChannelProblem.NOT_ENABLED if unknown else ChannelProblem.FAILED)

    async def _line(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        piece = self._rest
        while b"\n" not in piece:
            pieces.append(piece)
            size += len(piece)
            if size > MAX_LINE_BYTES:
                raise self._error(f"a line of more than {MAX_LINE_BYTES} bytes", ChannelProblem.TOO_LARGE)
            piece = await self._receive()
        last, _, self._rest = piece.partition(b"\n")
        return b"".join([*pieces, last])

    async def _receive(self) -> bytes:
        chunk = await self._stream.receive(_CHUNK)
        if not chunk:
            raise self._error("the socket was closed", ChannelProblem.ENDED)
        return chunk

    def _error(self, message: str, problem: ChannelProblem) -> ChannelError:
        return ChannelError(f"{self._name}: {message}", problem)


def _loads(line: bytes) -> Any:
    """Return the value of a line, or None if the line is not JSON or is nested too deeply."""
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH_BYTES:
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
