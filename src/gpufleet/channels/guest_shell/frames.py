"""What `gpufleet-guest files` prints, read. Pure; the guest that printed it may lie, and only about itself.

A frame is a line end, the question's nonce, a kind, a path and a line end; then its content up to the next frame:
`f` a file's bytes, `l` a link's text, `s` figures of a filesystem, `e` words of an error, which takes back what came
of the same path before it, `m` what `head` prints of many files of the kernel's, `x` its words about those that failed,
and at last `end`.
"""

import errno
import os
import re

from gpufleet.model.errors import WireError
from gpufleet.ports import Fetched, FilesystemStat

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
