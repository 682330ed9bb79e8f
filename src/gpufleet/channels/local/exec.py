"""Commands of this machine, each in its own process group with a time limit."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence

from gpufleet.channels.output import OutputTooLargeError, read_all
from gpufleet.model.errors import ChannelError, ChannelTimeoutError
from gpufleet.ports.channel import ExecResult

GRACE_SECONDS = 2.0
"""Time between SIGTERM and SIGKILL, and again after SIGKILL."""

_NOT_FOUND, _NOT_ALLOWED = 127, 126
_CHUNK = 1 << 16


class LocalExec:
    """The Exec port over this machine.

    A command that exceeds its time gets SIGTERM, then SIGKILL, with its whole process group. A process that survives
    both (it hangs in the kernel) is abandoned. Its command is not started again while it lives, which bounds the number
    of such processes.

    Args:
        environment: environment of the commands, plus a `C` locale; None passes on this process's own.
        grace_seconds: time between SIGTERM and SIGKILL, and again before the process is abandoned.
    """

    def __init__(self, *, environment: Mapping[str, str] | None = None, grace_seconds: float = GRACE_SECONDS) -> None:
        self._environment = {**(os.environ if environment is None else environment), "LC_ALL": "C", "LANG": "C"}
        self._grace = grace_seconds
        self._stuck: dict[str, asyncio.subprocess.Process] = {}

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run a command to completion; see `Exec.run`."""
        name = argv[0]
        self._refuse_while_stuck(name)
        path = shutil.which(name, path=self._environment.get("PATH"))
        if path is None:
            exists = shutil.which(name, mode=os.F_OK, path=self._environment.get("PATH")) is not None
            return _not_run(_NOT_ALLOWED if exists else _NOT_FOUND, name)
        try:
            process = await asyncio.create_subprocess_exec(
                path,
                *argv[1:],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
                limit=_CHUNK,
            )
        except FileNotFoundError:  # removed meanwhile, or its interpreter is missing
            return _not_run(_NOT_FOUND, name)
        except PermissionError:
            return _not_run(_NOT_ALLOWED, name)
        except (OSError, ValueError) as error:
            raise ChannelError(f"{name} cannot be started: {error}") from error
        try:
            return await self._finish(process, name, timeout_seconds, max_output_bytes)
        finally:
            if process.returncode is None:
                await self._end(process, name)
            _close(process)

    async def _finish(
        self, process: asyncio.subprocess.Process, name: str, timeout_seconds: float, max_output_bytes: int
    ) -> ExecResult:
        try:
            async with asyncio.timeout(timeout_seconds):
                out, err = await _read_to_end(process, max_output_bytes)
        except TimeoutError:
            raise ChannelTimeoutError(f"{name} did not end within {timeout_seconds:g} s") from None
        except OutputTooLargeError:
            raise ChannelError(f"{name} printed more than {max_output_bytes} bytes") from None
        assert process.returncode is not None
        return ExecResult(exit_code=_as_shell(process.returncode), stdout=out, stderr=err)

    async def _end(self, process: asyncio.subprocess.Process, name: str) -> None:
        """End the whole process group, even if this task is cancelled meanwhile; abandon a process that survives."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._grace):
                    await process.wait()
                    break
        if process.returncode is None:
            self._stuck[name] = process
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its child processes may have outlived it

    def _refuse_while_stuck(self, name: str) -> None:
        process = self._stuck.get(name)
        if process is not None and process.returncode is None:
            raise ChannelTimeoutError(f"{name} (process {process.pid}) hangs and cannot be ended: not started again")
        self._stuck.pop(name, None)


async def _read_to_end(process: asyncio.subprocess.Process, limit: int) -> tuple[bytes, bytes]:
    """Return both streams when the process has ended. Raises OutputTooLargeError."""
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.TaskGroup() as tasks:
            out = tasks.create_task(read_all(process.stdout, limit))
            err = tasks.create_task(read_all(process.stderr, limit))
            tasks.create_task(process.wait())
    except* OutputTooLargeError:
        raise OutputTooLargeError from None
    return out.result(), err.result()


def _close(process: asyncio.subprocess.Process) -> None:
    """Close the pipes, also of an abandoned process. asyncio has no public method for that."""
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001


def _as_shell(code: int) -> int:
    """Return the exit code that a shell gives for a process ended by a signal."""
    return code if code >= 0 else 128 - code


def _not_run(code: int, name: str) -> ExecResult:
    message = "not found" if code == _NOT_FOUND else "no execute permission for this user"
    return ExecResult(exit_code=code, stdout=b"", stderr=f"{name}: {message}\n".encode())
