"""Events that follow from the states of devices in successive passes of one reader. Pure."""

from collections.abc import Iterable

from gpufleet.model.device_state import HUNG, LOST, OK, RESET_REQUIRED
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import Sample
from gpufleet.model.view import View, ViewKind

_FAILURES = {LOST: EventKind.GPU_LOST, RESET_REQUIRED: EventKind.GPU_RESET_REQUIRED}


class DeviceStates:
    """States of the devices of one reader by view key; a device is `ok` before its first pass.

    Args:
        source: name of the reader in the events.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._states: dict[str, str] = {}
        self._failed: set[str] = set()  # view keys that were lost or needed a reset, and were not ok since

    def change(self, view: View, state: str, at: int, call: str = "") -> list[Event]:
        """Record the state of a device; return the resulting events.

        Args:
            view: the device.
            state: of the catalogue's `gpu_state`.
            at: time of the pass in nanoseconds since 1970.
            call: failed call of the driver, or empty.
        """
        key, before = view.key, self._states.get(view.key, OK)
        self._states[key] = state
        kinds = []
        if before != state and HUNG in (before, state):
            kinds.append(EventKind.HANG_STARTED if state == HUNG else EventKind.HANG_ENDED)
        if state in _FAILURES and before != state:
            self._failed.add(key)
            kinds.append(_FAILURES[state])
        elif state == OK and key in self._failed:
            self._failed.remove(key)
            kinds.append(EventKind.GPU_RECOVERED)
        return [Event(view=view, kind=kind, at=at, attributes=self._attributes(kind, call)) for kind in kinds]

    def change_by_samples(self, samples: Iterable[Sample]) -> list[Event]:
        """Record the states in the samples of one pass; return the resulting events. An absent state is skipped."""
        events: list[Event] = []
        for sample in samples:
            state = sample.values.get("gpu_state")
            if sample.view is not None and sample.view.kind is ViewKind.GPU and isinstance(state, str):
                events += self.change(sample.view, state, sample.measured_at)
        return events

    def state_of(self, view: View) -> str:
        """Return the last state of a device, `ok` by default."""
        return self._states.get(view.key, OK)

    def _attributes(self, kind: EventKind, call: str) -> dict[str, str]:
        """Return the failed call, and the source of a kind that several readers report."""
        source = {} if kind in (EventKind.HANG_STARTED, EventKind.HANG_ENDED) else {"sources": self._source}
        return {**source, "call": call} if call else source
