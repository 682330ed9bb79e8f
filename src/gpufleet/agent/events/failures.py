"""Failures of devices as several readers observe them: one failure and one recovery. Pure.

Each reader compares its own passes. If DCGM lost a GPU that NVML still reads, an error of NVML and its recovery are no
recovery of the GPU.
"""

from collections.abc import Callable

import msgspec

from gpufleet.agent.events.groups import log_seq
from gpufleet.fleet.device_events import FAILURE_OF_STATE, FAILURES, recovery_code
from gpufleet.model.device_state import OK
from gpufleet.model.event import Event, EventKind
from gpufleet.model.view import View


class DeviceFailures:
    """Failures of the devices of one machine, and the readers that observe them.

    Attributes:
        failed_at: view key of a failed device to the last observation that it did not work, nanoseconds since 1970.
    """

    def __init__(self) -> None:
        self.failed_at: dict[str, int] = {}
        self._failed: dict[str, EventKind] = {}  # view key to the last failure since the device was ok
        self._failing: dict[str, set[str]] = {}  # view key to the readers that observe a failure
        self._recovered: dict[str, list[Event]] = {}  # view key to recoveries that other readers do not observe yet
        self._places: dict[str, str] = {}  # PCI address to the view key of the newest failed GPU with a UUID there

    def restore(self, view: View, failure: Event, observed_at: int) -> None:
        """Record a failure that was reported before the agent's start, after those before it.

        Args:
            view: the device.
            failure: its event.
            observed_at: last observation of the failure, nanoseconds since 1970; 0 if unknown.
        """
        key = self._key(view)
        self._failed[key] = EventKind(failure.kind)
        self._observe(key, max(failure.at, observed_at))
        self.name(view)

    def name(self, view: View) -> None:
        """Move the failure of a GPU that was known by its PCI address only to its key with the UUID."""
        if view.key == view.unnamed_key:
            return
        if view.unnamed_key in self._failed:
            self._failed[view.key] = _worse(self._failed.pop(view.unnamed_key), self._failed.get(view.key))
            self._observe(view.key, self.failed_at.pop(view.unnamed_key, 0))
            self._failing.setdefault(view.key, set()).update(self._failing.pop(view.unnamed_key, ()))
        if view.key in self._failed and view.pci_address is not None:
            self._places[view.pci_address] = view.key

    def is_repeated(self, event: Event, is_failed: Callable[[str], bool | None]) -> bool:
        """Record the failure that a reader observed; return whether it is part of a known failure.

        As for one reader, an error of a device that is lost or needs a reset is part of that failure. A failure whose
        reader stopped is over once no current state is a failure. The kernel log has no recoveries: none waits for it.
        A reader that started after a loss knows the GPU by its address only, while the log and other readers name it.

        Args:
            event: the failure.
            is_failed: as for `expire`, by the states before this pass.
        """
        key, kind = self._key(event.view), EventKind(event.kind)
        self._recovered.pop(key, None)
        if key in self._failed and self._is_over(key, event, is_failed):
            self._complete(key, [])
        if log_seq(event) is None:
            self._failing.setdefault(key, set()).add(_source(event))
        self._observe(key, event.at)
        before = self._failed.get(key)
        if kind is before or (kind is EventKind.GPU_FAILED and before is not None):
            return True
        self._failed[key] = kind
        if event.view is not None:
            self.name(event.view)
        return False

    def recover(self, event: Event) -> list[Event]:
        """Record the recovery that a reader observed; return the events of the device's recovery, if it is complete.

        The events have one time, that of the last recovery, and one code. A reader that stopped while the device failed
        can observe the recovery once more after it was complete: this is no event.
        """
        if event.view is not None:
            self.name(event.view)
        key = self._key(event.view)
        if key not in self._failed:
            return []
        held = [*self._recovered.pop(key, ()), event]
        failing = self._failing.get(key, set())
        failing.discard(_source(event))
        if failing:
            self._recovered[key] = held
            return []
        return self._complete(key, held)

    def resume(self, view: View, state: str, at: int, source: str) -> Event | None:
        """Return the event of a failure that a reader still observes after the device's recovery, or None.

        The recovery was complete without the reader, whose last state was too old to count. For the reader itself, the
        failure is not a new one.

        Args:
            view: the device.
            state: as the reader measured it.
            at: time of the pass in nanoseconds since 1970.
            source: name of the reader.
        """
        kind, key = FAILURE_OF_STATE.get(state), self._key(view)
        if key in self._failed and state != OK:
            self._observe(key, at)
        if kind is None or key in self._failed:
            return None
        self._failed[view.key] = kind
        self._observe(view.key, at)
        self._failing.setdefault(view.key, set()).add(source)
        return Event(view=view, kind=kind, at=at, attributes={"sources": source})

    def expire(self, is_failed: Callable[[str], bool | None]) -> list[Event]:
        """Return the events of recoveries whose remaining failures do not count.

        Args:
            is_failed: returns whether the state of a device by view key is a failure; None for a device without state.
        """
        events: list[Event] = []
        for key, held in list(self._recovered.items()):
            if True not in _states(key, held[-1].view, is_failed):
                del self._recovered[key]
                events += self._complete(key, held)
        return events

    def _key(self, view: View | None) -> str:
        """Return the key of a device; of a GPU without UUID, that of the failed GPU at its address."""
        if view is None:
            return ""
        named = self._places.get(view.pci_address or "", "") if view.uuid is None else ""
        return named if named in self._failed else view.key

    def _is_over(self, key: str, event: Event, is_failed: Callable[[str], bool | None]) -> bool:
        """Return whether no current state is a failure.

        A failure in the log or before the start is not over before a reader has observed it.
        """
        is_first = not self._failing.get(key) and log_seq(event) is None
        return not is_first and True not in _states(key, event.view, is_failed)

    def _complete(self, key: str, held: list[Event]) -> list[Event]:
        self._failing.pop(key, None)
        at = max((event.at for event in held), default=0)
        code = recovery_code(self._failed.pop(key, EventKind.GPU_FAILED), self.failed_at.pop(key, 0), at)
        return [msgspec.structs.replace(event, at=at, code=code) for event in held]

    def _observe(self, key: str, at: int) -> None:
        self.failed_at[key] = max(at, self.failed_at.get(key, 0))


def _worse(kind: EventKind, before: EventKind | None) -> EventKind:
    """Return the worse failure: a loss or a required reset is worse than an error. Of equal ones, the one before."""
    return kind if before in (None, EventKind.GPU_FAILED) else before


def is_failure(event: Event) -> bool:
    """Return whether the event is a failure of a device."""
    return event.view is not None and event.kind in FAILURES


def is_recovery(event: Event) -> bool:
    """Return whether the event is the recovery of a device."""
    return event.view is not None and event.kind == EventKind.GPU_RECOVERED


def _states(key: str, view: View | None, is_failed: Callable[[str], bool | None]) -> set[bool | None]:
    """Return whether the states of a device are failures: by its key, and by its address."""
    return {is_failed(one) for one in (key, view.unnamed_key if view else key)}


def _source(event: Event) -> str:
    return event.attributes.get("sources", "")
