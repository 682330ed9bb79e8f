"""Channel ports: how a reader reaches files, commands and streams of a machine."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class FilesystemStat(msgspec.Struct, frozen=True, kw_only=True):
    """Result of statvfs for a mount point, in bytes and counts."""

    size_bytes: int
    free_bytes: int
    available_bytes: int
    files: int
    files_free: int


class FetchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Files, links and file systems that a reader requests from a machine in one fetch.

    Attributes:
        files: absolute paths or glob patterns (`*` and `[...]` within one path segment) to read.
        links: absolute paths or glob patterns of symbolic links to resolve.
        filesystems: mount points to statvfs.
        max_file_bytes: a larger file is reported as an error.
    """

    files: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    filesystems: tuple[str, ...] = ()
    max_file_bytes: int = 1 << 20


class FetchResult(msgspec.Struct, kw_only=True):
    """Result of a `FetchPlan`. A pattern without matches gives nothing; a missing literal path is an error.

    Attributes:
        files: path to content.
        links: path to the link's target.
        filesystems: mount point to sizes.
        errors: path to a POSIX error name (`ENOENT`, `EACCES`, `EIO`, `EFBIG`, `ETIMEDOUT`).
    """

    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    filesystems: dict[str, FilesystemStat] = {}
    errors: dict[str, str] = {}


class Files(Protocol):
    """A channel that can read files in bulk."""

    async def fetch(self, plan: FetchPlan) -> FetchResult:
        """Read everything in the plan.

        Raises:
            ChannelError: if the channel fails as a whole; errors of single paths are in `FetchResult.errors`.
        """
        ...


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Exec(Protocol):
    """A channel that can run one of its fixed commands."""

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run a command to completion, without a shell.

        As in a shell, the exit code is 127 for a missing command and 126 for a command without execute permission.

        Raises:
            ChannelTimeoutError: if the command exceeds the timeout, or an earlier run of it has not ended.
            ChannelError: if the command cannot be started, or prints more than `max_output_bytes` on either stream.
        """
        ...


class Stream(Protocol):
    """A channel that carries bytes both ways."""

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ChannelError if the peer is gone."""
        ...

    async def receive(self, most: int) -> bytes:
        """Receive 1 to `most` bytes, or empty bytes at the end of the stream. Raises ChannelError."""
        ...

    async def receive_exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises ChannelError if the stream ends before that."""
        ...

    async def close(self) -> None:
        """Close the stream; a second close has no effect."""
        ...


class Dialer(Protocol):
    """A channel that opens streams to one address."""

    async def dial(self) -> Stream:
        """Open a stream.

        Raises:
            ChannelError: if the peer does not answer within the channel's timeout; `problem` gives the cause.
        """
        ...
