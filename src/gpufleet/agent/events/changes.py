"""Events derived from readings: values that differ from the previous pass. Pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from gpufleet.agent.collect.pci import is_nvidia_gpu
from gpufleet.fleet.device_events import reset_code
from gpufleet.model.absence import Absent
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
    """The energy counter of a device at its last pass.

    Attributes:
        reader: name of the reader; those of two readers differ.
        session: driver session, or 0.
        value: joules.
        at: time of the last pass with the value, or with a failure to read it, nanoseconds since 1970.
    """

    reader: str
    session: int
    value: Value
    at: int


class _DeviceHistory:
    """The last values of one device by one reader.

    Attributes:
        values: metric to its last value, and the time of the last pass with it or with a failure to read it.
        session: driver session, or 0.
        throttled: cause to its start; None if it was active at the first sample.
    """

    def __init__(self, reader: str, energy: LastEnergy | None = None) -> None:
        self.reader = reader
        self.values: dict[str, tuple[Value, int]] = {} if energy is None else {_ENERGY: (energy.value, energy.at)}
        self.session = 0 if energy is None else energy.session
        self.throttled: dict[str, int | None] = {}


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
        session_at: last pass that read it or found that the driver does not work, nanoseconds since 1970.
    """

    def __init__(
        self,
        *,
        driver: str = "",
        session: int = 0,
        session_at: int = 0,
        energies: Mapping[str, LastEnergy] = MappingProxyType({}),
    ) -> None:
        """Start with what is known from before the agent's start; `energies` are by view key."""
        self.driver, self.session, self.session_at = driver, session, session_at
        self._devices = {key: _DeviceHistory(one.reader, one) for key, one in energies.items()}
        self._failed_at = 0  # last pass that found that the driver does not work
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
                    emit(EventKind.DRIVER_RELOADED, reset_code(self.session_at, sample.measured_at))
                self.session = sample.driver_session
            if sample.driver_session or state != OK:
                self.session_at = sample.measured_at
            if state != OK:
                self._failed_at = sample.measured_at
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
        if counts is False:
            return []
        known = self._devices.get(view.key)
        if known is None or known.reader != sample.reader:
            known = self._devices[view.key] = _DeviceHistory(sample.reader)
        events: list[Event] = []

        def emit(kind: EventKind, code: int = 0, **attributes: str) -> None:
            events.append(
                Event(view=view, kind=kind, code=code, at=sample.measured_at, attributes=_non_empty(attributes))
            )

        same_session = known.session in (0, sample.driver_session)
        if sample.driver_session:
            known.session = sample.driver_session
        for name, compare in _COMPARISONS.items():
            value = sample.values.get(name)
            before, read_at = known.values.get(name, (None, 0))
            if value is None or isinstance(value, Absent):
                if before is not None and value is not None and is_failure(value.reason):
                    known.values[name] = before, sample.measured_at
                continue
            known.values[name] = value, sample.measured_at
            if before is not None and before != value:
                read_at = max(read_at, self._failed_at)
                compare(emit, _Change(before, value, read_at, sample.measured_at, same_session))
        mask = sample.values.get("gpu_clock_event_reasons_mask")
        if isinstance(mask, int):
            _compare_clocks(emit, known, mask, sample.measured_at)
        return events

    def energies(self) -> dict[str, LastEnergy]:
        """Return the last energy counters by view key."""
        found = [(key, one, one.values.get(_ENERGY)) for key, one in self._devices.items()]
        return {key: LastEnergy(one.reader, one.session, *last) for key, one, last in found if last is not None}

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


class _Change(NamedTuple):
    """A value of a device that differs from the one before it; their times in nanoseconds since 1970.

    `before_at` is the last pass before the change: it had the value, or failed to read it.
    """

    before: Value
    value: Value
    before_at: int
    at: int
    same_session: bool

    def grown(self) -> int | float:
        """Return the difference of two numbers of one driver session, else 0."""
        if not self.same_session or not isinstance(self.before, int | float) or not isinstance(self.value, int | float):
            return 0
        return self.value - self.before


_Emit = Callable[..., None]


def _on_fall(emit: _Emit, change: _Change) -> None:
    if change.grown() < 0:
        code = reset_code(change.before_at, change.at)
        emit(EventKind.GPU_RESET, code, evidence="the energy counter restarted")


def _on_ecc(emit: _Emit, change: _Change) -> None:
    if change.grown() > 0:
        emit(EventKind.ECC_UNCORRECTED, int(change.grown()))


def _on_rise(kind: EventKind) -> Callable[[_Emit, _Change], None]:
    def compare(emit: _Emit, change: _Change) -> None:
        if change.value == 1:
            emit(kind)

    return compare


def _on_change(kind: EventKind) -> Callable[[_Emit, _Change], None]:
    def compare(emit: _Emit, change: _Change) -> None:
        emit(kind, **{"from": str(change.before), "to": str(change.value)})

    return compare


_COMPARISONS: Mapping[str, Callable[[_Emit, _Change], None]] = {
    _ENERGY: _on_fall,
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
    known.values["gpu_clock_event_reasons_mask"] = mask, at
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
