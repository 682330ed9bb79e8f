"""Events that nobody tells, but that readings show: what is another one than in the pass before. Pure."""

from collections.abc import Callable, Mapping

from gpufleet.agent.collect.pci import is_nvidia_gpu
from gpufleet.model.absence import Absent
from gpufleet.model.event import Event, EventKind
from gpufleet.model.machine import PciFunction
from gpufleet.model.reading import Sample, Value, precedence
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind

THROTTLES = {"hw_thermal": 0x40, "sw_thermal": 0x20, "power_brake": 0x80, "hw_slowdown": 0x8}
"""Cause of a throttle to its bit in `gpu_clock_event_reasons_mask`. The plain hardware slowdown is told only where
the driver names no closer cause; the power cap, idleness and set clocks are no throttles but the normal course."""

_CLOSER = THROTTLES["hw_thermal"] | THROTTLES["power_brake"]


_MACHINE = ""
_OF_DRIVER = frozenset({"nvidia_driver_version", "nvidia_driver_state"})

SILENT_NANOS = 180 * NANOS
"""For so long the reader whose word goes first may say nothing of a subject before another one's is taken."""


class _Device:
    """What is known of one device."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.session = 0
        self.throttled: dict[str, int | None] = {}  # cause to when it began; None when it was there at the first look


class _Tellers:
    """Who is listened to about each subject: two readers' values are a moment apart, and are no change."""

    def __init__(self) -> None:
        self._heard: dict[str, Sample] = {}  # key of the view, empty for the machine, to the newest sample

    def take(self, key: str, sample: Sample) -> bool | None:
        """Return whether a sample counts; None if it does, and is the first of its reader's since another's did."""
        heard = self._heard.get(key)
        if heard is not None and heard.reader != sample.reader:
            silent = sample.measured_at - heard.measured_at > SILENT_NANOS
            if not silent and precedence(heard) < precedence(sample):
                return False
        self._heard[key] = sample
        return True if heard is None or heard.reader == sample.reader else None


class Changes:
    """Remembers what it needs of the newest pass; one for a machine."""

    def __init__(self, *, driver: str = "", session: int = 0) -> None:
        """Begin with what was known of the driver before the agent started, if anything."""
        self.driver, self.session = driver, session
        self._devices: dict[str, _Device] = {}
        self._tellers = _Tellers()
        self._driver_state: str | None = None
        self._functions: dict[str, PciFunction] | None = None

    def of_machine(self, sample: Sample) -> list[Event]:
        """Return what a sample of the machine itself shows."""
        events = []

        def tell(kind: EventKind, **attributes: str) -> None:
            events.append(Event(view=None, kind=kind, at=sample.measured_at, attributes=_told(attributes)))

        version = sample.values.get("nvidia_driver_version")
        counts = self._tellers.take(_MACHINE, sample) if sample.values.keys() & _OF_DRIVER else False
        if isinstance(version, str) and counts is not False:
            if counts and self.driver and version != self.driver:
                tell(EventKind.DRIVER_UPGRADED, **{"from": self.driver, "to": version})
            self.driver = version
        state = sample.values.get("nvidia_driver_state")
        if isinstance(state, str):
            if sample.driver_session:
                if self.session and sample.driver_session != self.session:
                    tell(EventKind.DRIVER_RELOADED, version=self.driver)
                self.session = sample.driver_session
            before, self._driver_state = self._driver_state, state
            if before not in (None, state):
                if state == "ok":
                    tell(EventKind.DRIVER_WORKS, before=before or "")
                elif state == "mismatch":
                    tell(EventKind.DRIVER_MISMATCH, sources="nvml")
                else:
                    tell(EventKind.DRIVER_FAILED, state=state, before=before or "")
        return events

    def of_device(self, sample: Sample) -> list[Event]:
        """Return what a sample of a device shows."""
        view = sample.view
        assert view is not None
        counts = self._tellers.take(view.key, sample)
        if counts is False:
            return []
        if counts is None:
            self._devices.pop(view.key, None)
        known = self._devices.setdefault(view.key, _Device())
        events: list[Event] = []

        def tell(kind: EventKind, code: int = 0, **attributes: str) -> None:
            events.append(Event(view=view, kind=kind, code=code, at=sample.measured_at, attributes=_told(attributes)))

        same_session = known.session in (0, sample.driver_session)
        if sample.driver_session:
            known.session = sample.driver_session
        for name, look in _LOOKS.items():
            value = sample.values.get(name)
            if value is None or isinstance(value, Absent):
                continue
            before = known.values.get(name)
            known.values[name] = value
            if before is not None and before != value:
                look(tell, before, value, same_session)
        mask = sample.values.get("gpu_clock_event_reasons_mask")
        if isinstance(mask, int):
            _look_at_clocks(tell, known, mask, sample.measured_at)
        return events

    def of_bus(self, functions: tuple[PciFunction, ...], at: int) -> list[Event]:
        """Return what a list of the bus shows."""
        now = {function.address: function for function in functions if is_nvidia_gpu(function)}
        before, self._functions = self._functions, now
        if before is None:
            return []
        events: list[Event] = []

        def tell(address: str, kind: EventKind, **attributes: str) -> None:
            view = View(kind=ViewKind.GPU, side=Side.HOST, pci_address=address)
            events.append(Event(view=view, kind=kind, at=at, attributes=_told(attributes)))

        for address in sorted(before.keys() | now.keys()):
            was, is_now = before.get(address), now.get(address)
            if was is None:
                assert is_now is not None
                tell(address, EventKind.GPU_ADDED, driver=is_now.driver or "")
            elif is_now is None:
                tell(address, EventKind.GPU_REMOVED, driver=was.driver or "")
            elif was.driver != is_now.driver and is_now.driver is None:
                tell(address, EventKind.DRIVER_UNBOUND, before=was.driver or "")
            elif was.driver != is_now.driver:
                tell(address, EventKind.DRIVER_BOUND, driver=is_now.driver or "", before=was.driver or "")
        return events


_Tell = Callable[..., None]


def _on_fall(tell: _Tell, before: Value, value: Value, same_session: bool) -> None:
    if same_session and isinstance(before, int | float) and isinstance(value, int | float) and value < before:
        tell(EventKind.GPU_RESET, evidence="the energy counter began again")


def _on_ecc(tell: _Tell, before: Value, value: Value, same_session: bool) -> None:
    if same_session and isinstance(before, int) and isinstance(value, int) and value > before:
        tell(EventKind.ECC_UNCORRECTED, value - before)


def _on_rise(kind: EventKind) -> Callable[[_Tell, Value, Value, bool], None]:
    def look(tell: _Tell, before: Value, value: Value, same_session: bool) -> None:
        if value == 1:
            tell(kind)

    return look


def _on_change(kind: EventKind) -> Callable[[_Tell, Value, Value, bool], None]:
    def look(tell: _Tell, before: Value, value: Value, same_session: bool) -> None:
        tell(kind, **{"from": str(before), "to": str(value)})

    return look


_LOOKS: Mapping[str, Callable[[_Tell, Value, Value, bool], None]] = {
    "gpu_energy_joules_total": _on_fall,
    "gpu_ecc_uncorrected_errors_total": _on_ecc,
    "gpu_row_remap_pending": _on_rise(EventKind.ROW_REMAP_PENDING),
    "gpu_row_remap_failed": _on_rise(EventKind.ROW_REMAP_FAILED),
    "gpu_recovery_action": _on_change(EventKind.RECOVERY_ACTION_CHANGED),
    "gpu_mig_mode": _on_change(EventKind.MIG_CHANGED),
}
"""Metric to what looks at a value that is another one than before."""


def _look_at_clocks(tell: _Tell, known: _Device, mask: int, at: int) -> None:
    """Tell where throttles begin and end, as far apart as the samples are."""
    first_look = "gpu_clock_event_reasons_mask" not in known.values
    known.values["gpu_clock_event_reasons_mask"] = mask
    for cause, bit in THROTTLES.items():
        active = bool(mask & bit) and not (cause == "hw_slowdown" and mask & _CLOSER)
        if active and cause not in known.throttled:
            known.throttled[cause] = None if first_look else at
            tell(EventKind.THROTTLE_STARTED, cause=cause, **({"began": "before it was watched"} if first_look else {}))
        elif not active and cause in known.throttled:
            began = known.throttled.pop(cause)
            seconds = "" if began is None else f"{(at - began) / NANOS:.1f}"
            tell(EventKind.THROTTLE_ENDED, cause=cause, seconds=seconds)


def _told(attributes: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in attributes.items() if text}
