"""The NVML reader: requests rounds from a supervised child process, and converts its answers to samples."""

from collections.abc import Generator, Mapping
from pathlib import Path

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.events import DRIVER_EVENTS
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.device_state import (
    HUNG,
    LOST,
    OK,
    RESET_REQUIRED,
    STATE_OF_REASON,
    UNREADABLE,
    is_failure,
    state_of,
    state_with_instances,
)
from gpufleet.model.errors import ReaderError
from gpufleet.model.event import Event
from gpufleet.model.process import Process
from gpufleet.model.reading import DimValue, Round, Sample, Value
from gpufleet.model.view import View
from gpufleet.readers.nvml import machine
from gpufleet.readers.nvml.calls import PCI_INFO
from gpufleet.readers.nvml.devices import DeviceTracker, Identity, is_watched, map_event, view_of
from gpufleet.readers.nvml.instances import InstanceTracker, ViewReadings, separate_duplicates
from gpufleet.readers.nvml.mapping import absent_device, map_device
from gpufleet.readers.nvml.mapping.lane import LaneCache
from gpufleet.readers.nvml.parse import absence_of, label_of
from gpufleet.readers.nvml.processes import ProcessLister
from gpufleet.readers.nvml.protocol import GpuPassRecord
from gpufleet.readers.nvml.watch import ChildWatchdog, NvmlLimits, RoundAnswers, RoundFailedError
from gpufleet.runtime import run_cooperatively

BUDGET_SECONDS = 0.0015
"""Maximum time without yielding to the event loop: eight GPUs without instances take less, and passes are rare."""

_STATE_OF_CODE = {15: LOST, 16: RESET_REQUIRED}


class _DeviceResult:
    """Result of one device in one round.

    Attributes:
        state: of the catalogue's `gpu_state`; absent if no answer is evidence.
        call: the call that failed or hangs, or empty.
        measured_at: nanoseconds since 1970.
        error: error message, or empty.
        why: reason if the device gave no readings at all.
        values, dims, processes: readings of the device.
        instances, instance_errors: its MIG devices and vGPU instances, and their error messages.
    """

    def __init__(self, state: str, call: str, measured_at: int, error: str, why: Absent | None = None) -> None:
        self.state: str | Absent = state
        self.call, self.measured_at, self.error, self.why = call, measured_at, error, why
        self.values: dict[str, Value | Absent] = {}
        self.dims: tuple[DimValue, ...] = ()
        self.processes: tuple[Process, ...] | None = None
        self.instances: list[ViewReadings] = []
        self.instance_errors: list[str] = []


class NvmlReader:
    """Reads NVIDIA GPUs of the local machine.

    Only a child process calls the driver. A GPU that hangs affects only itself. A driver that hangs as a whole fails
    the rounds of this reader, but never blocks the caller's thread.
    """

    def __init__(
        self,
        *,
        limits: NvmlLimits | None = None,
        environment: Mapping[str, str] | None = None,
        root: Path = Path("/"),
        process_names: bool = False,
    ) -> None:
        """Create the reader; the first `read` starts the child process.

        Args:
            limits: timeouts; None for the defaults.
            environment: of the child process; None inherits this process's own.
            root: directory of the machine's /proc, /sys and /dev.
            process_names: report processes with the kernel's short names.
        """
        self._root = root
        self._watchdog = ChildWatchdog(limits or NvmlLimits(), environment, root)
        self._devices = DeviceTracker()
        self._lister = ProcessLister(root, names=process_names)
        self._instances = InstanceTracker(self._lister)
        self._caches: dict[tuple[int, Lane], LaneCache] = {}
        self._session = machine.DriverSession(root)
        self._some_failed = False
        self._bound = machine.bound_devices(root)

    @property
    def name(self) -> str:
        """Return `nvml`."""
        return machine.NAME

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return static, fast, slow and event."""
        return (Lane.STATIC, Lane.FAST, Lane.SLOW, Lane.EVENT)

    @property
    def child_pid(self) -> int | None:
        """Return the id of the current child process, or None."""
        return self._watchdog.child.pid if self._watchdog.child is not None else None

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane.

        The static lane attaches every device again, and restarts NVML if the pass over a device failed before: a
        recovered GPU returns by itself. Static and slow lane restart NVML when the set of GPUs bound to the kernel's
        driver changed, because NVML does not notice that.

        Raises:
            ReaderError: without library, driver, devices or access; if the versions of library and driver differ; if
                the driver hangs as a whole; or if the child died. Contains the driver's own message.
        """
        if lane is Lane.EVENT:
            events = self._take_events()
            await self._watchdog.release_after_binding()
            return events
        bound = machine.bound_devices(self._root) if lane in (Lane.STATIC, Lane.SLOW) else self._bound
        if (lane is Lane.STATIC and self._some_failed) or bound != self._bound:
            await self._watchdog.renew()
        self._bound = bound
        try:
            answers = await self._watchdog.request(lane.value)
        except RoundFailedError as failed:
            raise machine.failure(failed, lane) from None
        if answers.session.count == 0:
            raise machine.no_devices(answers.session, lane)
        return await self._round(answers, lane)

    async def close(self) -> None:
        """End the child process, and release all resources; the next `read` starts another.

        Raises:
            ReaderError: if the process cannot be ended: it still holds the devices.
        """
        self._lister.close()
        try:
            await self._watchdog.close()
        except RoundFailedError as failed:
            raise ReaderError(Reason.TIMEOUT, str(failed)) from None

    def _take_events(self) -> Round:
        """Return the driver's events since the last call; makes no call to the driver."""
        records = self._watchdog.take_events()
        events = [map_event(record, attached, self._devices.shared) for record, attached in records]
        return Round(events=tuple(event for event in events if event is not None))

    async def _round(self, answers: RoundAnswers, lane: Lane) -> Round:
        identities = self._devices.identify(
            answers.session.count,
            answers.identities,
            session=self.child_pid,
            bound=self._bound,
            codes={
                index: record.code
                for index, record in answers.devices.items()
                if record.code and is_failure(absence_of(record.code, "").reason)
            },
        )
        results = await run_cooperatively(self._map_devices(answers, identities, lane), budget_seconds=BUDGET_SECONDS)
        return self._join(answers, identities, results, lane)

    def _map_devices(
        self, answers: RoundAnswers, identities: Mapping[int, Identity], lane: Lane
    ) -> Generator[None, None, list[_DeviceResult]]:
        """Map every device, one per step: a device with many instances takes milliseconds."""
        if lane is Lane.FAST:
            self._lister.begin()
        results = []
        for index in range(answers.session.count):
            results.append(self._map_device(answers, index, identities.get(index), lane))
            yield
        return results

    def _join(
        self, answers: RoundAnswers, identities: Mapping[int, Identity], results: list[_DeviceResult], lane: Lane
    ) -> Round:
        """Combine the results and update the tracked state, in one step: each event is reported exactly once."""
        session = self._session.number(answers.session.driver)
        samples: list[Sample] = []
        events: list[Event] = []
        errors = [f"several GPUs report {name}: it identifies none of them" for name in self._devices.shared]
        self._some_failed = not answers.hung and any(record.code for record in answers.devices.values())
        for index, result in enumerate(results):
            identity = identities.get(index)
            if identity is None:
                errors.append(f"the GPU at index {index} cannot be named: {result.error or result.call}")
                continue
            view = view_of(identity, index)
            self._complete(result, view, lane, identity)
            if lane is Lane.SLOW:
                result.values[DRIVER_EVENTS] = is_watched(self._watchdog.registration(index))
            if isinstance(result.state, str):
                events += self._devices.change(view, result.state, result.measured_at, result.call)
            if result.error:
                errors.append(f"{view.key}: {result.error}")
            errors += result.instance_errors
            whole = ViewReadings(view, (result.values, result.dims), result.processes)
            samples += [
                Sample(
                    view=subject,
                    reader=self.name,
                    lane=lane,
                    measured_at=result.measured_at,
                    values=values,
                    dims=dims,
                    driver_session=session,
                    processes=processes,
                )
                for subject, (values, dims), processes in (whole, *result.instances)
                if values or dims
            ]
        samples, duplicates = separate_duplicates(samples)
        errors += duplicates
        all_hung = len(answers.hung) == answers.session.count
        own = machine.machine_sample(answers.session, lane, all_hung=all_hung, driver_session=session)
        return Round(
            samples=(*samples, own) if own is not None else tuple(samples),
            events=tuple(events),
            errors=tuple(errors),
        )

    def _map_device(self, answers: RoundAnswers, index: int, identity: Identity | None, lane: Lane) -> _DeviceResult:
        """Determine the state of one device, and map it with its instances, measured in the same pass."""
        record = answers.devices.get(index)
        if record is None:
            call = answers.hung[index]
            why = Absent(Reason.TIMEOUT, call)
            result = _DeviceResult(HUNG, call, answers.ended_at, f"hung in {call}", why)
        elif record.code:
            call = label_of(record.breadcrumb)
            state = _STATE_OF_CODE.get(record.code, UNREADABLE)
            why = absence_of(record.code, call)
            result = _DeviceResult(state, call, record.measured_at, f"{call}: {record.message}", why)
            if identity is not None and not identity.has_code:
                self._keep_failure(result, view_of(identity, index))
        else:
            result = _DeviceResult(OK, "", record.measured_at, "")
            cache = self._caches.setdefault((index, lane), LaneCache())
            result.values, result.dims = map_device(record, lane, cache)
            if lane is Lane.FAST:
                result.processes = self._lister.list_device(record)
                shown = state_of(result.values, result.dims)
                is_read = _has_value(record) or isinstance(shown, Absent)
                result.state = shown if is_read else UNREADABLE
                result.error = "no call gave a value" if result.state == UNREADABLE else ""
        if result.why is not None:
            result.values, result.dims = absent_device(result.why, lane)
        if identity is not None:
            view = view_of(identity, index)
            if result.why is not None:
                result.instances = self._instances.absent(view, result.why, lane)
            elif record is not None:
                result.instances, result.instance_errors = self._instances.map(view, record, lane)
                if lane is Lane.FAST:
                    readings = [instance.readings for instance in result.instances]
                    result.state = state_with_instances(result.state, readings)
        return result

    def _keep_failure(self, result: _DeviceResult, view: View) -> None:
        """Replace a code of unknown GPU: what was lost or required a reset still does, others are unreadable."""
        before = self._devices.state_of(view)
        reason = next((reason for reason, state in STATE_OF_REASON.items() if state == before), Reason.DRIVER_ERROR)
        result.state, result.why = STATE_OF_REASON.get(reason, UNREADABLE), Absent(reason, result.call)
        result.error = f"{result.call}: failed with other GPUs, with one of their codes"

    def _complete(self, result: _DeviceResult, view: View, lane: Lane, identity: Identity) -> None:
        """Add readings that need no call of this round: the state, and the PCI address."""
        if lane is Lane.FAST:
            result.values["gpu_state"] = result.state
        elif result.state == OK:
            result.state = self._devices.unproven_state(view)  # only the fast lane has the readings that prove it
        if lane is Lane.STATIC:
            why = absence_of(identity.pci_code, PCI_INFO) if identity.pci_code else Absent(Reason.NO_DATA, PCI_INFO)
            result.values["gpu_pci_address"] = identity.pci or why


def _has_value(record: GpuPassRecord) -> bool:
    return any(answer.code == 0 for answer in record.answers)
