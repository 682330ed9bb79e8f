"""What is new since the batch before, as the next batch. Pure.

Which lists of processes travel: not every one, or they would outweigh everything else. Pure.
"""

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

TELL_SECONDS = 60.0
"""So often a list travels that names the same processes as the one before."""

FORGET_SECONDS = 3600.0
"""After so long a view that is not spoken of any more is forgotten."""

_Place = tuple[str, str, Lane]
_Who = frozenset[tuple[int, int | None]]


class ProcessLists:
    """Remembers which list of each view was told last."""

    def __init__(self) -> None:
        self._told: dict[_Place, tuple[_Who, int]] = {}  # who was there, and when

    def due(self, sample: Sample) -> Sample:
        """Return the sample, without its processes unless somebody came or went, or it is time to tell them again."""
        if sample.view is None:
            return sample
        place, at = (sample.view.key, sample.reader, sample.lane), sample.measured_at
        if sample.processes is None:
            self._told.pop(place, None)
            return sample
        who: _Who = frozenset((process.pid, process.start_time) for process in sample.processes)
        before, told_at = self._told.get(place, (None, 0))
        if who == before and 0 <= at - told_at < TELL_SECONDS * NANOS:
            return msgspec.structs.replace(sample, processes=None)
        if before is None:
            oldest = at - int(FORGET_SECONDS * NANOS)
            self._told = {one: last for one, last in self._told.items() if last[1] >= oldest}
        self._told[place] = (who, at)
        return sample


class Pending:
    """Collects what passes bring until somebody takes it."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._events: list[Event] = []
        self._statuses: dict[tuple[str, Lane], ReaderStatus] = {}
        self._inventory: tuple[PciFunction, ...] | None = None
        self._pci_due = False
        self._pci_told: dict[str, Reading] = {}
        self._processes = ProcessLists()

    def __bool__(self) -> bool:
        return bool(self._statuses)

    def add(self, outcome: Outcome) -> None:
        """Take in what a pass came to."""
        self._statuses[outcome.status.reader, outcome.status.lane] = outcome.status
        if outcome.round is None:
            return
        self._samples += map(self._processes.due, outcome.round.samples)
        self._events += outcome.round.events
        if outcome.round.inventory is not None:
            self._inventory = outcome.round.inventory
            self._pci_due = True

    def take(self, snapshot: Snapshot, now_ns: int, judged: Callable[[ReaderStatus], ReaderStatus]) -> MachineReport:
        """Return everything collected, with the GPUs that only PCI shows, and start again.

        Those are told when the bus was read, and whenever the reason that no reader shows them has changed.

        Args:
            snapshot: the newest one, assembled after the last `add`.
            now_ns: nanoseconds since 1970, when such reasons are judged.
            judged: says how a lane is doing on this machine.
        """
        only_pci = {
            device.key: next(iter(device.readings.values()))
            for device in snapshot.devices
            if device.side is Side.PCI_ONLY
        }
        if _reasons(only_pci) != _reasons(self._pci_told) or (self._pci_due and only_pci):
            self._samples += pci_samples(snapshot, now_ns)
        self._pci_told = only_pci
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
