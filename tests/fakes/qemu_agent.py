"""QEMU guest agent on a Unix socket: one client at a time, answers in order, real processes, and faults."""

import asyncio
import base64
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any, Self

COMMANDS = ("guest-sync-delimited", "guest-info", "guest-exec", "guest-exec-status")


class FakeQemuAgent:
    """Fake QEMU guest agent.

    Attributes:
        path: PATH of the guest.
        disabled: commands that are disabled.
        stale: bytes that the previous client left unread; sent with the next answer.
        frozen: the guest is paused, so that no command is answered.
        dribble: answers are sent byte by byte.
        replace: raw bytes sent instead of an answer, by command.
        commands: commands received, in order.
        clients: number of connections so far.
    """

    def __init__(self, socket: Path, path: str) -> None:
        self.socket, self.path = socket, path
        self.disabled: set[str] = set()
        self.stale = b""
        self.frozen = self.dribble = False
        self.replace: dict[str, bytes] = {}
        self.commands: list[str] = []
        self.clients = 0
        self._turn = asyncio.Lock()
        self._processes: dict[int, tuple[asyncio.subprocess.Process, asyncio.Task[tuple[bytes, bytes]]]] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self.socket, limit=1 << 24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for process, task in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await task

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients += 1
        try:
            async with self._turn:  # a second client connects and waits
                while line := await reader.readline():
                    await self._answer(line, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        if self.frozen:
            return
        request = json.loads(line.lstrip(b"\xff"))
        name, arguments = request["execute"], request.get("arguments", {})
        self.commands.append(name)
        sync = b"\xff" if name == "guest-sync-delimited" else b""
        answer = self.replace.get(name)
        if answer is None:
            result = await self._do(name, arguments)
            answer = sync + json.dumps(result).encode() + b"\n"
        answer, self.stale = self.stale + answer, b""
        for piece in [answer[place : place + 1] for place in range(len(answer))] if self.dribble else [answer]:
            writer.write(piece)
            await writer.drain()

    async def _do(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name in self.disabled or name not in COMMANDS:
            message = (
                f"Command {name} has been disabled" if name in self.disabled else f"The command {name} was not found"
            )
            return {"error": {"class": "CommandNotFound", "desc": message}}
        if name == "guest-sync-delimited":
            return {"return": arguments["id"]}
        if name == "guest-info":
            listed = [{"name": one, "enabled": one not in self.disabled, "success-response": True} for one in COMMANDS]
            return {"return": {"version": "7.2.0", "supported_commands": listed}}
        if name == "guest-exec":
            process = await asyncio.create_subprocess_exec(
                arguments["path"],
                *arguments["arg"],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "PATH": self.path},
            )
            self._processes[process.pid] = process, asyncio.create_task(process.communicate())
            return {"return": {"pid": process.pid}}
        return self._status(arguments["pid"])

    def _status(self, pid: int) -> dict[str, Any]:
        if pid not in self._processes:
            return {"error": {"class": "GenericError", "desc": "Invalid parameter 'pid'"}}
        process, task = self._processes[pid]
        if not task.done():
            return {"return": {"exited": False}}
        del self._processes[pid]  # reported once, then dropped
        out, err = task.result()
        assert process.returncode is not None
        status: dict[str, Any] = {"exited": True}
        status |= {"exitcode": process.returncode} if process.returncode >= 0 else {"signal": -process.returncode}
        status |= {"out-data": base64.b64encode(out).decode()} if out else {}
        status |= {"err-data": base64.b64encode(err).decode()} if err else {}
        return {"return": status}
