"""Events that follow from imported states of GPUs: the agent's rule, applied to the rows of one writer. Pure."""

from collections.abc import Container, Iterable
from typing import NamedTuple

from gpufleet.fleet.device_events import DeviceStates
from gpufleet.hub.imports.row_cache import Subject, subject_of
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample

STATE = "gpu_state"

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

    A row that is older than the newest row of its GPU shows no change: writers send backlogs in any order.
    """

    def __init__(self) -> None:
        self._states: dict[_Source, DeviceStates] = {}
        self._newest: dict[Subject, int] = {}

    def changes(self, machine: Machine, rows: Iterable[Sample]) -> StateChanges:
        """Return the changes that rows of a machine show; `keep` them once the rows are durable.

        The states themselves are not changed: rows that could not be made durable show the same events again.
        """
        after = StateChanges([], {}, {})
        stated = [row for row in rows if row.view is not None and isinstance(row.values.get(STATE), str)]
        for row in sorted(stated, key=lambda row: row.measured_at):
            subject, source = subject_of(machine, row), (machine, row.reader)
            if row.measured_at < after.newest.get(subject, self._newest.get(subject, 0)):
                continue
            after.newest[subject] = row.measured_at
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

    def drop_except(self, subjects: Container[Subject], machines: Container[Machine]) -> None:
        """Drop the states of all other subjects and machines."""
        self._newest = {subject: at for subject, at in self._newest.items() if subject in subjects}
        self._states = {source: states for source, states in self._states.items() if source[0] in machines}
