"""The NVML reader: asks a watched child process, and turns its answers into samples."""

from collections.abc import Generator, Mapping
from pathlib import Path

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.events import DRIVER_EVENTS
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.event import Event
from gpufleet.model.process import Process
from gpufleet.model.reading import DimValue, Round, Sample, Value
from gpufleet.model.view import View
from gpufleet.readers.nvml import devices, machine
from gpufleet.readers.nvml.calls import PCI_INFO
from gpufleet.readers.nvml.devices import Devices, Identity, is_watched, map_event, view_of
from gpufleet.readers.nvml.instances import Instance, Instances, told_apart
from gpufleet.readers.nvml.mapping import absent_device, map_device
from gpufleet.readers.nvml.mapping.lane import Memory
from gpufleet.readers.nvml.parse import absence_of, label_of
from gpufleet.readers.nvml.processes import ProcessLister
from gpufleet.readers.nvml.protocol import DeviceRecord
from gpufleet.readers.nvml.watch import Answers, Failed, Limits, Watch
from gpufleet.runtime import in_slices

SLICE_SECONDS = 0.0015
"""How long the event loop is held without a break: eight GPUs that are not cut take less, and passes are rare."""

_STATE_OF_CODE = {15: devices.LOST, 16: devices.RESET_REQUIRED}


class _Device:
    """What one round says of one device."""

    def __init__(self, state: str, call: str, measured_at: int, words: str, why: Absent | None = None) -> None:
        self.state, self.call, self.measured_at, self.words = state, call, measured_at, words
        self.why = why  # it gave nothing at all
        self.values: dict[str, Value | Absent] = {}
        self.dims: tuple[DimValue, ...] = ()
        self.processes: tuple[Process, ...] | None = None
        self.parts: list[Instance] = []
        self.part_words: list[str] = []


class NvmlReader:
    """Reads NVIDIA GPUs of the machine it runs on.

    The driver is only ever called in a child process; a GPU that hangs there costs itself, and a driver that
    hangs costs this reader its rounds, never its caller the thread.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        root: Path = Path("/"),
        process_names: bool = False,
    ) -> None:
        """Prepare it; nothing is started before the first `read`.

        Args:
            limits: how patient it is; None for the defaults.
            environment: of the child process; None hands down this process's own.
            root: where the machine's /proc, /sys and /dev are.
            process_names: whether processes are told with the kernel's short names of them.
        """
        self._root = root
        self._watch = Watch(limits or Limits(), environment, root)
        self._devices = Devices()
        self._lister = ProcessLister(root, names=process_names)
        self._instances = Instances(self._lister)
        self._memory: dict[tuple[int, Lane], Memory] = {}
        self._session = machine.DriverSession(root)
        self._some_sick = False
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
        """Return the id of the child process there is, or None."""
        return self._watch.child.pid if self._watch.child is not None else None

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane.

        The static lane attaches every device anew, and starts NVML anew if a device could not be read as a
        whole before: a recovered GPU comes back by itself. Static and slow lane start it anew when the kernel's
        driver has other GPUs than before, which NVML does not notice by itself.

        Raises:
            ReaderError: without library, driver, devices or access, when the versions of library and driver
                differ, when the driver hangs as a whole, or when the child died; with the driver's own words.
        """
        if lane is Lane.EVENT:
            told = self._told()
            await self._watch.heed_binding()
            return told
        bound = machine.bound_devices(self._root) if lane in (Lane.STATIC, Lane.SLOW) else self._bound
        if (lane is Lane.STATIC and self._some_sick) or bound != self._bound:
            await self._watch.renew()
        self._bound = bound
        try:
            answers = await self._watch.ask(lane.value)
        except Failed as failed:
            raise machine.failure(failed, lane) from None
        if answers.session.count == 0:
            raise machine.no_devices(answers.session, lane)
        return await self._round(answers, lane)

    async def close(self) -> None:
        """End the child process, and let go of what is held; the next `read` starts another.

        Raises:
            ReaderError: if the process cannot be ended: it still holds the devices.
        """
        self._lister.close()
        try:
            await self._watch.close()
        except Failed as failed:
            raise ReaderError(Reason.TIMEOUT, str(failed)) from None

    def _told(self) -> Round:
        """Return what the driver told by itself; it is not asked anything."""
        told = [map_event(record, attached, self._devices.shared) for record, attached in self._watch.take_events()]
        return Round(events=tuple(event for event in told if event is not None))

    async def _round(self, answers: Answers, lane: Lane) -> Round:
        identities = self._devices.identify(answers.session.count, answers.identities)
        looked = await in_slices(self._look(answers, identities, lane), slice_seconds=SLICE_SECONDS)
        return self._join(answers, identities, looked, lane)

    def _look(
        self, answers: Answers, identities: Mapping[int, Identity], lane: Lane
    ) -> Generator[None, None, list[_Device]]:
        """Map every device, in small steps: those with many parts take milliseconds."""
        if lane is Lane.FAST:
            self._lister.begin()
        looked = []
        for index in range(answers.session.count):
            looked.append(self._device(answers, index, identities.get(index), lane))
            yield
        return looked

    def _join(self, answers: Answers, identities: Mapping[int, Identity], looked: list[_Device], lane: Lane) -> Round:
        """Put together what was found, and remember it: what is told here is told once, so nothing comes between."""
        session = self._session.number(answers.session.driver)
        samples: list[Sample] = []
        events: list[Event] = []
        errors = [f"several GPUs say that they are {name}: it names none of them" for name in self._devices.shared]
        self._some_sick = not answers.hung and any(record.code for record in answers.devices.values())
        for index, found in enumerate(looked):
            identity = identities.get(index)
            if identity is None:
                errors.append(f"the GPU at index {index} cannot be named: {found.words or found.call}")
                continue
            view = view_of(identity, index)
            self._complete(found, view, lane, identity)
            if lane is Lane.SLOW:
                found.values[DRIVER_EVENTS] = is_watched(self._watch.watched(index))
            events += self._devices.change(view, found.state, found.measured_at, found.call)
            if found.words:
                errors.append(f"{view.key}: {found.words}")
            whole = Instance(view, (found.values, found.dims), found.processes)
            errors += found.part_words
            samples += [
                Sample(
                    view=subject,
                    reader=self.name,
                    lane=lane,
                    measured_at=found.measured_at,
                    values=values,
                    dims=dims,
                    driver_session=session,
                    processes=processes,
                )
                for subject, (values, dims), processes in (whole, *found.parts)
                if values or dims
            ]
        samples, words = told_apart(samples)
        errors += words
        all_hung = len(answers.hung) == answers.session.count
        own = machine.machine_sample(answers.session, lane, all_hung=all_hung, driver_session=session)
        return Round(
            samples=(*samples, own) if own is not None else tuple(samples),
            events=tuple(events),
            errors=tuple(errors),
        )

    def _device(self, answers: Answers, index: int, identity: Identity | None, lane: Lane) -> _Device:
        """Judge what came of one device, and map it with what it is cut or shared into, measured in the same pass."""
        record = answers.devices.get(index)
        if record is None:
            call = answers.hung[index]
            found = _Device(devices.HUNG, call, answers.ended_at, f"hung in {call}", Absent(Reason.TIMEOUT, call))
        elif record.code:
            call = label_of(record.asked)
            state = _STATE_OF_CODE.get(record.code, devices.UNREADABLE)
            why = absence_of(record.code, call)
            found = _Device(state, call, record.measured_at, f"{call}: {record.words}", why)
        else:
            unreadable = lane is Lane.FAST and not _anything(record)
            state = devices.UNREADABLE if unreadable else devices.OK
            found = _Device(state, "", record.measured_at, "no call gave a value" if unreadable else "")
            memory = self._memory.setdefault((index, lane), Memory())
            found.values, found.dims = map_device(record, lane, memory)
            if lane is Lane.FAST:
                found.processes = self._lister.of_device(record)
        if found.why is not None:
            found.values, found.dims = absent_device(found.why, lane)
        if identity is not None:
            view = view_of(identity, index)
            if found.why is not None:
                found.parts = self._instances.silent(view, found.why, lane)
            elif record is not None:
                found.parts, found.part_words = self._instances.of(view, record, lane)
        return found

    def _complete(self, found: _Device, view: View, lane: Lane, identity: Identity) -> None:
        """Add what is known without this round's calls: the state, and the address that names the device."""
        if lane is Lane.FAST:
            found.values["gpu_state"] = found.state
        elif found.state == devices.OK and self._devices.state_of(view) == devices.UNREADABLE:
            found.state = devices.UNREADABLE  # only the fast lane judges that
        if lane is Lane.STATIC:
            why = absence_of(identity.pci_code, PCI_INFO) if identity.pci_code else Absent(Reason.NO_DATA, PCI_INFO)
            found.values["gpu_pci_address"] = identity.pci or why


def _anything(record: DeviceRecord) -> bool:
    return any(answer.code == 0 for answer in record.answers)
