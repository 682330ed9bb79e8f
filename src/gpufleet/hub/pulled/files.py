"""Files of targets, as they are now: what is broken keeps what it said last, and is named."""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gpufleet.codecs.target_files import MAX_BYTES, TargetGroup, read_groups
from gpufleet.model.errors import GpufleetError

MAX_FILES = 256
"""That one list of patterns may name."""

BEFORE = "; what it said before stands"


class Looked(msgspec.Struct, frozen=True):
    """What a look at the files found.

    Attributes:
        groups: of every file, in the order of their paths.
        problems: path, or pattern, to why it is not read as it is now.
    """

    groups: tuple[TargetGroup, ...]
    problems: Mapping[str, str]


class _File(msgspec.Struct):
    """One file.

    Attributes:
        signature: what changes when it does.
        groups: what it said when it could be read last.
        problem: why it cannot be read now, or empty.
    """

    signature: tuple[int, ...]
    groups: tuple[TargetGroup, ...]
    problem: str


class TargetFiles:
    """The files that some patterns name. Blocking; one thread at a time."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._files: dict[str, _File] = {}

    def look(self) -> Looked:
        """Read what has changed.

        A file that is gone has no targets any more; one that is broken has those of before.
        """
        found = sorted({path for pattern in self._patterns for path in _matching(pattern)})
        self._files = {path: self._file(path) for path in found[:MAX_FILES]}
        problems = {path: file.problem for path, file in self._files.items() if file.problem}
        if len(found) > MAX_FILES:
            problems[found[MAX_FILES]] = f"and the files after it are not read: there are more than {MAX_FILES}"
        groups = tuple(group for file in self._files.values() for group in file.groups)
        return Looked(groups, problems)

    def _file(self, path: str) -> _File:
        known = self._files.get(path)
        before = known.groups if known is not None else ()
        try:
            # Not waiting for whoever would write into a pipe.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return _File((), (), "is not there: it has no targets")
        except OSError as error:
            return _File((), before, f"cannot be opened: {error.strerror}{BEFORE}")
        try:
            status = os.fstat(handle)
            signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if known is not None and known.signature == signature:
                return known
            if not stat.S_ISREG(status.st_mode):
                return _File(signature, before, f"is no file{BEFORE}")
            with os.fdopen(os.dup(handle), "rb") as file:
                content = file.read(MAX_BYTES + 1)
            groups = read_groups(content, yaml=Path(path).suffix.lower() != ".json")
        except OSError as error:
            return _File((), before, f"cannot be read: {error.strerror}{BEFORE}")
        except GpufleetError as error:
            return _File(signature, before, f"{error}{BEFORE}")
        finally:
            os.close(handle)
        return _File(signature, groups, "")


def _matching(pattern: str) -> list[str]:
    """Return the paths that a pattern names; one without a star is named whether it is there or not."""
    path = Path(pattern)
    return [str(one) for one in path.parent.glob(path.name)] if "*" in pattern else [pattern]
