"""Files of a guest, read in bulk by one command of its shell.

What `gpufleet-guest files` prints, read. Pure; the guest that printed it may lie, and only about itself.

A frame is a line end, the question's nonce, a kind, a path and a line end; then its content up to the next frame:
`f` a file's bytes, `l` a link's text, `s` figures of a filesystem, `e` words of an error, which takes back what came
of the same path before it, `m` what `head` prints of many files of the kernel's, `x` its words about those that failed,
and at last `end`.
"""

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator

from gpufleet.channels.guest_shell.shell import Shell
from gpufleet.model.errors import ChannelError, ChannelProblem, WireError
from gpufleet.ports.channel import Fetched, FetchPlan, FilesystemStat

MAX_FRAMES = 100_000

_HEAD = re.compile(rb"(?:^|\n)==> (/[^\n]*) <==\n")
"""What `head` puts before each of several files: POSIX's own words, a line end before all but the first."""

_FAILED = re.compile(rb"[^/\n]*(/[^'\n]*?)(?:'[^:\n]*)?: ([^:\n]+)")
"""A line of `head` about a file, as coreutils (`head: cannot open '/x' for reading: ...`) and busybox have it."""

_FIRST = b"/dev/null"
"""Read before the others, so that they are several."""

_NAMES = {os.strerror(number): name for number, name in errno.errorcode.items()} | {
    # coreutils' words for ENOTSUP, whose number is EOPNOTSUPP's
    "Operation not supported": "EOPNOTSUPP",
    "Connection timed out": "ETIMEDOUT",
}


def parse_frames(printed: bytes, nonce: str, max_file_bytes: int) -> Fetched:
    """Return what was fetched.

    Args:
        printed: all of it.
        nonce: as it was asked with.
        max_file_bytes: a longer file is EFBIG.

    Raises:
        WireError: if it is cut off, or is not frames.
    """
    parts = printed.split(f"\n{nonce} ".encode())
    if len(parts) > MAX_FRAMES:
        raise WireError("files", f"more than {MAX_FRAMES} frames")
    if parts[0] or len(parts) < 2 or parts[-1] != b"end .\n":
        raise WireError("files", "the output is cut off, or not of gpufleet-guest")
    fetched = Fetched(files={}, links={}, filesystems={}, errors={})
    for part in parts[1:-1]:
        head, line_end, content = part.partition(b"\n")
        kind, _, name = head.partition(b" ")
        path = name.decode("utf-8", "surrogateescape")
        if not line_end or not path.startswith("/"):
            raise WireError("files", "a frame without a path")
        _take(fetched, kind, path, content, max_file_bytes)
    return fetched


def _take(fetched: Fetched, kind: bytes, path: str, content: bytes, max_file_bytes: int) -> None:
    if kind == b"f" and len(content) > max_file_bytes:
        fetched.errors[path] = "EFBIG"
    elif kind == b"f":
        fetched.files[path] = content
    elif kind == b"l":
        fetched.links[path] = content.removesuffix(b"\n").decode("utf-8", "surrogateescape")
    elif kind == b"s":
        figures = _figures(content)
        if figures is not None:
            fetched.filesystems[path] = figures
    elif kind == b"e":
        _take_error(fetched, path, content)
    elif kind == b"m":
        _, *pieces = _HEAD.split(content, MAX_FRAMES)
        for name, text in zip(pieces[::2], pieces[1::2], strict=True):
            if name != _FIRST:
                _take(fetched, b"f", name.decode("utf-8", "surrogateescape"), text, max_file_bytes)
    elif kind == b"x":
        for line in content.splitlines():
            said = _FAILED.fullmatch(line)
            if said is None:
                raise WireError("files", f"head says {line[:100].decode('utf-8', 'replace')!r}")
            _take_error(fetched, said[1].decode("utf-8", "surrogateescape"), said[2])
    else:
        raise WireError("files", "a frame of no known kind")


def _take_error(fetched: Fetched, path: str, words: bytes) -> None:
    for found in (fetched.files, fetched.links, fetched.filesystems):
        found.pop(path, None)
    fetched.errors[path] = errno_of(words)


def errno_of(words: bytes) -> str:
    """Return the name of the error in a program's words, EIO where they are not known."""
    text = words.decode("utf-8", "replace").strip()
    return _NAMES.get(text.rpartition(": ")[2], "EIO")


def _figures(content: bytes) -> FilesystemStat | None:
    """Read `unit blocks free available files files-free`; None where an error is to follow."""
    words = content.split()
    if len(words) != 6 or not all(word.isdigit() and len(word) < 20 for word in words):
        return None
    unit, blocks, free, available, inodes, inodes_free = map(int, words)
    return FilesystemStat(
        size_bytes=blocks * unit,
        free_bytes=free * unit,
        available_bytes=available * unit,
        files=inodes,
        files_free=inodes_free,
    )


TIMEOUT_SECONDS = 10.0

MAX_BYTES = 4 << 20
"""Of one answer: what a guest may take of this side's memory for a moment."""

MAX_COMMAND_BYTES = 48 << 10
"""Of the words of one question: with the script beside them they fit in one argument (128 KiB on Linux)."""

_PATTERN = re.compile(r"[*?\[]")

_GONE = ("ENOENT", "ENOTDIR", "ESRCH")


class ShellFiles:
    """The Files port over a guest's shell.

    Only regular files are read. One that hangs costs the whole fetch: it ends after `timeout_seconds`.
    """

    def __init__(self, shell: Shell, *, timeout_seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> None:
        self._shell, self._timeout, self._max_bytes = shell, timeout_seconds, max_bytes

    async def fetch(self, plan: FetchPlan) -> Fetched:
        """Read everything in the plan; see `Files.fetch`."""
        fetched = Fetched(files={}, links={}, filesystems={}, errors={})
        for words in _questions(plan):
            part = await self._ask(words, plan.max_file_bytes)
            fetched.files |= part.files
            fetched.links |= part.links
            fetched.filesystems |= part.filesystems
            fetched.errors |= part.errors
        named = {*plan.files, *plan.links, *plan.filesystems}
        # A pattern asks for what is there: a name that went away in between left nothing.
        gone = [path for path, name in fetched.errors.items() if name in _GONE and path not in named]
        for path in gone:
            del fetched.errors[path]
        # What cannot be put into words, or was passed over in silence, is not missing: it was not read.
        told = fetched.files.keys() | fetched.links.keys() | fetched.filesystems.keys() | fetched.errors.keys()
        for path in plan.filesystems + tuple(path for path in plan.files + plan.links if not _PATTERN.search(path)):
            if path not in told:
                fetched.errors[path] = "EINVAL"
        return fetched

    async def _ask(self, words: list[str], max_file_bytes: int) -> Fetched:
        nonce = secrets.token_hex(16)
        done = await self._shell.ask(
            ("files", nonce, str(max_file_bytes), *words),
            timeout_seconds=self._timeout,
            max_output_bytes=self._max_bytes,
        )
        if done.exit_code:
            said = done.stderr[:200].decode("utf-8", "replace").strip()
            words_ = f"the guest's shell cannot read files (exit code {done.exit_code}): {said}"
            problem = ChannelProblem.NOT_PERMITTED if done.exit_code == 126 else ChannelProblem.FAILED
            raise ChannelError(words_, problem)
        try:
            return parse_frames(done.stdout, nonce, max_file_bytes)
        except WireError as error:
            raise ChannelError(f"the guest's files cannot be read: {error}", ChannelProblem.PROTOCOL) from error


def _questions(plan: FetchPlan) -> Iterator[list[str]]:
    words: list[str] = []
    size = 0
    for word in _words(plan):
        if words and size + len(word) > MAX_COMMAND_BYTES:
            yield words
            words, size = [], 0
        words.append(word)
        size += 4 * len(word) + 3  # quoting may lengthen it
    if words:
        yield words


def _words(plan: FetchPlan) -> Iterable[str]:
    for kind, paths in (("f", plan.files), ("l", plan.links), ("s", plan.filesystems)):
        for path in dict.fromkeys(paths):
            if "\n" not in path and "\0" not in path:
                yield f"{kind}:{path}"
