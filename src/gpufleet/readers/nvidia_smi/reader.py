"""The nvidia-smi reader: runs the commands of a lane, and converts their outputs to samples."""

import logging
from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.codecs.nvidia_smi.failure import named_devices
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.fleet.device_events import DeviceStates
from gpufleet.fleet.lost_instances import InstanceMemory
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.device_state import STATE_OF_REASON
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.channel import Exec
from gpufleet.ports.clock import Clock
from gpufleet.readers.nvidia_smi import machine, parse, plan
from gpufleet.readers.nvidia_smi.fetch import CommandFailedError, NvidiaSmiCommand
from gpufleet.readers.nvidia_smi.mapping.devices import GpuModes, MetricValues, RequestedMetrics
from gpufleet.readers.nvidia_smi.mapping.rows import PROCESSES
from gpufleet.readers.nvidia_smi.parse import PassOutputs
from gpufleet.readers.nvidia_smi.plan import Plan
from gpufleet.readers.nvidia_smi.samples import (
    gpu_sample,
    instance_samples,
    lost_by_elimination,
    lost_reasons,
    lost_sample,
    modes_by_key,
    printed_reason,
    with_processes,
)
from gpufleet.readers.nvidia_smi.views import Gpu, identify, uuid_of

log = logging.getLogger(__name__)

MAX_ERRORS = 20

TIMEOUT_SECONDS = 15.0
"""Timeout of one command; below the default 20 s of a reader's pass."""


class NvidiaSmiReader:
    """Reads the NVIDIA GPUs of the machine at the other end of a channel.

    Args:
        channel: runs the command, on this machine or in a guest.
        clock: clock of the samples' times.
        command: name or path of nvidia-smi on that machine.
        timeout_seconds: timeout of one command.
    """

    def __init__(
        self,
        channel: Exec,
        clock: Clock,
        *,
        command: str = "nvidia-smi",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._command = NvidiaSmiCommand(channel, path=command, timeout_seconds=timeout_seconds)
        self._clock = clock
        self._states = DeviceStates(machine.NAME)
        self._instances = InstanceMemory()
        self._reset()

    @property
    def name(self) -> str:
        """Return `nvidia_smi`."""
        return machine.NAME

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return static, fast and slow."""
        return (Lane.STATIC, Lane.FAST, Lane.SLOW)

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane.

        Raises:
            ReaderError: if nothing could be read: no nvidia-smi, no driver, no devices, no access, versions of library
                and driver differ, or a timeout. Contains the driver's own message.
        """
        try:
            return await self._round(lane)
        except CommandFailedError as failed:
            raise machine.reader_error(failed.failure, lane, self._clock.now_ns()) from failed

    async def close(self) -> None:
        """Drop all state about this nvidia-smi and its devices."""
        self._reset()

    def _reset(self) -> None:
        self._offered: frozenset[str] = frozenset()
        self._version: str | None = None
        self._modes: dict[str, GpuModes] = {}
        self._noted = False  # whether the notes behind versions were logged, once per driver version
        self._known: dict[str, View] = {}  # by PCI address, the only identity in error messages

    async def _round(self, lane: Lane) -> Round:
        if not self._offered:
            self._offered = parse.parse_offered_fields(await self._command.run(*plan.HELP))
        planned = plan.plan_of(lane, self._offered, self._modes.values())
        try:
            outputs = await self._outputs(planned)
        except CommandFailedError as failed:
            raise self._failure(failed, lane, planned) from failed
        gpus, errors = identify(outputs.records)
        named = lost_by_elimination(outputs.records, gpus, self._known, named_devices(outputs.messages))
        gpus = self._with_known_uuids(gpus, named)
        errors = [*outputs.messages, *errors]
        is_complete = not errors
        self._modes |= modes_by_key(gpus, self._modes)
        replaced: MetricValues = {PROCESSES: outputs.apps} if isinstance(outputs.apps, Absent) else {}
        if planned.apps and not isinstance(outputs.apps, Absent):
            gpus = with_processes(gpus, outputs.apps)
        at = self._clock.now_ns()
        samples = [
            gpu_sample(
                gpu,
                lane,
                planned.requested,
                self._modes[gpu.view.key],
                at,
                replaced=replaced,
                named=named.get(gpu.view.pci_address or ""),
            )
            for gpu in gpus
        ]
        samples += self._lost(gpus, named, lane, planned.requested, at)
        unlisted = {gpu.view.key for gpu in gpus if gpu.record.mig and not outputs.listing}
        if unlisted:
            errors.append("MIG devices are not read: they changed during the pass, or nvidia-smi -L failed")
        listed = [gpu for gpu in gpus if gpu.view.key not in unlisted]
        instances, disagreements = instance_samples(listed, outputs.listing, lane, at)
        lost = lost_reasons(gpus, self._known, named)
        unlisted -= lost.keys()
        proven = [one for one in samples if one.view is None or one.view.key not in unlisted]
        instances += self._instances.missing([*proven, *instances], lost, lane)
        own = machine.machine_sample(lane, at, shown_gpus=outputs.count, driver=outputs.driver, cuda=outputs.cuda)
        self._remember(gpus, outputs, is_complete=is_complete)
        return Round(
            samples=(*samples, *instances, *((own,) if own is not None else ())),
            events=tuple(self._states.change_by_samples(samples)),
            errors=tuple(dict.fromkeys([*errors, *disagreements]))[:MAX_ERRORS],
        )

    async def _outputs(self, planned: Plan) -> PassOutputs:
        """Run the commands of a plan; a failure is only a message if another output has devices."""
        outputs = PassOutputs()
        before = await self._listing(outputs) if planned.log else None
        failures: list[CommandFailedError] = []
        for arguments, add in (
            (plan.LOG if planned.log else (), outputs.add_log),
            (plan.table_arguments(planned.columns), outputs.add_table),
        ):
            if not arguments:
                continue
            try:
                add(await self._command.run(*arguments), planned)
            except CommandFailedError as failed:
                failures.append(failed)
        if not outputs.records:
            self._offered = frozenset()  # the supported fields can differ after a recovery
            raise failures[0]
        outputs.messages += [line for failed in failures for line in failed.failure.lines]
        if any(record.mig for record in outputs.records):
            after = await self._listing(outputs)
            outputs.listing = after if after == before else None
        if planned.apps:
            try:
                outputs.add_apps(await self._command.run(*plan.APPS))
            except CommandFailedError as failed:
                outputs.messages += failed.failure.lines
                outputs.apps = Absent(failed.failure.reason, "--query-compute-apps")
        return outputs

    async def _listing(self, outputs: PassOutputs) -> Listing | None:
        try:
            return parse.parse_device_listing(await self._command.run(*plan.LIST))
        except CommandFailedError as failed:
            outputs.messages += [f"-L: {line}" for line in failed.failure.lines]
            return None

    def _failure(self, failed: CommandFailedError, lane: Lane, planned: Plan) -> ReaderError:
        """Return the error of a pass without any device; GPUs that its messages name are in its round."""
        at = self._clock.now_ns()
        error = machine.reader_error(failed.failure, lane, at)
        named = named_devices(failed.failure.lines)
        lost = self._lost((), named, lane, planned.requested, at)
        if not lost:
            return error
        lost += self._instances.missing(lost, lost_reasons((), self._known, named), lane)
        own = error.round.samples if error.round is not None else ()
        events = tuple(self._states.change_by_samples(lost))
        done = Round(samples=(*lost, *own), events=events, errors=(failed.failure.message,))
        return ReaderError(failed.failure.reason, failed.failure.message, round=done)

    def _with_known_uuids(self, gpus: list[Gpu], named: Mapping[str, Reason]) -> list[Gpu]:
        """Return the GPUs, with the known UUID of the same address where a lost GPU printed none.

        A GPU without proof of its loss is not named by its address: it may be another card in the same slot.
        """
        present = {gpu.view.uuid for gpu in gpus}
        found: list[Gpu] = []
        for gpu in gpus:
            address = gpu.view.pci_address or ""
            known = self._known.get(address)
            lacks = gpu.view.uuid is None and uuid_of(gpu.record) is None
            is_lost = printed_reason(gpu.record) is not None or named.get(address) in STATE_OF_REASON
            if lacks and is_lost and known is not None and known.uuid not in present:
                gpu = gpu._replace(view=msgspec.structs.replace(gpu.view, uuid=known.uuid))
            found.append(gpu)
        return found

    def _lost(
        self, gpus: Iterable[Gpu], named: Mapping[str, Reason], lane: Lane, requested: RequestedMetrics, at: int
    ) -> list[Sample]:
        """Return samples of GPUs that only error messages name.

        A GPU that was never read is known by its PCI address.
        """
        present = {gpu.view.pci_address for gpu in gpus}
        samples = []
        for address, reason in named.items():
            if address in present:
                continue
            view = self._known.get(address) or View(kind=ViewKind.GPU, side=Side.HOST, pci_address=address)
            modes = self._modes.get(view.key, GpuModes())
            samples.append(lost_sample(view, lane, requested, modes, at, Absent(reason)))
        return samples

    def _remember(self, gpus: Iterable[Gpu], outputs: PassOutputs, *, is_complete: bool) -> None:
        if is_complete:
            self._known.clear()
        self._known |= {gpu.view.pci_address: gpu.view for gpu in gpus if gpu.view.pci_address is not None}
        if self._version not in (None, outputs.driver):
            self._offered = frozenset()  # another driver version: the next pass queries the fields again
            self._noted = False
        self._version = outputs.driver or self._version
        if outputs.notes and not self._noted:
            self._noted = True
            log.info("nvidia-smi prints notes behind versions: %s", "; ".join(outputs.notes))
