"""A batch as a sender posts it.

Several batches in one post, as a relay sends them.

A segment file of a spool: batches that wait, or waited, to be sent.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.codecs.batch.compression import MAGIC
from gpufleet.codecs.bundle import unpack
from gpufleet.decoding.assembling import Assembling
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.hub.flush.normalise import normalise
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import WireError
from gpufleet.model.event import RECENT_EVENTS, Event
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import Sample
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderStatus
from gpufleet.model.wire.batch import OLDEST_VERSION, WIRE_VERSION, MachineReport
from gpufleet.spool.record import SEGMENT_MAGIC, scan_segment, seed_of, unpack_segment_header

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


def _bundle_fits(content: bytes) -> bool:
    """Tell by the whole of it: its lengths add up, and its first body is a batch."""
    try:
        bodies = unpack(content)
    except WireError:
        return False
    return BATCH.fits(bodies[0])


def _bundle_decode(source: Source) -> Decoded:
    return decode_bodies(source, unpack(source.content))


BUNDLE = Format(
    name="bundle", help="several batches in one post, as a relay sends them", fits=_bundle_fits, decode=_bundle_decode
)


class _Logged(msgspec.Struct, array_like=True):
    """A record of a hub's log: when the body came, in nanoseconds since 1970, and the body."""

    received_at: int
    body: bytes


_LOGGED = msgspec.msgpack.Decoder(_Logged)
_ARRAYS = (b"\x92", b"\x93")
"""How such a record begins, the one of an older build and this one's; no batch does."""


def _segment_fits(content: bytes) -> bool:
    return content.startswith(SEGMENT_MAGIC)


def _segment_decode(source: Source) -> Decoded:
    header = unpack_segment_header(source.content)
    if header is None:
        raise WireError("segment", "its header is damaged")
    scan = scan_segment(source.content, seed_of(header.epoch), header.first_seq)
    records = [source.content[at : at + length] for at, length in zip(scan.offsets, scan.lengths, strict=True)]
    bodies = [_body(record) for record in records]
    damage = f", {scan.lost_records} lost, {scan.damaged_bytes} bytes damaged" if scan.damaged_bytes else ""
    return decode_bodies(source, bodies, f"segment of epoch {header.epoch}: {len(bodies)} records{damage}")


def _body(record: bytes) -> bytes:
    if not record.startswith(_ARRAYS):
        return record
    try:
        return _LOGGED.decode(record).body
    except msgspec.MsgspecError as error:
        raise WireError("segment", f"a record is neither a body nor a logged body: {error}") from error


SEGMENT = Format(name="segment", help="file of a spool", fits=_segment_fits, decode=_segment_decode)
