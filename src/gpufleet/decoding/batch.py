"""Formats with batches: a posted batch, a bundle of a relay, and a segment file of a spool."""

from collections import deque
from collections.abc import Sequence

import msgspec

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.codecs.batch.compression import MAGIC
from gpufleet.codecs.bundle import unpack
from gpufleet.decoding.builder import SnapshotBuilder
from gpufleet.decoding.format import CapturedInput, CaptureFormat, DecodeResult
from gpufleet.hub.flush.normalise import normalise
from gpufleet.hub.receive.log import LogPayload
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import WireError
from gpufleet.model.event import RECENT_EVENTS, Event
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES, ReaderStatus, lane_interval
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import WIRE_VERSION, MachineReport
from gpufleet.spool.record import SEGMENT_MAGIC, scan_segment, seed_of, unpack_segment_header

_ARRAY_16 = 0xDC
_MAGIC = (bytes((0x90 + 14, WIRE_VERSION)), MAGIC)
"""First bytes of a batch: a MessagePack array whose first field is the version, or the zstd magic."""


class _MachineReports:
    """Reports about one machine: the newest sample of each subject, reader and lane."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.samples: dict[tuple[str, str, Lane], Sample] = {}
        self.statuses: dict[tuple[str, Lane], ReaderStatus] = {}
        self.inventory: tuple[PciFunction, ...] | None = None
        self.events: deque[Event] = deque(maxlen=RECENT_EVENTS)

    def take(self, report: MachineReport) -> None:
        self.machine = report.machine
        self.inventory = self.inventory if report.inventory is None else report.inventory
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
        machine = SnapshotBuilder(self.machine, at, self.events)
        machine.take(self._judged(), statuses=self.statuses.values(), inventory=self.inventory)
        return machine.snapshot()

    def _judged(self) -> list[Sample]:
        """Return the samples. One is stale if its reader measured in the same lane `MISSED_PASSES` intervals later."""
        newest: dict[tuple[str, Lane], int] = {}
        for one in self.samples.values():
            key = one.reader, one.lane
            newest[key] = max(one.measured_at, newest.get(key, 0))
        found = []
        for one in self.samples.values():
            key = one.reader, one.lane
            interval = lane_interval(self.statuses[key]) if key in self.statuses else LANE_SECONDS[one.lane]
            is_stale = newest[key] - one.measured_at > MISSED_PASSES * interval * NANOS
            found.append(_stale(one) if is_stale else one)
        return found


def _stale(sample: Sample) -> Sample:
    """Return the sample with its absences and without its values: the device may have left its machine."""

    def absent(value: Value | Absent) -> Absent:
        return value if isinstance(value, Absent) else Absent(Reason.STALE)

    values = {name: absent(value) for name, value in sample.values.items()}
    dims = tuple([DimValue(one.metric, one.labels, absent(one.value)) for one in sample.dims])
    return msgspec.structs.replace(sample, values=values, dims=dims, processes=None)


class BatchCollector:
    """Reports of batches by machine; the batches can come in any order."""

    def __init__(self, source: CapturedInput) -> None:
        self._at = source.at
        self._machines: dict[str, _MachineReports] = {}
        self._notes: dict[str, None] = {}
        self._unknown: dict[str, None] = {}

    def take(self, body: bytes) -> None:
        """Add one batch body; raises WireError."""
        clean = normalise(decode(body), self._at)
        self._unknown |= dict.fromkeys(clean.unknown_metrics)
        self._notes |= dict.fromkeys(f"{name}: {n} invalid values" for name, n in clean.invalid_values.items())
        if clean.future_rows:
            self.note(f"{clean.future_rows} rows have a time of measurement after the time of the file")
        batch = to_rows(clean.batch)
        self.note(f"batch {batch.seq} of {batch.sender} in {batch.cluster}, epoch {batch.epoch}")
        for report in batch.reports:
            self._machines.setdefault(_machine_key(report.machine), _MachineReports(report.machine)).take(report)

    def note(self, text: str) -> None:
        """Add a note on the whole input."""
        self._notes[text] = None

    def decoded(self) -> DecodeResult:
        """Return a snapshot per machine."""
        snapshots = tuple(reports.snapshot(self._at) for reports in self._machines.values())
        return DecodeResult(snapshots=snapshots, notes=tuple(self._notes), unknown=tuple(self._unknown))


def decode_bodies(source: CapturedInput, bodies: Sequence[bytes], *notes: str) -> DecodeResult:
    """Decode batches of any senders to one result."""
    batches = BatchCollector(source)
    for note in notes:
        batches.note(note)
    for body in bodies:
        batches.take(body)
    return batches.decoded()


def _machine_key(machine: Machine) -> str:
    return machine.system_uuid or machine.machine_id or machine.name


def _is_batch(content: bytes) -> bool:
    return content.startswith(_MAGIC) or content[:1] == bytes((_ARRAY_16,))


def _decode_batch(source: CapturedInput) -> DecodeResult:
    return decode_bodies(source, [source.content])


BATCH = CaptureFormat(name="batch", help="body of POST /v1/batches", matches=_is_batch, decode=_decode_batch)


def _is_bundle(content: bytes) -> bool:
    """Return whether the lengths of all bodies add up and the first body is a batch."""
    try:
        bodies = unpack(content)
    except WireError:
        return False
    return BATCH.matches(bodies[0])


def _decode_bundle(source: CapturedInput) -> DecodeResult:
    return decode_bodies(source, unpack(source.content))


BUNDLE = CaptureFormat(
    name="bundle", help="several batches in one post of a relay", matches=_is_bundle, decode=_decode_bundle
)


_LOG_RECORD_DECODER = msgspec.msgpack.Decoder(LogPayload)
_LOG_RECORD_START = b"\x92"
"""First byte of a log record. No batch starts with it."""


def _is_segment(content: bytes) -> bool:
    return content.startswith(SEGMENT_MAGIC)


def _decode_segment(source: CapturedInput) -> DecodeResult:
    header = unpack_segment_header(source.content)
    if header is None:
        raise WireError("segment", "its header is damaged")
    scan = scan_segment(source.content, seed_of(header.epoch), header.first_seq)
    records = [source.content[at : at + length] for at, length in zip(scan.offsets, scan.lengths, strict=True)]
    bodies = [_body(record) for record in records]
    damage = f", {scan.lost_records} lost, {scan.damaged_bytes} bytes damaged" if scan.damaged_bytes else ""
    return decode_bodies(source, bodies, f"segment of epoch {header.epoch}: {len(bodies)} records{damage}")


def _body(record: bytes) -> bytes:
    if not record.startswith(_LOG_RECORD_START):
        return record
    try:
        return _LOG_RECORD_DECODER.decode(record).body
    except msgspec.MsgspecError as error:
        raise WireError("segment", f"a record is neither a body nor a logged body: {error}") from error


SEGMENT = CaptureFormat(name="segment", help="segment file of a spool", matches=_is_segment, decode=_decode_segment)
