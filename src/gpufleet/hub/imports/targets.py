"""From groups of targets to machines: which cluster, which node, which page. Pure.

Files of targets, as they are now: what is broken keeps what it said last, and is named.

A list of files of targets: what stands in them is asked, what stands in them no more is not.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from gpufleet.codecs.target_files import MAX_BYTES, TargetGroup, read_groups
from gpufleet.config.hub_url import check_http_root, check_page_url
from gpufleet.config.load import ImpossibleValueError
from gpufleet.config.scrape import ClusterId, DiscoveryConfig
from gpufleet.hub.imports.remote_write import host_of
from gpufleet.hub.imports.request import can_be_called
from gpufleet.hub.imports.scrape_status import Standings
from gpufleet.model.errors import ConfigError, GpufleetError

MAX_TARGETS = 1000
"""Of one list; a hub asks each of them every ten seconds."""

_SCHEMES = ("http", "https")


class Target(msgspec.Struct, frozen=True):
    """A machine's page.

    Attributes:
        cluster, node: whose it is.
        url: of the page, or root of the Netdata.
    """

    cluster: str
    node: str
    url: str


def targets_of(config: DiscoveryConfig, groups: Iterable[TargetGroup]) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    """Return the targets that groups name, and words about each that is left out.

    Labels that are read: `cluster`, `node`, `__scheme__`, `__metrics_path__`. All others are Prometheus' business. A
    node is asked once: of several targets for it the first is taken.
    """
    found: dict[tuple[str, str], Target] = {}
    left_out: list[str] = []
    for group in groups:
        for address in group.targets:
            try:
                target = _target(config, address, group.labels)
            except ImpossibleValueError as error:
                left_out.append(f"{address}: {error.reason}")
                continue
            known = found.setdefault((target.cluster, target.node), target)
            if known.url != target.url:
                left_out.append(
                    f"{address}: node {target.node!r} is asked at {known.url} already: set another label node"
                )
            elif len(found) > MAX_TARGETS:
                del found[target.cluster, target.node]
                left_out.append(f"{address}: there are {MAX_TARGETS} targets already")
    return tuple(found.values()), tuple(left_out)


def _target(config: DiscoveryConfig, address: str, labels: Mapping[str, str]) -> Target:
    """Return one; raises ImpossibleValueError where it cannot be meant."""
    cluster = labels.get("cluster") or config.cluster
    if cluster is None:
        raise ImpossibleValueError("cluster", "neither its label cluster nor the configuration says whose it is")
    try:
        cluster = msgspec.convert(cluster, ClusterId)
    except msgspec.ValidationError:
        raise ImpossibleValueError("cluster", f"its label cluster is {cluster[:64]!r}: no id of a cluster") from None
    node = labels.get("node") or host_of(address)
    if not can_be_called(node):
        raise ImpossibleValueError("node", "it does not tell a name that a machine could have")
    if any(name.startswith("__param_") for name in labels):
        raise ImpossibleValueError("labels", "it has parameters (__param_...), which are not sent")
    scheme = labels.get("__scheme__") or config.scheme
    if scheme not in _SCHEMES or any(sign in address for sign in "/@?#"):
        raise ImpossibleValueError("targets", "it is no host:port of HTTP")
    if config.reads == "netdata":
        url = f"{scheme}://{address}"
        check_http_root("targets", url)
    else:
        path = labels.get("__metrics_path__") or config.path
        if not path.startswith("/"):
            raise ImpossibleValueError("labels", f"its label __metrics_path__ is {path[:64]!r}: no path")
        url = f"{scheme}://{address}{path}"
        check_page_url("targets", url, shows_token=bool(config.token_file) and not config.insecure)
    return Target(cluster, node, url)


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


log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Between looks at the files; a look at what has not changed is a few calls of the system a file."""

SHOWN = 5
"""Words about targets that are left out, which the log gives at once."""

Asking = Coroutine[None, None, None]


class Discovery:
    """One `[[discovery]]`. Lives on the event loop; files are read on threads."""

    def __init__(
        self,
        config: DiscoveryConfig,
        start: Callable[[Target], Callable[[], Asking]],
        standings: Standings,
    ) -> None:
        """Take the list, and what makes the task of a target; that raises ConfigError where it cannot be asked."""
        self._config, self._start, self._standings = config, start, standings
        self._files = TargetFiles(config.files)
        self._tasks: dict[Target, asyncio.Task[None]] = {}
        self._said: tuple[str, ...] = ()
        self._refused = (0, 0)

    async def run(self) -> None:
        """Watch until cancelled, then ask nobody any more."""
        try:
            while True:
                try:
                    await self.look()
                except Exception:  # the one catch point of this loop: a defect leaves the targets as they are
                    log.exception("%s: the files of targets could not be followed", self._config.files)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._end([*self._tasks])

    async def look(self) -> None:
        """Look once."""
        looked = await asyncio.to_thread(self._files.look)
        targets, left_out = targets_of(self._config, looked.groups)
        wanted = set(targets)
        await self._end([one for one in self._tasks if one not in wanted])
        words = [*left_out, *self._begin(targets)]
        self._say([f"{path}: {why}" for path, why in looked.problems.items()], words)

    def _begin(self, targets: tuple[Target, ...]) -> list[str]:
        """Start what is new; return words about what cannot be asked."""
        words = []
        for target in targets:
            if target not in self._tasks:
                try:
                    run = self._start(target)
                except ConfigError as error:
                    words.append(f"{target.url}: {error.reason}")
                else:
                    self._tasks[target] = asyncio.create_task(run(), name=f"pull {target.url}")
        return words

    async def _end(self, targets: list[Target]) -> None:
        tasks = [self._tasks.pop(target) for target in targets]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _say(self, files: list[str], targets: list[str]) -> None:
        before, self._refused = self._refused, (len(files), len(targets))
        self._standings.files_refused += self._refused[0] - before[0]
        self._standings.targets_refused += self._refused[1] - before[1]
        words = (*files, *targets)
        if words != self._said:
            for one in words[:SHOWN]:
                log.warning("discovery: %s", one)
            if len(words) > SHOWN:
                log.warning("discovery: and %d more", len(words) - SHOWN)
            log.info("discovery: %d targets of %s", len(self._tasks), ", ".join(self._config.files))
        self._said = words
