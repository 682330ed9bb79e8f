"""Files of this machine, read in bulk."""

import errno
import os
import stat
from functools import partial
from pathlib import Path

from gpufleet.channels.local.paths import expand, is_pattern, locate
from gpufleet.channels.local.threads import Job, WatchedThreads
from gpufleet.ports.channel import FetchPlan, FetchResult, FilesystemStat

JOB_SECONDS = 2.0
"""Time limit for one path. Kernel files take microseconds; only a hanging file reaches it."""

TOTAL_SECONDS = 10.0
"""Time limit for one fetch."""

_Outcome = bytes | str | FilesystemStat | list[str] | OSError


class LocalFiles:
    """The Files port over this machine.

    Only regular files are read, which includes files of `/proc` and `/sys`. Devices and pipes are `EINVAL`, because
    opening them may act on them or block. A path that hangs is `ETIMEDOUT`, also in later fetches while its thread is
    stuck. Other paths are not affected.

    Args:
        root: folder that stands for `/`. Links below a root other than `/` cannot lead out of it.
        job_seconds: time limit for one path.
        total_seconds: time limit for one fetch. Unread paths are then `ETIMEDOUT`.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        job_seconds: float = JOB_SECONDS,
        total_seconds: float = TOTAL_SECONDS,
    ) -> None:
        self._root = str(root.absolute())
        self._threads: WatchedThreads[_Outcome] = WatchedThreads(job_seconds=job_seconds, total_seconds=total_seconds)

    async def fetch(self, plan: FetchPlan) -> FetchResult:
        """Read everything in the plan. Failures of single paths are in `FetchResult.errors`."""
        fetched = FetchResult(files={}, links={}, filesystems={}, errors={})
        files, links = await self._expand(plan, fetched)
        jobs: list[Job[_Outcome]] = []
        jobs += [(f"read {path}", partial(self._read, path, plan.max_file_bytes)) for path in files]
        jobs += [(f"link {path}", partial(self._link, path)) for path in links]
        jobs += [(f"stat {path}", partial(self._stat, path)) for path in dict.fromkeys(plan.filesystems)]
        outcomes, timed_out = await self._threads.run(jobs)
        for key, outcome in outcomes.items():
            verb, _, path = key.partition(" ")
            if isinstance(outcome, OSError):
                # A pattern matches existing paths only. A path removed meanwhile is not an error.
                if not (_is_gone(outcome) and path not in plan.files and path not in plan.links and verb != "stat"):
                    fetched.errors[path] = _posix_name(outcome)
            elif isinstance(outcome, bytes):
                fetched.files[path] = outcome
            elif isinstance(outcome, str):
                fetched.links[path] = outcome
            elif isinstance(outcome, FilesystemStat):
                fetched.filesystems[path] = outcome
        for key in timed_out:
            fetched.errors[key.partition(" ")[2]] = "ETIMEDOUT"
        return fetched

    async def _expand(self, plan: FetchPlan, fetched: FetchResult) -> tuple[list[str], list[str]]:
        """Return the files and links to read. Patterns that cannot be expanded are added to `fetched.errors`."""
        listings: dict[str, list[str]] = {}
        patterns = [path for path in dict.fromkeys((*plan.files, *plan.links)) if is_pattern(path)]
        matched, timed_out = await self._threads.run(
            [(f"glob {pattern}", partial(self._glob, pattern, listings)) for pattern in patterns]
        )
        fetched.errors.update({key.partition(" ")[2]: "ETIMEDOUT" for key in timed_out})
        matches: dict[str, list[str]] = {}
        for key, outcome in matched.items():
            pattern = key.partition(" ")[2]
            if isinstance(outcome, OSError):
                fetched.errors[pattern] = _posix_name(outcome)
            elif isinstance(outcome, list):
                matches[pattern] = outcome

        def flat(paths: tuple[str, ...]) -> list[str]:
            nested = (matches.get(path, []) if is_pattern(path) else [path] for path in paths)
            return list(dict.fromkeys(path for group in nested for path in group))

        return flat(plan.files), flat(plan.links)

    def _glob(self, pattern: str, listings: dict[str, list[str]]) -> _Outcome:
        try:
            return expand(self._root, pattern, listings)
        except OSError as error:
            return error

    def _read(self, path: str, limit: int) -> _Outcome:
        try:
            where = locate(self._root, path)
            mode = os.stat(where).st_mode  # noqa: PTH116 - many thousand calls a pass
            if stat.S_ISDIR(mode):
                return OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(mode):
                return OSError(errno.EINVAL, "not a regular file", path)
            descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _read_all(descriptor, path, limit)
            finally:
                os.close(descriptor)
        except OSError as error:
            return error

    def _link(self, path: str) -> _Outcome:
        try:
            return os.readlink(locate(self._root, path, follow_last=False))  # noqa: PTH115
        except OSError as error:
            return error

    def _stat(self, path: str) -> _Outcome:
        try:
            sizes = os.statvfs(locate(self._root, path))
        except OSError as error:
            return error
        unit = sizes.f_frsize
        return FilesystemStat(
            size_bytes=sizes.f_blocks * unit,
            free_bytes=sizes.f_bfree * unit,
            available_bytes=sizes.f_bavail * unit,
            files=sizes.f_files,
            files_free=sizes.f_ffree,
        )


def _read_all(descriptor: int, path: str, limit: int) -> bytes | OSError:
    """Read to the end, however short the pieces: seq_file returns a page at a time."""
    pieces: list[bytes] = []
    left = limit + 1
    while left > 0:
        piece = os.read(descriptor, min(left, 1 << 16))
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        left -= len(piece)
    return OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)


def _is_gone(error: OSError) -> bool:
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESRCH)


def _posix_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "EIO")
