"""A batch as a sender posts it."""

from collections import deque
from collections.abc import Sequence

from gpufleet.agent.state import RECENT_EVENTS
from gpufleet.codecs.batch import decode, to_rows
from gpufleet.codecs.batch.compression import MAGIC
from gpufleet.decoding.assembling import Assembling
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.hub.normalise import normalise
from gpufleet.model.batch import MachineReport
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import Sample
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderStatus
from gpufleet.model.wire import OLDEST_VERSION, WIRE_VERSION

_ARRAY_16 = 0xDC
_BEGINNINGS = (*(bytes((0x90 + 14, version)) for version in range(OLDEST_VERSION, WIRE_VERSION + 1)), MAGIC)
"""A MessagePack array of the batch's fields, the first of which is the version; or zstd's mark."""


class _Told:
    """What batches say of one machine: of each subject, reader and lane the newest."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.samples: dict[tuple[str, str, Lane], Sample] = {}
        self.statuses: dict[tuple[str, Lane], ReaderStatus] = {}
        self.inventory: tuple[PciFunction, ...] | None = None
        self.events: deque[Event] = deque(maxlen=RECENT_EVENTS)

    def take(self, report: MachineReport) -> None:
        self.machine = report.machine
        self.inventory = report.inventory or self.inventory
        self.events.extend(report.events)
        for sample in report.samples:
            key = (sample.view.key if sample.view else "", sample.reader, sample.lane)
            if key not in self.samples or self.samples[key].measured_at <= sample.measured_at:
                self.samples[key] = sample
        for status in report.readers:
            before = self.statuses.get((status.reader, status.lane))
            if before is None or (before.last_attempt or 0) <= (status.last_attempt or 0):
                self.statuses[status.reader, status.lane] = status

    def snapshot(self, at: int) -> Snapshot:
        machine = Assembling(self.machine, at, self.events)
        machine.take(self.samples.values(), statuses=self.statuses.values(), inventory=self.inventory)
        return machine.snapshot()


class Batches:
    """Batches taken in one by one, in whatever order they are."""

    def __init__(self, source: Source) -> None:
        self._at = source.at
        self._machines: dict[str, _Told] = {}
        self._notes: dict[str, None] = {}
        self._unknown: dict[str, None] = {}

    def take(self, body: bytes) -> None:
        """Take in one body; raises WireError."""
        clean = normalise(decode(body), self._at)
        self._unknown |= dict.fromkeys(clean.unknown_metrics)
        self._notes |= dict.fromkeys(f"{name}: {n} values are not valid" for name, n in clean.invalid_values.items())
        if clean.future_rows:
            self.note(f"{clean.future_rows} rows say that they were measured after the file was written")
        batch = to_rows(clean.batch)
        self.note(f"batch {batch.seq} of {batch.sender} in {batch.cluster}, epoch {batch.epoch}")
        for report in batch.reports:
            self._machines.setdefault(_key(report.machine), _Told(report.machine)).take(report)

    def note(self, words: str) -> None:
        """Add words about the whole."""
        self._notes[words] = None

    def decoded(self) -> Decoded:
        """Return the machines."""
        snapshots = tuple(told.snapshot(self._at) for told in self._machines.values())
        return Decoded(snapshots=snapshots, notes=tuple(self._notes), unknown=tuple(self._unknown))


def decode_bodies(source: Source, bodies: Sequence[bytes], *notes: str) -> Decoded:
    """Decode batches of any senders."""
    batches = Batches(source)
    for words in notes:
        batches.note(words)
    for body in bodies:
        batches.take(body)
    return batches.decoded()


def _key(machine: Machine) -> str:
    return machine.system_uuid or machine.machine_id or machine.name


def _fits(content: bytes) -> bool:
    return content.startswith(_BEGINNINGS) or content[:1] == bytes((_ARRAY_16,))


def _decode(source: Source) -> Decoded:
    return decode_bodies(source, [source.content])


BATCH = Format(name="batch", help="body of POST /v1/batches", fits=_fits, decode=_decode)
