"""A list of files of targets: what stands in them is asked, what stands in them no more is not."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from gpufleet.config.pull import DiscoveryConfig
from gpufleet.hub.pulled.files import TargetFiles
from gpufleet.hub.pulled.standing import Standings
from gpufleet.hub.pulled.targets import Target, targets_of
from gpufleet.model.errors import ConfigError

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
