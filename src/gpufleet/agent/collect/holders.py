"""Collection of holders: calls the holder sources on a schedule and keeps the holdings of this machine's devices."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from gpufleet.agent.collect.enrichment import CAPABILITY, PodEnrichment
from gpufleet.agent.collect.holder_states import HolderStateReport, HolderStateSchedule, holder_state_report
from gpufleet.agent.collect.saved import SavedFile
from gpufleet.fleet.attribution.device_index import DeviceIndex, IndexedDevice, ResolvedName
from gpufleet.fleet.attribution.evidence import HoldingKey, holding_key
from gpufleet.fleet.attribution.holdings import SLURM, Answer, HoldingsRound, HoldingTracker, UnresolvedClaim
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import REPEAT_SECONDS, DeviceHolders, Holding
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.time import NANOS
from gpufleet.ports.clock import Clock
from gpufleet.ports.holder import HolderSource

log = logging.getLogger(__name__)

SAVE_SECONDS = 300.0
"""Interval at which unchanged holdings are saved again. After a reboot they end at the time of the last save."""


MAX_ENDED = 2_048
"""Maximum number of ended holdings that wait for delivery; the oldest are dropped."""


class SavedHoldings(msgspec.Struct, kw_only=True):
    """Holdings that survive a restart of the agent.

    Attributes:
        boot: id of the boot of the machine.
        saved_at: nanoseconds since 1970.
        holdings: the present holdings at that time.
        ended: ended holdings that are not in the queue to the hub yet.
        slurm_nodes: SLURM's names of this machine.
        names: device names of the holder sources with their devices, in this boot.
    """

    boot: str
    saved_at: int
    holdings: tuple[Holding, ...] = ()
    ended: tuple[Holding, ...] = ()
    slurm_nodes: frozenset[str] = frozenset()
    names: tuple[ResolvedName, ...] = ()


class _Offer(NamedTuple):
    """Result of `due`: what is sent once a batch with it is queued."""

    ended: tuple[Holding, ...] = ()
    sent: Mapping[HoldingKey, tuple[Holding, float]] = MappingProxyType({})


class DeviceProcesses:
    """Processes on each device by the newest document, for the source that looks up their holders."""

    def __init__(self) -> None:
        self._devices: tuple[Device, ...] = ()

    def update(self, devices: Iterable[Device]) -> None:
        """Take the devices of a document."""
        self._devices = tuple(devices)

    def listed(self) -> dict[str, tuple[tuple[int, int | None], ...]]:
        """Return the key of each device whose processes are known, to their ids and start times.

        A GPU that is split is left out: its MIG devices and vGPUs have the holders.
        """
        split = {device.parent for device in self._devices}
        return {
            device.key: tuple([(process.pid, process.start_time) for process in device.processes])
            for device in self._devices
            if device.processes is not None and device.key not in split
        }


class HolderCollector:
    """Calls the holder sources and publishes the holders of each device.

    Attributes:
        devices: view key to its holders, by the newest round; empty before the first. Unchanged holders are the same
            objects from round to round.
        unresolved: device names in the newest round that identify no device of this machine.
        pods: completes the holdings of pods, or None.
    """

    def __init__(
        self,
        sources: Sequence[tuple[HolderSource, float]],
        *,
        interval_seconds: float,
        clock: Clock,
        file: SavedFile[SavedHoldings] | None = None,
        boot: str = "",
        processes: DeviceProcesses | None = None,
        delivers: bool = True,
        pods: PodEnrichment | None = None,
    ) -> None:
        """Take the parts.

        Args:
            sources: each with the time limit of a call in seconds.
            interval_seconds: time between two rounds.
            clock: wall and monotonic time.
            file: keeps the holdings over a restart.
            boot: id of this boot of the machine; empty if unknown.
            processes: receives the devices of each round.
            delivers: whether holdings are sent to a hub. If not, ended holdings are not kept.
            pods: completes the holdings of pods.
        """
        self._sources = tuple(sources)
        self._interval = interval_seconds
        self._clock = clock
        self._file = file
        self._boot = boot
        self._processes = processes or DeviceProcesses()
        saved = file.load() if file is not None else None
        used = [source.name for source, _ in sources]
        same_boot = saved if saved and boot and saved.boot == boot else None
        self._tracker = HoldingTracker(
            saved.holdings if saved else (),
            saved_at=saved.saved_at if saved else 0,
            sources=used if same_boot else (),
            slurm_nodes=(saved.slurm_nodes if saved else frozenset()) or (None if SLURM in used else frozenset()),
            names=same_boot.names if same_boot else (),
        )
        self.pods = pods
        if pods is not None and saved is not None:
            pods.remember(saved.holdings)
        self._newest = HoldingsRound({}, (), ())
        self._current = self._tracker.current  # completed, like everything that is published
        self._delivers = delivers
        self._ended = list(saved.ended[-MAX_ENDED:]) if saved and delivers else []
        self._is_dropping = False
        self._saved = saved or SavedHoldings(boot=boot, saved_at=0)
        self._problems: dict[str, HolderError | None] = {}
        self._details: dict[str, str] = {}
        self._sent: dict[HoldingKey, tuple[Holding, float]] = {}  # holding as sent, and when
        self._offer = _Offer()
        self._states = HolderStateSchedule()
        self.devices: Mapping[str, DeviceHolders] = {}
        self.unresolved: tuple[UnresolvedClaim, ...] = ()

    @property
    def capabilities(self) -> dict[str, str]:
        """State of each source that was called, as `holders_NAME`: `available`, or why it is not."""
        pods = {} if self.pods is None else {CAPABILITY: self.pods.capability}
        return {f"holders_{name}": self._capability(name) for name in self._problems} | pods

    @property
    def answering(self) -> frozenset[str]:
        """Names of the sources that answered in the newest round."""
        return frozenset(name for name, problem in self._problems.items() if problem is None)

    def _unresolved_names(self) -> dict[str, list[str]]:
        """Return the unresolved device names by source."""
        names: dict[str, list[str]] = {}
        for one in self.unresolved:
            names.setdefault(one.source, []).append(one.name.name.original or one.name.name.text)
        return names

    @property
    def unresolved_counts(self) -> dict[str, int]:
        """Number of unresolved device names by source; 0 for a source that answers and has none."""
        counts = Counter(one.source for one in self.unresolved)
        return {name: counts[name] for name in sorted(self.answering | counts.keys())}

    async def run(self, snapshot: Callable[[], Snapshot], changed: Callable[[], None]) -> None:
        """Run until cancelled.

        Args:
            snapshot: returns the newest document, which has the devices.
            changed: called after each round that changed the holders of a device.
        """
        try:
            while True:
                began = self._clock.monotonic()
                if await self.round(snapshot().devices):
                    changed()
                await asyncio.sleep(max(0.0, self._interval - (self._clock.monotonic() - began)))
        finally:
            await self.close()

    async def close(self) -> None:
        """Close every source."""
        for source, _ in self._sources:
            await source.close()

    async def round(self, devices: Iterable[Device]) -> bool:
        """Call every source once and update the holders; return whether they changed."""
        devices = tuple(devices)
        self._processes.update(devices)
        answers = dict(await asyncio.gather(*[self._call(source, seconds) for source, seconds in self._sources]))
        now = self._clock.now_ns()
        result = self._tracker.update(answers, DeviceIndex([indexed(device) for device in devices]), now)
        self.unresolved = result.unresolved
        self._newest = result
        changed = self.complete()
        self._keep_ended([self._completed(holding) for holding in result.ended])
        counts = self.unresolved_counts | dict.fromkeys(result.failed)
        self._states.update(holder_state_report(self.devices, counts, self._unresolved_names()))
        await self._save(now)
        return changed

    def complete(self) -> bool:
        """Publish the newest round with what is known about its pods; return whether the holders have changed."""
        if self.pods is not None:
            self.pods.update((*self._tracker.current, *self._newest.ended))
        self._current = tuple(map(self._completed, self._tracker.current))
        before = self.devices
        published: dict[str, DeviceHolders] = {}
        for view, found in self._newest.devices.items():
            holders = self._completed_holders(found)
            published[view] = before[view] if before.get(view) == holders else holders
        self.devices = published
        return self.devices != before

    async def settle(self, node: str) -> None:
        """Complete the newest round once, for a command that does not run the collector.

        Args:
            node: name of this node in Kubernetes, or empty.
        """
        if self.pods is not None:
            await self.pods.settle(node, self._tracker.current)
            self.complete()

    def due(self) -> tuple[Holding, ...]:
        """Return the holdings to send: new, changed and ended ones, and each again after `REPEAT_SECONDS`.

        They stay due until `note_delivered`.
        """
        now = self._clock.monotonic()
        due: list[Holding] = []
        sent: dict[HoldingKey, tuple[Holding, float]] = {}
        for holding in self._current:
            key = holding_key(holding)
            before, at = self._sent.get(key, (None, now))
            if before != holding or now - at >= REPEAT_SECONDS:
                due.append(holding)
                at = now
            sent[key] = holding, at
        self._offer = _Offer(tuple(self._ended), sent)
        return (*self._ended, *due)

    def due_states(self) -> HolderStateReport | None:
        """Return the holder states to send, after a change and again after `REPEAT_SECONDS`; None if they are not due.

        They stay due until `note_delivered`.
        """
        return self._states.due(self._clock.monotonic())

    def note_delivered(self) -> None:
        """Record that the results of the newest `due` and `due_states` are in the queue to the hub."""
        self._states.note_delivered()
        offered = set(map(id, self._offer.ended))
        self._ended = [holding for holding in self._ended if id(holding) not in offered]
        self._sent = dict(self._offer.sent)
        self._is_dropping = False

    def _keep_ended(self, ended: Sequence[Holding]) -> None:
        """Keep ended holdings until they are delivered. What exceeds the limit is logged once."""
        if not self._delivers:
            return
        self._ended += ended
        surplus = len(self._ended) - MAX_ENDED
        if surplus > 0:
            if not self._is_dropping:
                log.warning("more than %d ends of holdings wait for the hub: the oldest are dropped", MAX_ENDED)
            self._is_dropping = True
            del self._ended[:surplus]

    async def _call(self, source: HolderSource, seconds: float) -> tuple[str, Answer]:
        answer: Answer
        try:
            async with asyncio.timeout(seconds):
                answer = await source.report()
        except TimeoutError:
            answer = HolderError(Reason.TIMEOUT, f"no answer within {seconds:g} s")
        except HolderError as error:
            answer = error
        except Exception as error:  # the one catch point: a defect costs its own source
            log.debug("holder source %s: defect", source.name, exc_info=True)
            answer = HolderError(Reason.READER_FAILED, f"{type(error).__name__}: {error}")
        problem = answer if isinstance(answer, HolderError) else None
        self._log_change(source.name, problem)
        self._problems[source.name] = problem
        self._details[source.name] = "" if isinstance(answer, HolderError) else answer.detail
        return source.name, answer

    def _capability(self, name: str) -> str:
        problem = self._problems[name]
        if problem is not None:
            return f"{problem.absence}: {problem}"
        return f"partial: {self._details[name]}" if self._details[name] else "available"

    def _log_change(self, name: str, problem: HolderError | None) -> None:
        """Log each change of a source's state once. A source that does not exist here is not worth a line."""
        before = self._problems.get(name)
        if problem is not None and problem.absence is not Reason.NOT_ENABLED:
            if before is None or str(before) != str(problem):
                log.warning("holder source %s: %s: %s", name, problem.absence, problem)
        elif problem is None and before is not None and before.absence is not Reason.NOT_ENABLED:
            log.info("holder source %s works again", name)

    def _completed(self, holding: Holding) -> Holding:
        return holding if self.pods is None else self.pods.complete(holding)

    def _completed_holders(self, holders: DeviceHolders) -> DeviceHolders:
        if self.pods is None:
            return holders
        return msgspec.structs.replace(holders, holdings=tuple(map(self.pods.complete, holders.holdings)))

    async def _save(self, now: int) -> None:
        """Save the holdings if they changed, or were not saved for `SAVE_SECONDS`."""
        record = SavedHoldings(
            boot=self._boot,
            saved_at=self._saved.saved_at,
            holdings=self._current,
            ended=tuple(self._ended),
            slurm_nodes=self._tracker.slurm_nodes or frozenset(),
            names=self._tracker.names,
        )
        is_old = bool(self._current) and not 0 <= now - self._saved.saved_at < SAVE_SECONDS * NANOS
        if self._file is not None and (is_old or record != self._saved):
            self._saved = msgspec.structs.replace(record, saved_at=now)
            await asyncio.to_thread(self._file.save, self._saved)


def indexed(device: Device) -> IndexedDevice:
    """Return a device with the identities that its readings report."""
    minor, mdev = _text(device, "gpu_minor_number"), _text(device, "vgpu_mdev_uuid")
    return IndexedDevice(device.view, int(minor) if minor.isdecimal() else None, mdev or None)


def _text(device: Device, metric: str) -> str:
    reading = device.readings.get(metric)
    return "" if reading is None or reading.value is None else str(reading.value)
