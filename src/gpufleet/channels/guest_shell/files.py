"""Files of a guest, read in bulk by one command of its shell. The guest's output is hostile input.

Output of `gpufleet-guest files`: frames, each a line end, the request's nonce, a kind, a path and a line end, followed
by content up to the next frame. Kinds: `f` content of a file; `l` target of a link; `s` sizes of a file system; `e` an
error message, which replaces earlier content of the same path; `m` output of `head` for many kernel files; `x` error
messages of that `head`; at last `end`.
"""

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator

from gpufleet.channels.guest_shell.shell import GuestShell
from gpufleet.model.errors import ChannelError, ChannelProblem, WireError
from gpufleet.ports.channel import FetchPlan, FetchResult, FilesystemStat

MAX_FRAMES = 100_000

_HEAD = re.compile(rb"(?:^|\n)==> (/[^\n]*) <==\n")
"""Header that `head` prints before each of several files (POSIX), with a line end before all but the first."""

_FAILED = re.compile(rb"[^/\n]*(/[^'\n]*?)(?:'[^:\n]*)?: ([^:\n]+)")
"""An error line of `head`, as in coreutils (`head: cannot open '/x' for reading: ...`) and busybox."""

_FIRST = b"/dev/null"
"""Read before the other files, so that `head` always has several and prints headers."""

_SIZES = re.compile(rb"(?:[0-9]{1,20} ){5}-?[0-9]{1,20}\s*")

MAX_UNSIGNED = 2**64 - 1
"""Largest number in the kernel's sizes of a file system."""

_ERRNO_NAMES = {os.strerror(number): name for number, name in errno.errorcode.items()} | {
    # coreutils' text for ENOTSUP, which has the number of EOPNOTSUPP
    "Operation not supported": "EOPNOTSUPP",
    "Connection timed out": "ETIMEDOUT",
}


def parse_frames(printed: bytes, nonce: str, max_file_bytes: int) -> FetchResult:
    """Return the files in a command's output.

    Args:
        printed: the complete output.
        nonce: the request's nonce.
        max_file_bytes: a larger file is reported as EFBIG.

    Raises:
        WireError: if the output is truncated or malformed.
    """
    parts = printed.split(f"\n{nonce} ".encode())
    if len(parts) > MAX_FRAMES:
        raise WireError("files", f"more than {MAX_FRAMES} frames")
    if parts[0] or len(parts) < 2 or parts[-1] != b"end .\n":
        raise WireError("files", "the output is truncated, or not from gpufleet-guest")
    fetched = FetchResult(files={}, links={}, filesystems={}, errors={})
    for part in parts[1:-1]:
        head, line_end, content = part.partition(b"\n")
        kind, _, name = head.partition(b" ")
        path = name.decode("utf-8", "surrogateescape")
        if not line_end or not path.startswith("/"):
            raise WireError("files", "a frame without a path")
        _take(fetched, kind, path, content, max_file_bytes)
    return fetched


def _take(fetched: FetchResult, kind: bytes, path: str, content: bytes, max_file_bytes: int) -> None:
    if kind == b"f" and len(content) > max_file_bytes:
        fetched.errors[path] = "EFBIG"
    elif kind == b"f":
        fetched.files[path] = content
    elif kind == b"l":
        fetched.links[path] = content.removesuffix(b"\n").decode("utf-8", "surrogateescape")
    elif kind == b"s":
        sizes = _parse_sizes(content)
        if sizes is None:
            fetched.errors[path] = "EPROTO"
        else:
            fetched.filesystems[path] = sizes
    elif kind == b"e":
        _take_error(fetched, path, content)
    elif kind == b"m":
        _, *pieces = _HEAD.split(content, MAX_FRAMES)
        for name, text in zip(pieces[::2], pieces[1::2], strict=True):
            if name != _FIRST:
                _take(fetched, b"f", name.decode("utf-8", "surrogateescape"), text, max_file_bytes)
    elif kind == b"x":
        for line in content.splitlines():
            match = _FAILED.fullmatch(line)
            if match is None:
                raise WireError("files", f"unknown error of head: {line[:100].decode('utf-8', 'replace')!r}")
            _take_error(fetched, match[1].decode("utf-8", "surrogateescape"), match[2])
    else:
        raise WireError("files", "unknown kind of frame")


def _take_error(fetched: FetchResult, path: str, message: bytes) -> None:
    for found in (fetched.files, fetched.links, fetched.filesystems):
        found.pop(path, None)
    fetched.errors[path] = parse_errno(message)


def parse_errno(message: bytes) -> str:
    """Return the name of the error in a program's message, EIO if unknown."""
    text = message.decode("utf-8", "replace").strip()
    return _ERRNO_NAMES.get(text.rpartition(": ")[2], "EIO")


def _parse_sizes(content: bytes) -> FilesystemStat | None:
    """Parse `unit blocks free available files files-free`. Returns None for other text or if an error frame follows.

    GNU coreutils prints the free files of CephFS, 2^64-1, as a signed number: -1. busybox prints it unsigned.
    """
    if _SIZES.fullmatch(content) is None:
        return None
    unit, blocks, free, available, inodes, inodes_free = numbers = [int(field) for field in content.split()]
    if max(numbers) > MAX_UNSIGNED or inodes_free < -(MAX_UNSIGNED >> 1) - 1:
        return None
    return FilesystemStat(
        size_bytes=blocks * unit,
        free_bytes=free * unit,
        available_bytes=available * unit,
        files=inodes,
        files_free=inodes_free & MAX_UNSIGNED,
    )


TIMEOUT_SECONDS = 10.0

MAX_OUTPUT_BYTES = 4 << 20
"""Maximum output of one command, which is held in memory."""

MAX_COMMAND_BYTES = 48 << 10
"""Maximum arguments of one command. With the script they fit in one argument (128 KiB on Linux)."""

_PATTERN = re.compile(r"[*?\[]")

_GONE = ("ENOENT", "ENOTDIR", "ESRCH")


class ShellFiles:
    """The Files port over a guest's shell.

    Only regular files are read. A file that hangs fails the whole fetch after `timeout_seconds`.
    """

    def __init__(
        self, shell: GuestShell, *, timeout_seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_OUTPUT_BYTES
    ) -> None:
        self._shell, self._timeout, self._max_bytes = shell, timeout_seconds, max_bytes

    async def fetch(self, plan: FetchPlan) -> FetchResult:
        """Read everything in the plan; see `Files.fetch`."""
        fetched = FetchResult(files={}, links={}, filesystems={}, errors={})
        for arguments in _batches(plan):
            part = await self._fetch_batch(arguments, plan.max_file_bytes)
            fetched.files |= part.files
            fetched.links |= part.links
            fetched.filesystems |= part.filesystems
            fetched.errors |= part.errors
        named = {*plan.files, *plan.links, *plan.filesystems}
        # A pattern matches existing paths only. A path removed meanwhile is not an error.
        gone = [path for path, name in fetched.errors.items() if name in _GONE and path not in named]
        for path in gone:
            del fetched.errors[path]
        # A path that could not be sent, or that the answer omits, was not read. It is not missing.
        known = fetched.files.keys() | fetched.links.keys() | fetched.filesystems.keys() | fetched.errors.keys()
        for path in plan.filesystems + tuple(path for path in plan.files + plan.links if not _PATTERN.search(path)):
            if path not in known:
                fetched.errors[path] = "EINVAL"
        return fetched

    async def _fetch_batch(self, arguments: list[str], max_file_bytes: int) -> FetchResult:
        nonce = secrets.token_hex(16)
        done = await self._shell.execute(
            ("files", nonce, str(max_file_bytes), *arguments),
            timeout_seconds=self._timeout,
            max_output_bytes=self._max_bytes,
        )
        if done.exit_code:
            message_text = done.stderr[:200].decode("utf-8", "replace").strip()
            message = f"the guest's shell cannot read files (exit code {done.exit_code}): {message_text}"
            problem = ChannelProblem.NOT_PERMITTED if done.exit_code == 126 else ChannelProblem.FAILED
            raise ChannelError(message, problem)
        try:
            return parse_frames(done.stdout, nonce, max_file_bytes)
        except WireError as error:
            raise ChannelError(f"the guest's files cannot be read: {error}", ChannelProblem.PROTOCOL) from error


def _batches(plan: FetchPlan) -> Iterator[list[str]]:
    arguments: list[str] = []
    size = 0
    for argument in _arguments(plan):
        if arguments and size + len(argument) > MAX_COMMAND_BYTES:
            yield arguments
            arguments, size = [], 0
        arguments.append(argument)
        size += 4 * len(argument) + 3  # quoting may lengthen it
    if arguments:
        yield arguments


def _arguments(plan: FetchPlan) -> Iterable[str]:
    for kind, paths in (("f", plan.files), ("l", plan.links), ("s", plan.filesystems)):
        for path in dict.fromkeys(paths):
            if "\n" not in path and "\0" not in path:
                yield f"{kind}:{path}"
