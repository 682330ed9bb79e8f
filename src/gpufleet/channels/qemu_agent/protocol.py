"""The agent's lines: JSON, one answer a question, in order, without numbers of their own.

Protocol: QEMU's `docs/interop/qemu-ga-ref`; what is said of timeouts and stale answers was measured against
qemu-ga 7.2. An answer carries nothing that tells whose question it is of. So every conversation begins with 0xFF and
`guest-sync-delimited`, whose answer has a number of ours behind an 0xFF of its own: what came before it is dropped.
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
"""What may come before the answer to a synchronisation: one answer that nobody waited for has at most 22 MB."""

MAX_DEPTH_BYTES = 2000
"""Nesting characters in a line: deeper ones are no answer of an agent."""

_CHUNK = 64 << 10
_WORDS = 200


class Conversation:
    """Questions and answers over one stream that was synchronised."""

    def __init__(self, stream: Stream, name: str) -> None:
        self._stream, self._name = stream, name
        self._rest = b""

    async def synchronise(self) -> None:
        """Drop what others left unread, and find the place where our own answers begin. Raises ChannelError."""
        number = secrets.randbelow(1 << 53)
        question = {"execute": "guest-sync-delimited", "arguments": {"id": number}}
        await self._stream.send(SYNC + json.dumps(question).encode() + b"\n")
        dropped = 0
        while True:
            before, mark, self._rest = self._rest.partition(SYNC)
            dropped += len(before)
            if dropped > MAX_DROPPED_BYTES:
                raise self._wrong("it never stops answering others", ChannelProblem.TOO_LARGE)
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

    async def ask(self, command: str, **arguments: object) -> Any:
        """Ask, and return what is answered.

        Raises:
            ChannelError: if the agent refuses (`NOT_ENABLED` where it does not know the command or has it switched
                off), hangs up, or what comes is no answer.
        """
        question: dict[str, object] = {"execute": command}
        if arguments:
            question["arguments"] = arguments
        await self._stream.send(json.dumps(question).encode() + b"\n")
        answer = _loads(await self._line())
        if isinstance(answer, dict) and "return" in answer:
            return answer["return"]
        error = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(error, dict):
            raise self._wrong(f"{command}: what came is no answer", ChannelProblem.PROTOCOL)
        words = clean(str(error.get("desc", "")))[:_WORDS]
        unknown = error.get("class") == "CommandNotFound"
        raise self._wrong(f"{command}: {words}", ChannelProblem.NOT_ENABLED if unknown else ChannelProblem.FAILED)

    async def _line(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        piece = self._rest
        while b"\n" not in piece:
            pieces.append(piece)
            size += len(piece)
            if size > MAX_LINE_BYTES:
                raise self._wrong(f"a line of more than {MAX_LINE_BYTES} bytes", ChannelProblem.TOO_LARGE)
            piece = await self._receive()
        last, _, self._rest = piece.partition(b"\n")
        return b"".join([*pieces, last])

    async def _receive(self) -> bytes:
        chunk = await self._stream.receive(_CHUNK)
        if not chunk:
            raise self._wrong("the agent's socket was closed", ChannelProblem.ENDED)
        return chunk

    def _wrong(self, words: str, problem: ChannelProblem) -> ChannelError:
        return ChannelError(f"{self._name}: {words}", problem)


def _loads(line: bytes) -> Any:
    """Return what a line holds, or None if it is not JSON that an agent could have written."""
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH_BYTES:
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
