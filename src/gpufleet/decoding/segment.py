"""A segment file of a spool: batches that wait, or waited, to be sent."""

import msgspec

from gpufleet.decoding.batch import decode_bodies
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.model.errors import WireError
from gpufleet.spool.record import SEGMENT_MAGIC, scan_segment, seed_of, unpack_segment_header


class _Logged(msgspec.Struct, array_like=True):
    """A record of a hub's log: when the body came, in nanoseconds since 1970, and the body."""

    received_at: int
    body: bytes


_LOGGED = msgspec.msgpack.Decoder(_Logged)
_ARRAYS = (b"\x92", b"\x93")
"""How such a record begins, the one of an older build and this one's; no batch does."""


def _fits(content: bytes) -> bool:
    return content.startswith(SEGMENT_MAGIC)


def _decode(source: Source) -> Decoded:
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


SEGMENT = Format(name="segment", help="file of a spool", fits=_fits, decode=_decode)
