"""Events that follow from imported states of GPUs: the agent's rule, applied to the rows of one writer. Pure."""

from collections.abc import Container, Iterable
from typing import NamedTuple

from gpufleet.fleet.device_events import DeviceStates
from gpufleet.hub.flush.normalise import FUTURE_TOLERANCE_SECONDS
from gpufleet.hub.imports.row_cache import Subject, subject_of
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS

STATE = "gpu_state"

MAX_EXPIRED = 4096
"""Maximum number of expired subjects of one writer with a known state; beyond it, the earliest are dropped."""

_Source = tuple[Machine, str]
"""A machine, and the reader of its rows."""


class StateChanges(NamedTuple):
    """Changed states of one machine.

    Attributes:
        events: events that its rows show, oldest first.
        states, newest: state after the rows, as in `ImportedStates`.
    """

    events: list[Event]
    states: dict[_Source, DeviceStates]
    newest: dict[Subject, int]


class ImportedStates:
    """Newest state of each GPU that one writer reports. The source of an event is the reader of the row.

    A row that is older than the newest row of its GPU shows no change: writers send backlogs in any order. A row from a
    clock that is ahead counts as one of the present, so that the rows after a correction of the clock are not older.
    """

    def __init__(self) -> None:
        self._states: dict[_Source, DeviceStates] = {}
        self._newest: dict[Subject, int] = {}

    def __len__(self) -> int:
        """Return the number of subjects with a known state."""
        return len(self._newest)

    def changes(self, machine: Machine, rows: Iterable[Sample], now: int) -> StateChanges:
        """Return the changes that rows of a machine show; `keep` them once the rows are durable.

        The states themselves are not changed: rows that could not be made durable show the same events again. Rows that
        are too far ahead to be stored show no change.

        Args:
            machine: of the rows.
            rows: new rows in any order.
            now: nanoseconds since 1970 by the hub's clock.
        """
        latest = now + FUTURE_TOLERANCE_SECONDS * NANOS
        after = StateChanges([], {}, {})
        stated = [row for row in rows if row.view is not None and isinstance(row.values.get(STATE), str)]
        for row in sorted((row for row in stated if row.measured_at <= latest), key=lambda row: row.measured_at):
            subject, source = subject_of(machine, row), (machine, row.reader)
            if row.measured_at < after.newest.get(subject, self._newest.get(subject, 0)):
                continue
            after.newest[subject] = min(row.measured_at, now)
            states = after.states.get(source)
            if states is None:
                known = self._states.get(source)
                states = after.states[source] = DeviceStates(row.reader) if known is None else known.copy()
            after.events.extend(states.change_by_samples((row,)))
        return after

    def keep(self, changed: StateChanges) -> None:
        """Apply the states returned by `changes`."""
        self._states |= changed.states
        self._newest |= changed.newest

    def drop(self, machine: Machine) -> None:
        """Drop the states of a machine."""
        self._states = {source: states for source, states in self._states.items() if source[0] != machine}
        self._newest = {subject: at for subject, at in self._newest.items() if subject[0] != machine}

    def drop_except(self, subjects: Container[Subject], machines: Container[Machine]) -> None:
        """Drop the states of other machines, and of subjects beyond the newest `MAX_EXPIRED` of all other subjects.

        A device keeps its state as long as the time of that state, so that a late row is not taken for a change.
        """
        self._states = {source: states for source, states in self._states.items() if source[0] in machines}
        self._newest = {subject: at for subject, at in self._newest.items() if subject[0] in machines}
        expired = sorted((one for one in self._newest if one not in subjects), key=self._newest.__getitem__)
        dropped = expired[:-MAX_EXPIRED]
        if not dropped:
            return
        for subject in dropped:
            del self._newest[subject]
        known = {subject[:3] for subject in self._newest}  # a device may have rows of several lanes
        for device in {subject[:3] for subject in dropped} - known:
            machine, key, reader = device
            if states := self._states.get((machine, reader)):
                states.drop(key)
