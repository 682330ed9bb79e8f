"""Events that follow from the states of devices in successive passes of one reader. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.device_state import (
    ERROR,
    HUNG,
    LOST,
    OK,
    PROVING_READINGS,
    RESET_REQUIRED,
    UNREADABLE,
    state_of,
)
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import View, ViewKind

_STATE = CATALOGUE["gpu_state"]

MAX_DEVICES = 4096
"""Maximum number of devices of one source that are kept; the earliest is dropped, as if it had never been read."""

FAILURE_OF_STATE = {
    LOST: EventKind.GPU_LOST,
    RESET_REQUIRED: EventKind.GPU_RESET_REQUIRED,
    UNREADABLE: EventKind.GPU_FAILED,
    ERROR: EventKind.GPU_FAILED,
}
"""State to the kind of the event that begins the failure."""

_STATE_OF_FAILURE = {
    EventKind.GPU_LOST: LOST,
    EventKind.GPU_RESET_REQUIRED: RESET_REQUIRED,
    EventKind.GPU_FAILED: ERROR,
}
"""Kind of a failure to the state that it keeps until the device is proven to work."""

LASTING_NS = 3600 * NANOS
"""Time after which a reading that a working GPU does not have any more is not expected of it."""

FAILURES = frozenset(FAILURE_OF_STATE.values())
"""Kinds of events that begin a failure. `gpu_recovered` ends it."""

LOSS_EVENTS = frozenset({EventKind.GPU_LOST, EventKind.GPU_RESET_REQUIRED})
"""Kinds of failures after which a device works only if it was reset. It can recover from errors without a reset."""

RESET_EVENTS = frozenset({EventKind.GPU_RECOVERED, EventKind.GPU_RESET, EventKind.DRIVER_RELOADED})
"""Kinds of events with the code of a reset."""


def reset_code(since: int, at: int) -> int:
    """Return the code of an event that shows a reset: the greatest possible age of the reset in seconds, at least 1.

    Args:
        since: last measurement from before the reset, nanoseconds since 1970; 0 if there is none: no reset is proven,
            and the code is 0.
        at: time of the event, nanoseconds since 1970.
    """
    return max(1, (at - since) // NANOS) if since else 0


def recovery_code(failure: EventKind, failed_at: int, at: int) -> int:
    """Return the code of a recovery from a failure of this kind at its worst, last observed at `failed_at`."""
    return reset_code(failed_at, at) if failure in LOSS_EVENTS else 0


class _OpenFailure(NamedTuple):
    """Failure of a device since it was last ok.

    Attributes:
        kind: the worst one.
        reader: the reader that reported it last.
        at: last pass in which the device did not work, nanoseconds since 1970.
    """

    kind: EventKind
    reader: str
    at: int


class DeviceStates:
    """States of the devices of one source by view key; a device is `ok` before its first pass.

    Only states other than `ok` are stored.

    Args:
        source: name of the reader in the events.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._states: dict[str, str] = {}
        self._failed: dict[str, _OpenFailure] = {}  # by view key
        self._working: dict[str, dict[str, int]] = {}  # view key to readings without a failure, and when each was last
        self._places: dict[str, str] = {}  # PCI address to the view key of the newest failed device there
        self._occupants: dict[str, str] = {}  # PCI address to the view key of the GPU with a UUID last read there

    def change(self, view: View, state: str, at: int, call: str = "", reader: str = "") -> list[Event]:
        """Record the state of a device; return the resulting events.

        A device that is lost or needs a reset does not fail once more: errors after it are part of the same failure. So
        is a failure of a device without UUID at the address of a failed one.

        Args:
            view: the device.
            state: of the catalogue's `gpu_state`.
            at: time of the pass in nanoseconds since 1970.
            call: failed call of the driver, or empty.
            reader: reader of the state, if a source has several.
        """
        if state == OK and not self._states:
            self._note_occupant(view)
            return []  # the usual case: no device has failed
        key = self._known_key(view, state)
        before, failed = self._states.get(key, OK), self._failed.get(key)
        self._record(key, state)
        kinds: list[EventKind] = []
        if before != state and HUNG in (before, state):
            kinds.append(EventKind.HANG_STARTED if state == HUNG else EventKind.HANG_ENDED)
        kind = FAILURE_OF_STATE.get(state)
        if kind is not None:
            if failed is None or kind not in (failed.kind, EventKind.GPU_FAILED):
                kinds.append(kind)
            else:
                kind = failed.kind
            self._failed[key] = _OpenFailure(kind, reader, at)
        elif state == OK and failed is not None:
            del self._failed[key]
            kinds.append(EventKind.GPU_RECOVERED)
        elif failed is not None:
            self._failed[key] = failed._replace(at=at)
        codes = {EventKind.GPU_RECOVERED: 0 if failed is None else recovery_code(failed.kind, failed.at, at)}
        return [
            Event(view=view, kind=kind, code=codes.get(kind, 0), at=at, attributes=self._attributes(kind, call))
            for kind in kinds
        ]

    def drop(self, key: str) -> None:
        """Drop the state of a device by view key, as if it had never failed."""
        self._states.pop(key, None)
        self._failed.pop(key, None)

    def copy(self) -> "DeviceStates":
        """Return an independent copy."""
        other = DeviceStates(self._source)
        other._states, other._failed = self._states.copy(), self._failed.copy()
        other._places, other._occupants = self._places.copy(), self._occupants.copy()
        other._working = {key: readings.copy() for key, readings in self._working.items()}
        return other

    def change_by_samples(self, samples: Iterable[Sample]) -> list[Event]:
        """Record the states in the samples of one pass; return the resulting events. An absent state is skipped.

        A source that reports failures only, such as an exporter with nvidia-smi's cells, reports no state of a GPU that
        works. Its readings then prove the recovery of a failed GPU, if they are those of the hour before the failure:
        the source omits readings that fail. Those of another reader prove nothing: it can repeat old values.
        """
        events: list[Event] = []
        samples = list(samples)
        stated = {one.view.key for one in samples if one.view is not None and _STATE.name in one.values}
        for sample in samples:
            state = sample.values.get(_STATE.name)
            if sample.view is not None and sample.view.key not in stated:
                if self._is_recovered(sample.view, sample):
                    state = OK
                elif sample.view.unnamed_key not in self._failed:
                    self._note_working(sample.view, sample)
            if sample.view is not None and sample.view.kind is ViewKind.GPU and isinstance(state, str):
                events += self.change(sample.view, state, sample.measured_at, reader=sample.reader)
        return events

    def state_of(self, view: View) -> str:
        """Return the last state of a device, `ok` by default."""
        return self._states.get(view.key, OK)

    def unproven_state(self, view: View) -> str:
        """Return the state of a device that answers a pass which does not prove that it works: its last failure."""
        key = view.key
        if key not in self._states and self._occupants.get(view.pci_address or "", key) == key:
            key = view.unnamed_key
        before, failed = self._states.get(key, OK), self._failed.get(key)
        if before != HUNG:
            return before
        return OK if failed is None else _STATE_OF_FAILURE[failed.kind]

    def _is_recovered(self, view: View, sample: Sample) -> bool:
        """Return whether a device has failed, and its readings prove that it works."""
        failed = self._failed.get(view.key)
        if failed is None and view.kind is ViewKind.GPU:
            failed = self._failed.get(view.unnamed_key)
        if failed is None or sample.lane is not _STATE.lane or failed.reader != sample.reader:
            return False
        working = self._working.get(view.key, {})
        since = max(working.values(), default=0) - LASTING_NS
        expected = {name for name, at in working.items() if at > since}
        found = _proving(sample)
        return bool(found) and expected <= found and state_of(sample.values, sample.dims) == OK

    def _note_working(self, view: View, sample: Sample) -> None:
        """Record a GPU of a source without states, and what it reports while it has not failed."""
        if view.kind is not ViewKind.GPU:
            return
        self._note_occupant(view)
        if view.uuid is not None and self._places.get(view.pci_address or "") != view.key:
            self._places.pop(view.pci_address or "", None)
        found = _proving(sample)
        if found and sample.lane is _STATE.lane and view.key not in self._failed:
            readings = self._working.pop(view.key, {})
            self._working[view.key] = readings | dict.fromkeys(found, sample.measured_at)
            if len(self._working) > MAX_DEVICES:
                del self._working[next(iter(self._working))]

    def _record(self, key: str, state: str) -> None:
        self._states.pop(key, None)
        if state != OK:
            self._states[key] = state
            if len(self._states) > MAX_DEVICES:
                self.drop(next(iter(self._states)))

    def _known_key(self, view: View, state: str) -> str:
        """Return the key under which the failure of a device is stored, and record its address.

        A reader that is started again, or that had a pass without a lost GPU, knows it by its address only.
        """
        key, place = view.key, view.pci_address
        if place is None or view.kind is not ViewKind.GPU:
            return key
        if view.uuid is not None:
            self._rename(view)
            self._note_occupant(view)
        elif state != OK and self._places.get(place) in self._failed:
            key = self._places[place]
        if state != OK or view.uuid is not None:
            self._places.pop(place, None)  # of a device with a UUID that works: it may be another one
        if state != OK:
            self._places[place] = key
            if len(self._places) > MAX_DEVICES:
                del self._places[next(iter(self._places))]
        return key

    def _rename(self, view: View) -> None:
        """Move the state of a device that was known by its PCI address only to its key with the UUID.

        If another GPU was read at the address before, that GPU has failed, and this device has replaced it.
        """
        state, failed = self._states.pop(view.unnamed_key, None), self._failed.pop(view.unnamed_key, None)
        if self._occupants.get(view.pci_address or "", view.key) != view.key:
            return
        if state is not None:
            self._states.setdefault(view.key, state)
        if failed is not None:
            self._failed.setdefault(view.key, failed)

    def _note_occupant(self, view: View) -> None:
        if view.uuid is None or view.pci_address is None or view.kind is not ViewKind.GPU:
            return
        self._occupants[view.pci_address] = view.key
        if len(self._occupants) > MAX_DEVICES:
            del self._occupants[next(iter(self._occupants))]

    def _attributes(self, kind: EventKind, call: str) -> dict[str, str]:
        """Return the failed call, and the source of a kind that several readers report."""
        source = {} if kind in (EventKind.HANG_STARTED, EventKind.HANG_ENDED) else {"sources": self._source}
        return {**source, "call": call} if call else source


def _proving(sample: Sample) -> set[str]:
    """Return the readings of a sample that prove that its GPU works."""
    return {name for name in PROVING_READINGS & sample.values.keys() if not isinstance(sample.values[name], Absent)}
