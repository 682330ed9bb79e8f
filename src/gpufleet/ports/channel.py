"""Channel ports: how a reader reaches files, commands and streams of a machine."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gpufleet.model.reading import Round as Round

# --- channels -----------------------------------------------------------------------------------


class FilesystemStat(msgspec.Struct, frozen=True, kw_only=True):
    """What statvfs says of a mount point; bytes and counts."""

    size_bytes: int
    free_bytes: int
    available_bytes: int
    files: int
    files_free: int


class FetchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader wants to see of another machine's files, in one question.

    Attributes:
        files: absolute paths or glob patterns (`*` and `[...]` within one path segment) to read.
        links: absolute paths or glob patterns of symbolic links to resolve.
        filesystems: mount points to statvfs.
        max_file_bytes: a longer file is an error for that file.
    """

    files: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    filesystems: tuple[str, ...] = ()
    max_file_bytes: int = 1 << 20


class Fetched(msgspec.Struct, kw_only=True):
    """What came back. A pattern that matches nothing leaves nothing; a named path that is missing is an error.

    Attributes:
        files: path to content.
        links: path to the link's text.
        filesystems: mount point to figures.
        errors: path to a POSIX error name (`ENOENT`, `EACCES`, `EIO`, `EFBIG`, `ETIMEDOUT`).
    """

    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    filesystems: dict[str, FilesystemStat] = {}
    errors: dict[str, str] = {}


class Files(Protocol):
    """A channel that can read files in bulk."""

    async def fetch(self, plan: FetchPlan) -> Fetched:
        """Read everything in the plan.

        Raises:
            ChannelError: if the channel as a whole failed; a single path's failure is in `Fetched.errors`.
        """
        ...


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a command came to."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Exec(Protocol):
    """A channel that can run one of its fixed commands."""

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run a command to its end, without a shell.

        A command that is not there ends with code 127, one that may not be run with 126, as a shell has it.

        Raises:
            ChannelTimeoutError: if it did not end in time, or an earlier run of it still has not.
            ChannelError: if it could not be started, or printed more than `max_output_bytes` on either stream.
        """
        ...


class Stream(Protocol):
    """A channel that carries bytes both ways."""

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ChannelError when the other side is gone."""
        ...

    async def receive(self, most: int) -> bytes:
        """Receive at least a byte and at most `most`; nothing once the other side has ended. Raises ChannelError."""
        ...

    async def receive_exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises ChannelError when the other side ends before that."""
        ...

    async def close(self) -> None:
        """Close; a second close does nothing."""
        ...


class Dialer(Protocol):
    """A channel that opens streams to one address."""

    async def dial(self) -> Stream:
        """Open a stream.

        Raises:
            ChannelError: if nobody answers in the channel's own time; its `problem` says why.
        """
        ...
