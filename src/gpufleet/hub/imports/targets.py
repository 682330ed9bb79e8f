"""File-based discovery of scrape targets: reading target files, converting them to targets, running their pulls."""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from gpufleet.codecs.target_files import MAX_BYTES, TargetGroup, read_groups
from gpufleet.config.load import InvalidValueError
from gpufleet.config.scrape import ClusterId, DiscoveryConfig
from gpufleet.config.urls import check_http_root, check_page_url
from gpufleet.hub.imports.remote_write import host_of
from gpufleet.hub.imports.request import is_valid_name
from gpufleet.hub.imports.scrape_status import TargetStatuses
from gpufleet.model.errors import ConfigError, GpufleetError

MAX_TARGETS = 1000
"""Maximum number of targets of one `[[discovery]]`, because a hub pulls each of them every ten seconds."""

_SCHEMES = ("http", "https")


class ScrapeTarget(msgspec.Struct, frozen=True):
    """A metrics page of one machine.

    Attributes:
        cluster, node: of the machine.
        url: of the page, or root URL of a Netdata.
    """

    cluster: str
    node: str
    url: str


def targets_of(
    config: DiscoveryConfig, groups: Iterable[TargetGroup]
) -> tuple[tuple[ScrapeTarget, ...], tuple[str, ...]]:
    """Return the targets in target groups, and a message for each target that is left out.

    The labels `cluster`, `node`, `__scheme__` and `__metrics_path__` are used, others are ignored. Of several targets
    with the same node, the first is used.
    """
    found: dict[tuple[str, str], ScrapeTarget] = {}
    left_out: list[str] = []
    for group in groups:
        for address in group.targets:
            try:
                target = _target(config, address, group.labels)
            except InvalidValueError as error:
                left_out.append(f"{address}: {error.reason}")
                continue
            known = found.setdefault((target.cluster, target.node), target)
            if known.url != target.url:
                left_out.append(
                    f"{address}: node {target.node!r} is already pulled from {known.url}: set another label `node`"
                )
            elif len(found) > MAX_TARGETS:
                del found[target.cluster, target.node]
                left_out.append(f"{address}: exceeds the limit of {MAX_TARGETS} targets")
    return tuple(found.values()), tuple(left_out)


def _target(config: DiscoveryConfig, address: str, labels: Mapping[str, str]) -> ScrapeTarget:
    """Return the target of an address. Raises InvalidValueError."""
    cluster = labels.get("cluster") or config.cluster
    if cluster is None:
        raise InvalidValueError("cluster", "no cluster: set the label `cluster` or `cluster` in the configuration")
    try:
        cluster = msgspec.convert(cluster, ClusterId)
    except msgspec.ValidationError:
        raise InvalidValueError("cluster", f"label `cluster` is not a cluster id: {cluster[:64]!r}") from None
    node = labels.get("node") or host_of(address)
    if not is_valid_name(node):
        raise InvalidValueError("node", "neither label `node` nor the address is a valid machine name")
    if any(name.startswith("__param_") for name in labels):
        raise InvalidValueError("labels", "parameters (__param_...) are not supported")
    scheme = labels.get("__scheme__") or config.scheme
    if scheme not in _SCHEMES or any(sign in address for sign in "/@?#"):
        raise InvalidValueError("targets", "must be host:port, with scheme http or https")
    if config.reads == "netdata":
        url = f"{scheme}://{address}"
        check_http_root("targets", url)
    else:
        path = labels.get("__metrics_path__") or config.path
        if not path.startswith("/"):
            raise InvalidValueError("labels", f"label `__metrics_path__` is not a path: {path[:64]!r}")
        url = f"{scheme}://{address}{path}"
        check_page_url("targets", url, sends_token=bool(config.token_file) and not config.insecure)
    return ScrapeTarget(cluster, node, url)


MAX_FILES = 256
"""Maximum number of files of one list of patterns."""

KEPT_NOTE = "; its previous targets are kept"


class TargetFileScan(msgspec.Struct, frozen=True):
    """Result of reading the target files.

    Attributes:
        groups: target groups of all files, in the order of their paths.
        problems: error by path or pattern, for files whose current content is not used.
    """

    groups: tuple[TargetGroup, ...]
    problems: Mapping[str, str]


class _File(msgspec.Struct):
    """A target file.

    Attributes:
        signature: device, inode, size and times, which change with the file.
        groups: content when it was last readable.
        problem: why it cannot be read now, or empty.
    """

    signature: tuple[int, ...]
    groups: tuple[TargetGroup, ...]
    problem: str


class TargetFiles:
    """Target files matching a list of patterns. Blocking; use it from one thread at a time."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._files: dict[str, _File] = {}

    def scan(self) -> TargetFileScan:
        """Read the changed files.

        A deleted file has no targets. An unreadable or invalid file keeps its previous targets.
        """
        found = sorted({path for pattern in self._patterns for path in _matching_paths(pattern)})
        self._files = {path: self._file(path) for path in found[:MAX_FILES]}
        problems = {path: file.problem for path, file in self._files.items() if file.problem}
        if len(found) > MAX_FILES:
            problems[found[MAX_FILES]] = f"not read, nor are the files after it: there are more than {MAX_FILES}"
        groups = tuple(group for file in self._files.values() for group in file.groups)
        return TargetFileScan(groups, problems)

    def _file(self, path: str) -> _File:
        known = self._files.get(path)
        before = known.groups if known is not None else ()
        try:
            # Non-blocking, because the path may be a pipe without a writer.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return _File((), (), "file not found: it has no targets")
        except OSError as error:
            return _File((), before, f"cannot be opened: {error.strerror}{KEPT_NOTE}")
        try:
            status = os.fstat(handle)
            signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if known is not None and known.signature == signature:
                return known
            if not stat.S_ISREG(status.st_mode):
                return _File(signature, before, f"is not a regular file{KEPT_NOTE}")
            with os.fdopen(os.dup(handle), "rb") as file:
                content = file.read(MAX_BYTES + 1)
            groups = read_groups(content, yaml=Path(path).suffix.lower() != ".json")
        except OSError as error:
            return _File((), before, f"cannot be read: {error.strerror}{KEPT_NOTE}")
        except GpufleetError as error:
            return _File(signature, before, f"{error}{KEPT_NOTE}")
        finally:
            os.close(handle)
        return _File(signature, groups, "")


def _matching_paths(pattern: str) -> list[str]:
    """Return the paths that match a pattern; a pattern without a star is returned whether or not the file exists."""
    path = Path(pattern)
    return [str(one) for one in path.parent.glob(path.name)] if "*" in pattern else [pattern]


log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""Interval between checks of the files. An unchanged file costs a few system calls."""

MAX_LOGGED = 5
"""Maximum number of problems logged at a time."""

PullTask = Coroutine[None, None, None]


class Discovery:
    """Discovery of one `[[discovery]]` section. Use it from the event loop; files are read on threads."""

    def __init__(
        self,
        config: DiscoveryConfig,
        start: Callable[[ScrapeTarget], Callable[[], PullTask]],
        target_statuses: TargetStatuses,
    ) -> None:
        """Set the section, and a function that returns the pull task of a target or raises ConfigError."""
        self._config, self._start, self._standings = config, start, target_statuses
        self._files = TargetFiles(config.files)
        self._tasks: dict[ScrapeTarget, asyncio.Task[None]] = {}
        self._logged: tuple[str, ...] = ()
        self._refused = (0, 0)

    async def run(self) -> None:
        """Watch the files until cancelled, then stop all pulls."""
        try:
            while True:
                try:
                    await self.update()
                except Exception:  # broad: the one catch point of this loop; the targets stay as they are
                    log.exception("discovery: reading %s failed", self._config.files)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await self._end([*self._tasks])

    async def update(self) -> None:
        """Check the files once, and start and stop pulls accordingly."""
        scan = await asyncio.to_thread(self._files.scan)
        targets, left_out = targets_of(self._config, scan.groups)
        wanted = set(targets)
        await self._end([one for one in self._tasks if one not in wanted])
        problems = [*left_out, *self._begin(targets)]
        self._log_problems([f"{path}: {why}" for path, why in scan.problems.items()], problems)

    def _begin(self, targets: tuple[ScrapeTarget, ...]) -> list[str]:
        """Start the pulls of new targets; return a message for each that cannot be started."""
        problems = []
        for target in targets:
            if target not in self._tasks:
                try:
                    run = self._start(target)
                except ConfigError as error:
                    problems.append(f"{target.url}: {error.reason}")
                else:
                    self._tasks[target] = asyncio.create_task(run(), name=f"pull {target.url}")
        return problems

    async def _end(self, targets: list[ScrapeTarget]) -> None:
        tasks = [self._tasks.pop(target) for target in targets]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _log_problems(self, files: list[str], targets: list[str]) -> None:
        before, self._refused = self._refused, (len(files), len(targets))
        self._standings.files_refused += self._refused[0] - before[0]
        self._standings.targets_refused += self._refused[1] - before[1]
        problems = (*files, *targets)
        if problems != self._logged:
            for one in problems[:MAX_LOGGED]:
                log.warning("discovery: %s", one)
            if len(problems) > MAX_LOGGED:
                log.warning("discovery: and %d more", len(problems) - MAX_LOGGED)
            log.info("discovery: %d targets in %s", len(self._tasks), ", ".join(self._config.files))
        self._logged = problems
