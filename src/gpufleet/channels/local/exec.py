"""Commands of this machine, each in a process group of its own that ends when its time is over."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence

from gpufleet.channels.bounded import TooMuchError, read_all
from gpufleet.model.errors import ChannelError, ChannelTimeoutError
from gpufleet.ports.channel import ExecResult

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL, and after it."""

_NOT_FOUND, _NOT_ALLOWED = 127, 126
_CHUNK = 1 << 16


class LocalExec:
    """The Exec port over this machine itself.

    A command that does not end in time gets SIGTERM, then SIGKILL, with everything it started. One that does not
    end even then (it hangs in the kernel, beyond signals) is left alone, and is not started again while it lives:
    no more such processes than commands.

    Args:
        environment: of the commands, beside a `C` locale; None hands down this process's own.
        grace_seconds: between SIGTERM and SIGKILL, and again until the process is given up.
    """

    def __init__(self, *, environment: Mapping[str, str] | None = None, grace_seconds: float = GRACE_SECONDS) -> None:
        self._environment = {**(os.environ if environment is None else environment), "LC_ALL": "C", "LANG": "C"}
        self._grace = grace_seconds
        self._stuck: dict[str, asyncio.subprocess.Process] = {}

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run a command to its end; see `Exec.run`."""
        name = argv[0]
        self._refuse_while_stuck(name)
        path = shutil.which(name, path=self._environment.get("PATH"))
        if path is None:
            there = shutil.which(name, mode=os.F_OK, path=self._environment.get("PATH")) is not None
            return _not_run(_NOT_ALLOWED if there else _NOT_FOUND, name)
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
        except FileNotFoundError:  # it went away, or its interpreter is not there
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
        except TooMuchError:
            raise ChannelError(f"{name} printed more than {max_output_bytes} bytes") from None
        assert process.returncode is not None
        return ExecResult(exit_code=_as_shell(process.returncode), stdout=out, stderr=err)

    async def _end(self, process: asyncio.subprocess.Process, name: str) -> None:
        """End the whole group, however this task itself is ended meanwhile; give up what does not end."""
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
            os.killpg(process.pid, signal.SIGKILL)  # what it started may have outlived it

    def _refuse_while_stuck(self, name: str) -> None:
        process = self._stuck.get(name)
        if process is not None and process.returncode is None:
            raise ChannelTimeoutError(f"{name} (process {process.pid}) hangs and cannot be ended: not started again")
        self._stuck.pop(name, None)


async def _read_to_end(process: asyncio.subprocess.Process, limit: int) -> tuple[bytes, bytes]:
    """Return both streams when the process has ended. Raises TooMuchError."""
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.TaskGroup() as tasks:
            out = tasks.create_task(read_all(process.stdout, limit))
            err = tasks.create_task(read_all(process.stderr, limit))
            tasks.create_task(process.wait())
    except* TooMuchError:
        raise TooMuchError from None
    return out.result(), err.result()


def _close(process: asyncio.subprocess.Process) -> None:
    """Give back the pipes, also of a process that was given up; asyncio has no public way for that."""
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001


def _as_shell(code: int) -> int:
    """Return what a shell would say of a process that a signal ended."""
    return code if code >= 0 else 128 - code


def _not_run(code: int, name: str) -> ExecResult:
    words = "not found" if code == _NOT_FOUND else "may not be run by this user"
    return ExecResult(exit_code=code, stdout=b"", stderr=f"{name}: {words}\n".encode())
