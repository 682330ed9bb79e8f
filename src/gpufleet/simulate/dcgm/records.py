"""Value records, and how they go wrong."""

import struct
from collections.abc import Collection, Sequence

from gpufleet.simulate.dcgm.state import Fault
from gpufleet.simulate.dcgm.values import Told


def record(kind: int, id_: int, one: int, status: int, at: int, told: Told, *, blob: bool = False) -> bytes:
    """Return one value record; `at` in microseconds."""
    if blob:
        letter, payload = b"b", b"\x00\xff" * 8
    elif isinstance(told, str):
        letter, payload = b"s", told.encode() + b"\0"
    elif isinstance(told, float):
        letter, payload = b"d", struct.pack("<d", told)
    else:
        letter, payload = b"i", struct.pack("<q", told)
    return struct.pack("<HBcbBHqII", 24 + len(payload), 1, letter, status, kind, one, at, id_, 0) + payload


def spoiled(records: Sequence[bytes], faults: Collection[Fault]) -> bytes:
    """Join records, as the faults have it."""
    if Fault.PARTIAL in faults:
        records = records[::2]
    joined = b"".join(records)
    if Fault.ZERO_RECORD in faults:
        return b"\0\0" + joined[2:]
    if Fault.LONG_RECORD in faults:
        return b"\xff\xff" + joined[2:]
    if Fault.UNASKED in faults:
        return joined + record(1, 7, 155, 0, 1, 5.0) * 130_000
    return joined
