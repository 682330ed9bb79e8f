"""Paths under a root: glob patterns, and links that may not lead outside."""

import errno
import fnmatch
import os
import re
from functools import lru_cache

MAX_LINKS = 40
"""Links followed in one path before it is called a loop, as the kernel counts (ELOOP)."""

MAX_MATCHES = 65_536
"""Names that one pattern may match; what is beyond is left out, and the pattern reported as E2BIG."""

_MAGIC = re.compile(r"[*?\[]")


def is_pattern(path: str) -> bool:
    """Tell whether `path` has a wildcard."""
    return _MAGIC.search(path) is not None


def locate(root: str, path: str, *, follow_last: bool = True) -> str:
    """Return where `path` is on this machine when `root` is taken for `/`.

    Under a root other than `/` every link on the way is followed as if in a chroot: an absolute link starts
    again at the root, and `..` never climbs above it. Under `/` the kernel does that itself.

    Raises:
        OSError: EINVAL for a path with a NUL, ELOOP after 40 links, and whatever reading a link raises.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, "a path has no NUL", path)
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

    A wildcard stays within its path segment and, as in a shell, does not stand for a dot that begins a name.

    A folder that is not there has no matches. Whether a literal name behind a wildcard is there is left to
    whoever opens it: that saves a call a path.

    Args:
        root: as for `locate`.
        pattern: the path with wildcards.
        listings: folders already listed, by path; filled here, so that the patterns of one plan list each once.

    Raises:
        OSError: E2BIG past `MAX_MATCHES`; EACCES and the like for a folder that cannot be listed.
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
