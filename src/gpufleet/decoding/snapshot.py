"""gpufleet's own snapshot document."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gpufleet.codecs.snapshot_json import decode_snapshot
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import DimReading
from gpufleet.model.snapshot import Device, Host

_T = TypeVar("_T", Device, Host)


def _fits(content: bytes) -> bool:
    head = content[:4096].lstrip()
    return head.startswith(b"{") and b"gpufleet.snapshot/" in content[: 1 << 16]


def _decode(source: Source) -> Decoded:
    snapshot = decode_snapshot(source.content)
    unknown: dict[str, None] = {}
    known = msgspec.structs.replace(
        snapshot,
        devices=tuple(_without_unknown(device, unknown) for device in snapshot.devices),
        host=_without_unknown(snapshot.host, unknown),
    )
    return Decoded(snapshots=(known,), unknown=tuple(unknown))


def _without_unknown(of: _T, unknown: dict[str, None]) -> _T:
    """Leave out metrics that this version has no row for, or whose labels are others: nothing can be said of them."""
    readings = {name: reading for name, reading in of.readings.items() if name in CATALOGUE}
    dimensions = tuple(reading for reading in of.dimensions if _is_known(reading, CATALOGUE))
    unknown |= dict.fromkeys(name for name in of.readings if name not in readings)
    unknown |= dict.fromkeys(reading.metric for reading in of.dimensions if reading not in dimensions)
    return msgspec.structs.replace(of, readings=readings, dimensions=dimensions)


def _is_known(reading: DimReading, catalogue: Mapping[str, object]) -> bool:
    return reading.metric in catalogue and set(reading.labels) == set(CATALOGUE[reading.metric].dims)


SNAPSHOT = Format(name="snapshot", help="gpufleet snapshot --json", fits=_fits, decode=_decode)
