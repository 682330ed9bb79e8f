"""Whether the agent holds the devices: carries out what an operator asks, and tells what became of it."""

from collections.abc import Iterable

from gpufleet.agent.outcome import Outcome
from gpufleet.agent.pci import NVIDIA
from gpufleet.agent.release import Release, ReleaseFolder, withheld
from gpufleet.agent.state import State
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.event import Event
from gpufleet.model.event_kinds import EventKind
from gpufleet.model.reading import Sample
from gpufleet.model.round import Round
from gpufleet.model.time import to_datetime
from gpufleet.ports import Clock


class Holding:
    """Lives on the event loop.

    Attributes:
        release: what is asked now, or None.
    """

    def __init__(self, folder: ReleaseFolder | None, readers: Iterable[str], clock: Clock) -> None:
        """Take where the operator's word is found, and the readers that hold devices."""
        self._folder = folder
        self._readers = frozenset(readers)
        self._clock = clock
        self._let_go: set[str] = set()
        self.release: Release | None = None
        self._before: Release | None = None
        if folder is not None:
            self._before = folder.answered()  # by the agent before: that it let go is told already
            folder.retract()

    def look(self) -> list[Event]:
        """See what is asked now; return the events that this is."""
        before, self.release = self._before, self._folder.current() if self._folder is not None else None
        self._before = self.release
        if before is not None and self.release is not None and before != self.release:
            self._answer()  # another release in its place: what was let go already is its answer too
        if (before is None) == (self.release is None):
            return []
        at = self._clock.now_ns()
        if self.release is not None:
            until = self.release.until
            attributes = {} if until is None else {"until": to_datetime(until).isoformat()}
            return [Event(view=None, kind=EventKind.DEVICES_RELEASED, at=at, attributes=attributes)]
        assert before is not None
        if self._folder is not None:
            self._folder.retract()
        self._let_go.clear()
        over = before.until is not None and at >= before.until
        why = "its time is over" if over else "an operator asked for it"
        return [Event(view=None, kind=EventKind.DEVICES_RESUMED, at=at, attributes={"why": why})]

    def why_not(self, reader: str) -> Absent | None:
        """Return why this reader may not read now, or None."""
        return withheld() if self.release is not None and reader in self._readers else None

    def take(self, outcome: Outcome, state: State) -> Outcome:
        """Note a reader that has let go; return its pass with the absence of everything it read before."""
        reader, lane = outcome.status.reader, outcome.status.lane
        if not outcome.withheld or outcome.failure is None or reader not in self._readers:
            return outcome
        if reader not in self._let_go:
            self._let_go.add(reader)
            self._answer()
        if lane is Lane.STATIC:
            return outcome  # what a device is does not change because nobody looks
        samples = tuple(
            _emptied(sample, outcome.failure, outcome.ended_at)
            for sample in _samples(state, reader, lane)
            if not _is_taken(sample, state)
        )
        return Outcome(
            status=outcome.status,
            round=Round(samples=samples, errors=(outcome.failure.detail,)),
            failure=outcome.failure,
            ended_at=outcome.ended_at,
            ended=outcome.ended,
            withheld=True,
        )

    def _answer(self) -> None:
        if self._folder is not None and self.release is not None and self._let_go >= self._readers:
            self._folder.answer(self.release)


def _samples(state: State, reader: str, lane: Lane) -> list[Sample]:
    kept = [state.machine_samples(), *state.views().values()]
    return [one[reader, lane].sample for one in kept if (reader, lane) in one]


def _is_taken(sample: Sample, state: State) -> bool:
    """Whether the bus shows the device with another driver, or not at all any more: it is no longer ours to tell of."""
    address = sample.view.pci_address if sample.view is not None else None
    if address is None or state.inventory is None:
        return False
    drivers = {function.address: function.driver for function in state.inventory.functions}
    return state.left_the_bus(address) or drivers.get(address, NVIDIA) != NVIDIA


def _emptied(sample: Sample, why: Absent, at: int) -> Sample:
    names = [name for name in sample.values if name in CATALOGUE]
    return Sample(
        view=sample.view, reader=sample.reader, lane=sample.lane, measured_at=at, values=dict.fromkeys(names, why)
    )
