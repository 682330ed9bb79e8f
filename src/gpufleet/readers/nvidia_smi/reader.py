"""The nvidia-smi reader: asks for what a lane needs, and turns what is printed into samples."""

from collections.abc import Iterable

from gpufleet.codecs.nvidia_smi.failure import named_device
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import View
from gpufleet.ports.channel import Exec
from gpufleet.ports.clock import Clock
from gpufleet.readers.nvidia_smi import machine, parse, plan
from gpufleet.readers.nvidia_smi.fetch import Command, Failed
from gpufleet.readers.nvidia_smi.mapping.devices import Asked, Modes, Reads
from gpufleet.readers.nvidia_smi.mapping.rows import PROCESSES
from gpufleet.readers.nvidia_smi.parse import Outputs
from gpufleet.readers.nvidia_smi.plan import Plan
from gpufleet.readers.nvidia_smi.samples import gpu_sample, lost_sample, modes_by_key, part_samples, with_processes
from gpufleet.readers.nvidia_smi.views import Gpu, identify

MAX_ERRORS = 20

TIMEOUT_SECONDS = 15.0
"""Of one command; below the 20 s that a pass of a reader has by default."""


class NvidiaSmiReader:
    """Reads the NVIDIA GPUs of the machine at the other end of a channel.

    Args:
        channel: runs the command: of this machine, or of a guest.
        clock: names the instant of each pass.
        command: name or path of nvidia-smi there.
        timeout_seconds: a command that takes longer hangs.
    """

    def __init__(
        self,
        channel: Exec,
        clock: Clock,
        *,
        command: str = "nvidia-smi",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._command = Command(channel, path=command, timeout_seconds=timeout_seconds)
        self._clock = clock
        self._forget()

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
            ReaderError: if nothing could be read: no nvidia-smi, no driver, no devices, no access, another version
                of the library than of the driver, or no answer in time; with the driver's own words.
        """
        try:
            return await self._round(lane)
        except Failed as failed:
            raise machine.failure_error(failed.failure, lane, self._clock.now_ns()) from failed

    async def close(self) -> None:
        """Forget what is known of this nvidia-smi and its devices."""
        self._forget()

    def _forget(self) -> None:
        self._offered: frozenset[str] = frozenset()
        self._version: str | None = None
        self._modes: dict[str, Modes] = {}
        self._known: dict[str, View] = {}  # by PCI address: an error names a device by nothing else

    async def _round(self, lane: Lane) -> Round:
        if not self._offered:
            self._offered = parse.offered(await self._command.run(*plan.HELP))
        asked = plan.plan_of(lane, self._offered, self._modes.values())
        outputs = await self._outputs(asked)
        gpus, errors = identify(outputs.records)
        errors = [*outputs.messages, *errors]
        self._modes |= modes_by_key(gpus, self._modes)
        instead: Reads = {PROCESSES: outputs.apps} if isinstance(outputs.apps, Absent) else {}
        if asked.apps and not isinstance(outputs.apps, Absent):
            gpus = with_processes(gpus, outputs.apps)
        at = self._clock.now_ns()
        samples = [gpu_sample(gpu, lane, asked.asked, self._modes[gpu.view.key], at, instead) for gpu in gpus]
        samples += self._lost(gpus, outputs.messages, lane, asked.asked, at)
        if any(gpu.record.mig for gpu in gpus) and not outputs.listing:
            errors.append("the MIG devices changed while they were read, or have no list: none of them is read")
            gpus = [gpu for gpu in gpus if not gpu.record.mig]
        parts, disagreements = part_samples(gpus, outputs.listing, lane, at)
        own = machine.machine_sample(lane, at, shown_gpus=outputs.count, driver=outputs.driver, cuda=outputs.cuda)
        self._remember(gpus, outputs)
        return Round(
            samples=(*samples, *parts, *((own,) if own is not None else ())),
            errors=tuple(dict.fromkeys([*errors, *disagreements]))[:MAX_ERRORS],
        )

    async def _outputs(self, asked: Plan) -> Outputs:
        """Ask everything of a plan; as long as one output tells of devices, what failed beside it is a message."""
        outputs = Outputs()
        before = await self._listing(outputs) if asked.log else None
        failures: list[Failed] = []
        for arguments, take in (
            (plan.LOG if asked.log else (), outputs.take_log),
            (plan.table(asked.columns), outputs.take_table),
        ):
            if not arguments:
                continue
            try:
                take(await self._command.run(*arguments), asked)
            except Failed as failed:
                failures.append(failed)
        if not outputs.records:
            self._offered = frozenset()  # what nvidia-smi offers may be another thing when it works again
            raise failures[0]
        outputs.messages += [str(failed) for failed in failures]
        if any(record.mig for record in outputs.records):
            after = await self._listing(outputs)
            outputs.listing = after if after == before else None
        if asked.apps:
            try:
                outputs.take_apps(await self._command.run(*plan.APPS))
            except Failed as failed:
                outputs.messages.append(str(failed))
                outputs.apps = Absent(failed.failure.reason, "--query-compute-apps")
        return outputs

    async def _listing(self, outputs: Outputs) -> Listing | None:
        try:
            return parse.listing(await self._command.run(*plan.LIST))
        except Failed as failed:
            outputs.messages.append(f"-L: {failed}")
            return None

    def _lost(self, gpus: Iterable[Gpu], messages: Iterable[str], lane: Lane, asked: Asked, at: int) -> list[Sample]:
        """Tell of devices that were known before and that an error names now. None is made up from an error."""
        there = {gpu.view.pci_address for gpu in gpus}
        named = dict(found for message in messages if (found := named_device(message)) is not None)
        return [
            lost_sample(view, lane, asked, self._modes.get(view.key, Modes()), at, Absent(named[address]))
            for address, view in self._known.items()
            if address in named and address not in there
        ]

    def _remember(self, gpus: Iterable[Gpu], outputs: Outputs) -> None:
        if not outputs.messages:
            self._known.clear()
        self._known |= {gpu.view.pci_address: gpu.view for gpu in gpus if gpu.view.pci_address is not None}
        if self._version not in (None, outputs.driver):
            self._offered = frozenset()  # another version: asked anew in the next pass
        self._version = outputs.driver or self._version
