"""Collects what passes bring since the previous batch, as the next report. Pure."""

from collections.abc import Callable

import msgspec

from gpufleet.agent.collect.pci import pci_samples
from gpufleet.agent.collect.state import Outcome
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import PciFunction
from gpufleet.model.reading import Reading, Sample
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderStatus
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side
from gpufleet.model.wire.batch import MachineReport

REPEAT_SECONDS = 60.0
"""Interval at which an unchanged process list is sent again."""

EXPIRE_SECONDS = 3600.0
"""Time after which the process list of a view without samples is dropped."""

_ListKey = tuple[str, str, Lane]
_ProcessIds = frozenset[tuple[int, int | None]]


class ProcessLists:
    """Decides which process lists are sent: each would outweigh all other readings."""

    def __init__(self) -> None:
        self._sent: dict[_ListKey, tuple[_ProcessIds, int]] = {}  # processes, and when they were sent

    def due(self, sample: Sample) -> Sample:
        """Return the sample; its processes are dropped if they are the same as in a recent list."""
        if sample.view is None:
            return sample
        key, at = (sample.view.key, sample.reader, sample.lane), sample.measured_at
        if sample.processes is None:
            self._sent.pop(key, None)
            return sample
        ids: _ProcessIds = frozenset((process.pid, process.start_time) for process in sample.processes)
        before, sent_at = self._sent.get(key, (None, 0))
        if ids == before and 0 <= at - sent_at < REPEAT_SECONDS * NANOS:
            return msgspec.structs.replace(sample, processes=None)
        if before is None:
            oldest = at - int(EXPIRE_SECONDS * NANOS)
            self._sent = {one: last for one, last in self._sent.items() if last[1] >= oldest}
        self._sent[key] = (ids, at)
        return sample


class PendingReport:
    """Collects outcomes of passes for the next batch."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._events: list[Event] = []
        self._statuses: dict[tuple[str, Lane], ReaderStatus] = {}
        self._inventory: tuple[PciFunction, ...] | None = None
        self._pci_due = False
        self._pci_sent: dict[str, Reading] = {}
        self._processes = ProcessLists()

    def __bool__(self) -> bool:
        return bool(self._statuses)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a pass."""
        self._statuses[outcome.status.reader, outcome.status.lane] = outcome.status
        if outcome.round is None:
            return
        self._samples += map(self._processes.due, outcome.round.samples)
        self._events += outcome.round.events
        if outcome.round.inventory is not None:
            self._inventory = outcome.round.inventory
            self._pci_due = True

    def take(self, snapshot: Snapshot, now_ns: int, judged: Callable[[ReaderStatus], ReaderStatus]) -> MachineReport:
        """Return everything collected and start again.

        GPUs that only the PCI bus lists are added after each PCI listing, and when their reason has changed.

        Args:
            snapshot: assembled after the last `add`.
            now_ns: time of those reasons, nanoseconds since 1970.
            judged: returns the status of a lane with excused failures removed.
        """
        only_pci = {
            device.key: next(iter(device.readings.values()))
            for device in snapshot.devices
            if device.side is Side.PCI_ONLY
        }
        if _reasons(only_pci) != _reasons(self._pci_sent) or (self._pci_due and only_pci):
            self._samples += pci_samples(snapshot, now_ns)
        self._pci_sent = only_pci
        report = MachineReport(
            machine=snapshot.node,
            samples=tuple(self._samples),
            events=tuple(self._events),
            readers=tuple(judged(status) for status in self._statuses.values()),
            inventory=self._inventory,
        )
        self._samples, self._events, self._statuses = [], [], {}
        self._inventory, self._pci_due = None, False
        return report


def _reasons(judged: dict[str, Reading]) -> dict[str, tuple[object, str]]:
    return {key: (reading.absent, reading.detail) for key, reading in judged.items()}
