"""Format of gpufleet's own snapshot document."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gpufleet.codecs.snapshot_json import decode_snapshot
from gpufleet.decoding.format import CapturedInput, CaptureFormat, DecodeResult
from gpufleet.fleet.snapshots import judge_snapshot
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import DimReading
from gpufleet.model.snapshot import Device, Host, Snapshot

_T = TypeVar("_T", Device, Host)


def _is_snapshot(content: bytes) -> bool:
    head = content[:4096].lstrip()
    return head.startswith(b"{") and b"gpufleet.snapshot/" in content[: 1 << 16]


def _decode_document(source: CapturedInput) -> DecodeResult:
    snapshot, unknown = known_snapshot(decode_snapshot(source.content))
    return DecodeResult(snapshots=(snapshot,), unknown=unknown)


def known_snapshot(snapshot: Snapshot) -> tuple[Snapshot, tuple[str, ...]]:
    """Return the judged snapshot without the metrics that this version does not know, and their names.

    See `judge_snapshot`. Exporters need the catalogue row of each metric, and each label of its dimensions.
    """
    unknown: dict[str, None] = {}
    known = msgspec.structs.replace(
        snapshot,
        devices=tuple(_without_unknown(device, unknown) for device in snapshot.devices),
        host=_without_unknown(snapshot.host, unknown),
    )
    return judge_snapshot(known), tuple(unknown)


def _without_unknown(of: _T, unknown: dict[str, None]) -> _T:
    """Drop metrics that this version's catalogue lacks, or has with other labels; add their names to `unknown`."""
    readings = {name: reading for name, reading in of.readings.items() if name in CATALOGUE}
    dimensions = tuple(reading for reading in of.dimensions if _is_known(reading, CATALOGUE))
    unknown |= dict.fromkeys(name for name in of.readings if name not in readings)
    unknown |= dict.fromkeys(reading.metric for reading in of.dimensions if reading not in dimensions)
    return msgspec.structs.replace(of, readings=readings, dimensions=dimensions)


def _is_known(reading: DimReading, catalogue: Mapping[str, object]) -> bool:
    return reading.metric in catalogue and set(reading.labels) == set(CATALOGUE[reading.metric].dims)


SNAPSHOT = CaptureFormat(
    name="snapshot", help="gpufleet snapshot --json", matches=_is_snapshot, decode=_decode_document
)
