"""Reports of the holder states of a machine's devices to a hub. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.model.holdings import (
    MAX_DEVICE_STATES,
    MAX_STATE_TEXT,
    MAX_UNRESOLVED_NAMES,
    MAX_UNRESOLVED_SOURCES,
    REPEAT_SECONDS,
    DeviceHolders,
    DeviceState,
    UnresolvedCount,
)
from gpufleet.model.text import bounded


class HolderStateReport(msgspec.Struct, frozen=True):
    """Holder states of all devices in a round over the holder sources.

    Attributes:
        devices: state of each device.
        unresolved: device names that identify no device, by source.
    """

    devices: tuple[DeviceState, ...]
    unresolved: tuple[UnresolvedCount, ...]


def holder_state_report(
    holders: Mapping[str, DeviceHolders],
    unresolved: Mapping[str, int | None],
    names: Mapping[str, Iterable[str]] = {},
) -> HolderStateReport:
    """Return the report of a round, bounded in number and length.

    Args:
        holders: view key to the holders of the device.
        unresolved: source to the number of its unresolved device names; None if it fails.
        names: source to these names.
    """
    return HolderStateReport(
        tuple(
            DeviceState(view=view, state=one.state, detail=bounded(one.detail, MAX_STATE_TEXT))
            for view, one in sorted(holders.items())[:MAX_DEVICE_STATES]
        ),
        tuple(
            UnresolvedCount(
                source=bounded(source, MAX_STATE_TEXT), names=number, examples=_examples(names.get(source, ()))
            )
            for source, number in sorted(unresolved.items())[:MAX_UNRESOLVED_SOURCES]
        ),
    )


def _examples(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first names in their order: a source reports them in any order, which is no change."""
    return tuple(sorted({bounded(name, MAX_STATE_TEXT) for name in names} - {""})[:MAX_UNRESOLVED_NAMES])


class HolderStateSchedule:
    """Schedule of the reports: after a change, and again after `REPEAT_SECONDS`.

    Before the first round, an empty report is due: it replaces the states that an earlier process reported. After that,
    only a new round is reported. If the rounds stop, the states become unknown on the hub.
    """

    def __init__(self) -> None:
        self._newest = HolderStateReport((), ())
        self._is_new = True
        self._sent: tuple[HolderStateReport, float] | None = None  # the newest delivered report, and when
        self._offered: tuple[HolderStateReport, float] | None = None

    def update(self, report: HolderStateReport) -> None:
        """Take the report of a round."""
        self._newest, self._is_new = report, True

    def due(self, now: float) -> HolderStateReport | None:
        """Return the report to send at `now` in monotonic seconds, or None. It stays due until `note_delivered`."""
        self._offered = None
        if not self._is_new:
            return None
        if self._sent is not None and self._newest == self._sent[0] and now - self._sent[1] < REPEAT_SECONDS:
            return None
        self._offered = self._newest, now
        return self._newest

    def note_delivered(self) -> None:
        """Record that the result of the newest `due` is in the queue to the hub."""
        if self._offered is None:
            return
        self._sent, self._offered = self._offered, None
        self._is_new = self._newest is not self._sent[0]
