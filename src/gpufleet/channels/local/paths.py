"""Paths below a root: glob patterns, and links that cannot lead outside."""

import errno
import fnmatch
import os
import re
from functools import lru_cache

MAX_LINKS = 40
"""Maximum links in one path before ELOOP, the kernel's limit."""

MAX_MATCHES = 65_536
"""Maximum matches of one pattern. Beyond it the pattern is E2BIG."""

_MAGIC = re.compile(r"[*?\[]")


def is_pattern(path: str) -> bool:
    """Return whether `path` has a wildcard."""
    return _MAGIC.search(path) is not None


def locate(root: str, path: str, *, follow_last: bool = True) -> str:
    """Return the real location of `path` when `root` stands for `/`.

    Below a root other than `/`, links are resolved as in a chroot: an absolute link starts at the root, and `..` never
    climbs above it. For `/` the kernel resolves links.

    Raises:
        OSError: EINVAL for a path with a NUL, ELOOP after 40 links, and errors of reading links.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, "the path contains a NUL", path)
    if root == "/":
        return path
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    done = [root]
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            if len(done) > 1:
                done.pop()
            continue
        here = f"{'/'.join(done)}/{part}"
        if (todo or follow_last) and os.path.islink(here):  # noqa: PTH114 - many thousand calls a pass
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            text = os.readlink(here)  # noqa: PTH115 - many thousand calls a pass
            if text.startswith("/"):
                del done[1:]
            todo.extend(segment for segment in reversed(text.split("/")) if segment not in ("", "."))
            continue
        done.append(part)
    return "/".join(done)


def expand(root: str, pattern: str, listings: dict[str, list[str]]) -> list[str]:
    """Return the paths that may match `pattern`, sorted.

    A wildcard stays within its path segment and, as in a shell, does not match a leading dot. A missing folder has no
    matches. Literal names behind a wildcard are not checked for existence, which saves a system call per path.

    Args:
        root: as for `locate`.
        pattern: the path with wildcards.
        listings: cache of folder listings by path, filled here. The patterns of one plan share it.

    Raises:
        OSError: E2BIG past `MAX_MATCHES`, or the error of a folder that cannot be listed, such as EACCES.
    """
    found = [""]
    for segment in pattern.strip("/").split("/"):
        if not is_pattern(segment):
            found = [f"{folder}/{segment}" for folder in found]
            continue
        matches = _compile(segment).match
        for folder in found:
            if folder not in listings:
                listings[folder] = _names(root, folder)
        found = [f"{folder}/{name}" for folder in found for name in listings[folder] if matches(name)]
        if len(found) > MAX_MATCHES:
            raise OSError(errno.E2BIG, "too many matches", pattern)
    return found


@lru_cache(maxsize=256)
def _compile(segment: str) -> re.Pattern[str]:
    hidden = "" if segment.startswith(".") else r"(?!\.)"
    return re.compile(hidden + fnmatch.translate(segment))


def _names(root: str, folder: str) -> list[str]:
    try:
        return sorted(os.listdir(locate(root, folder or "/")))  # noqa: PTH208 - names, not paths
    except (FileNotFoundError, NotADirectoryError):
        return []
