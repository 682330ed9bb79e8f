"""Events derived from readings: values that differ from the previous pass. Pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from gpufleet.agent.collect.pci import is_nvidia_gpu
from gpufleet.agent.events.occupants import Occupants
from gpufleet.fleet.device_events import MAX_DEVICES, reset_code
from gpufleet.fleet.readings import STATE
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.device_state import OK, is_failure
from gpufleet.model.event import Event, EventKind
from gpufleet.model.machine import PciFunction
from gpufleet.model.reading import Sample, Value, precedence
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind

THROTTLES = {"hw_thermal": 0x40, "sw_thermal": 0x20, "power_brake": 0x80, "hw_slowdown": 0x8}
"""Cause of throttling to its bit in `gpu_clock_event_reasons_mask`. The generic hardware slowdown counts only if the
driver names no specific cause. Power cap, idle and application clocks are normal operation, not throttling."""

_CLOSER = THROTTLES["hw_thermal"] | THROTTLES["power_brake"]

_ENERGY = "gpu_energy_joules_total"
_MACHINE = ""
_OF_DRIVER = frozenset({"nvidia_driver_version", "nvidia_driver_state"})

REPORTER_TIMEOUT_NS = 180 * NANOS
"""Time without a sample of a subject after which a less trusted reader replaces its reader."""


class LastEnergy(msgspec.Struct, frozen=True):
    """The energy counter of a device at the last pass of a reader.

    Attributes:
        joules: the counter.
        at: time of the last pass that read it, or failed to, nanoseconds since 1970.
        session: driver session, or 0.
    """

    joules: float
    at: int
    session: int


class EnergyCounters:
    """Energy counters of devices, each by reader. A counter that restarts shows a reset.

    Attributes:
        last: view key to reader to its last counter.
    """

    def __init__(
        self, occupants: Occupants, last: Mapping[str, Mapping[str, LastEnergy]] = MappingProxyType({})
    ) -> None:
        """Take the GPUs by address, in which the caller notes each sample first, and counters from before the start."""
        self._occupants = occupants
        self.last = {key: dict(readers) for key, readers in last.items()}
        self._reset_at: dict[str, int] = {}  # view key to the time of its last event

    def reset(self, sample: Sample, *, counts: bool = True, failed_at: int = 0) -> Event | None:
        """Record the counter of a device; return the event of the reset that it shows, or None.

        A reload of the driver is no reset of a GPU. Nor is a reset that another reader has shown a second one.

        Args:
            sample: of a device.
            counts: whether the reader is the one that counts for the device.
            failed_at: last pass that found that the driver does not work, nanoseconds since 1970.
        """
        view, value = sample.view, sample.values.get(_ENERGY)
        if view is None or isinstance(value, str):
            return None
        key = self._occupants.key(view, sample.measured_at)
        before = self.last.get(key, {}).get(sample.reader)
        if value is None or isinstance(value, Absent):
            if before is not None and _shows_failure(value, sample.values.get(STATE, OK)):
                self.last[key][sample.reader] = msgspec.structs.replace(before, at=sample.measured_at)
            return None
        session = sample.driver_session or (before.session if before is not None else 0)
        self._record(key, sample.reader, LastEnergy(float(value), sample.measured_at, session))
        if before is None or value >= before.joules or before.session not in (0, session) or not counts:
            return None
        since = max(before.at, failed_at)
        if since < self._reset_at.get(key, 0):
            return None
        self._reset_at[key] = sample.measured_at
        return Event(
            view=view,
            kind=EventKind.GPU_RESET,
            code=reset_code(since, sample.measured_at),
            at=sample.measured_at,
            attributes={"evidence": "the energy counter restarted"},
        )

    def fail(self, why: Reason, at: int, reader: str | None = None) -> None:
        """Record a pass that failed as a whole: of a reader, or of every reader.

        If the driver or the source did not answer, the reset was later. A source that does not run shows nothing.
        """
        for readers in self.last.values() if is_failure(why) else ():
            for name in readers.keys() & {reader} if reader is not None else readers.keys():
                readers[name] = msgspec.structs.replace(readers[name], at=at)

    def _record(self, key: str, reader: str, energy: LastEnergy) -> None:
        self.last.setdefault(key, {})[reader] = energy
        if len(self.last) > MAX_DEVICES:
            first = next(iter(self.last))
            del self.last[first]
            self._reset_at.pop(first, None)


def _shows_failure(energy: Absent | None, state: Value | Absent) -> bool:
    """Return whether a pass without the energy counter of a device found that the device does not work."""
    return (energy is not None and is_failure(energy.reason)) or (isinstance(state, str) and state != OK)


class _DeviceHistory:
    """The last values of one device."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.session = 0
        self.throttled: dict[str, int | None] = {}  # cause to its start; None if it was active at the first sample


class _Reporters:
    """The reader that counts for each subject: values of two readers differ by moments, which is no change."""

    def __init__(self) -> None:
        self._newest: dict[str, Sample] = {}  # view key, empty for the machine, to the newest sample

    def take(self, key: str, sample: Sample) -> bool | None:
        """Return whether a sample counts; None if it counts and its reader has just replaced another one."""
        newest = self._newest.get(key)
        if newest is not None and newest.reader != sample.reader:
            timed_out = sample.measured_at - newest.measured_at > REPORTER_TIMEOUT_NS
            if not timed_out and precedence(newest) < precedence(sample):
                return False
        self._newest[key] = sample
        return True if newest is None or newest.reader == sample.reader else None


class ChangeDetector:
    """Compares each pass of one machine with the previous one.

    Attributes:
        driver: version of the driver.
        session: driver session.
        session_at: last pass that read the session, nanoseconds since 1970.
        failed_at: last pass that found that the driver does not work, nanoseconds since 1970.
        energies: energy counters of the devices.
    """

    def __init__(
        self,
        occupants: Occupants,
        *,
        driver: str = "",
        session: int = 0,
        session_at: int = 0,
        failed_at: int = 0,
        energies: Mapping[str, Mapping[str, LastEnergy]] = MappingProxyType({}),
    ) -> None:
        """Start with what is known from before the agent's start; `occupants`, `energies` as in `EnergyCounters`."""
        self.driver, self.session = driver, session
        self.session_at, self.failed_at = session_at, failed_at
        self.energies = EnergyCounters(occupants, energies)
        self._devices: dict[str, _DeviceHistory] = {}
        self._reporters = _Reporters()
        self._driver_state: str | None = None
        self._functions: dict[str, PciFunction] | None = None

    def of_machine(self, sample: Sample) -> list[Event]:
        """Return the events that a sample of the machine itself shows."""
        events = []

        def emit(kind: EventKind, code: int = 0, **attributes: str) -> None:
            events.append(
                Event(view=None, kind=kind, code=code, at=sample.measured_at, attributes=_non_empty(attributes))
            )

        version = sample.values.get("nvidia_driver_version")
        counts = self._reporters.take(_MACHINE, sample) if sample.values.keys() & _OF_DRIVER else False
        if isinstance(version, str) and counts is not False:
            if counts and self.driver and version != self.driver:
                emit(EventKind.DRIVER_UPGRADED, 0, **{"from": self.driver, "to": version})
            self.driver = version
        state = sample.values.get("nvidia_driver_state")
        if isinstance(state, str):
            if sample.driver_session:
                if self.session and sample.driver_session != self.session:
                    since = max(self.session_at, self.failed_at) if self.session_at else 0
                    emit(EventKind.DRIVER_RELOADED, reset_code(since, sample.measured_at))
                self.session, self.session_at = sample.driver_session, sample.measured_at
            if state != OK:
                self.failed_at = sample.measured_at
            before, self._driver_state = self._driver_state, state
            if before not in (None, state):
                if state == "ok":
                    emit(EventKind.DRIVER_WORKS, before=before or "")
                elif state == "mismatch":
                    emit(EventKind.DRIVER_MISMATCH, sources="nvml")
                else:
                    emit(EventKind.DRIVER_FAILED, state=state, before=before or "")
        return events

    def of_device(self, sample: Sample) -> list[Event]:
        """Return the events that a sample of a device shows."""
        view = sample.view
        assert view is not None
        counts = self._reporters.take(view.key, sample)
        reset = self.energies.reset(sample, counts=counts is not False, failed_at=self.failed_at)
        if counts is False:
            return []
        if counts is None:
            self._devices.pop(view.key, None)
        known = self._devices.setdefault(view.key, _DeviceHistory())
        events = [] if reset is None else [reset]

        def emit(kind: EventKind, code: int = 0, **attributes: str) -> None:
            events.append(
                Event(view=view, kind=kind, code=code, at=sample.measured_at, attributes=_non_empty(attributes))
            )

        same_session = known.session in (0, sample.driver_session)
        if sample.driver_session:
            known.session = sample.driver_session
        for name, compare in _COMPARISONS.items():
            value = sample.values.get(name)
            if value is None or isinstance(value, Absent):
                continue
            before = known.values.get(name)
            known.values[name] = value
            if before is not None and before != value:
                compare(emit, before, value, same_session)
        mask = sample.values.get("gpu_clock_event_reasons_mask")
        if isinstance(mask, int):
            _compare_clocks(emit, known, mask, sample.measured_at)
        return events

    def of_bus(self, functions: tuple[PciFunction, ...], at: int) -> list[Event]:
        """Return the events that a PCI listing shows."""
        now = {function.address: function for function in functions if is_nvidia_gpu(function)}
        before, self._functions = self._functions, now
        if before is None:
            return []
        events: list[Event] = []

        def emit(address: str, kind: EventKind, **attributes: str) -> None:
            view = View(kind=ViewKind.GPU, side=Side.HOST, pci_address=address)
            events.append(Event(view=view, kind=kind, at=at, attributes=_non_empty(attributes)))

        for address in sorted(before.keys() | now.keys()):
            was, is_now = before.get(address), now.get(address)
            if was is None:
                assert is_now is not None
                emit(address, EventKind.GPU_ADDED, driver=is_now.driver or "")
            elif is_now is None:
                emit(address, EventKind.GPU_REMOVED, driver=was.driver or "")
            elif was.driver != is_now.driver and is_now.driver is None:
                emit(address, EventKind.DRIVER_UNBOUND, before=was.driver or "")
            elif was.driver != is_now.driver:
                emit(address, EventKind.DRIVER_BOUND, driver=is_now.driver or "", before=was.driver or "")
        return events


_Emit = Callable[..., None]


def _on_ecc(emit: _Emit, before: Value, value: Value, same_session: bool) -> None:
    if same_session and isinstance(before, int) and isinstance(value, int) and value > before:
        emit(EventKind.ECC_UNCORRECTED, value - before)


def _on_rise(kind: EventKind) -> Callable[[_Emit, Value, Value, bool], None]:
    def compare(emit: _Emit, before: Value, value: Value, same_session: bool) -> None:
        if value == 1:
            emit(kind)

    return compare


def _on_change(kind: EventKind) -> Callable[[_Emit, Value, Value, bool], None]:
    def compare(emit: _Emit, before: Value, value: Value, same_session: bool) -> None:
        emit(kind, **{"from": str(before), "to": str(value)})

    return compare


_COMPARISONS: Mapping[str, Callable[[_Emit, Value, Value, bool], None]] = {
    "gpu_ecc_uncorrected_errors_total": _on_ecc,
    "gpu_row_remap_pending": _on_rise(EventKind.ROW_REMAP_PENDING),
    "gpu_row_remap_failed": _on_rise(EventKind.ROW_REMAP_FAILED),
    "gpu_recovery_action": _on_change(EventKind.RECOVERY_ACTION_CHANGED),
    "gpu_mig_mode": _on_change(EventKind.MIG_CHANGED),
}
"""Metric to the function that handles a changed value."""


def _compare_clocks(emit: _Emit, known: _DeviceHistory, mask: int, at: int) -> None:
    """Emit the start and end of throttling, at the resolution of the samples."""
    is_first = "gpu_clock_event_reasons_mask" not in known.values
    known.values["gpu_clock_event_reasons_mask"] = mask
    for cause, bit in THROTTLES.items():
        active = bool(mask & bit) and not (cause == "hw_slowdown" and mask & _CLOSER)
        if active and cause not in known.throttled:
            known.throttled[cause] = None if is_first else at
            emit(EventKind.THROTTLE_STARTED, cause=cause, **({"began": "before the first sample"} if is_first else {}))
        elif not active and cause in known.throttled:
            began = known.throttled.pop(cause)
            seconds = "" if began is None else f"{(at - began) / NANOS:.1f}"
            emit(EventKind.THROTTLE_ENDED, cause=cause, seconds=seconds)


def _non_empty(attributes: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in attributes.items() if text}
