"""Validation of a page's samples: valid names, one time per lane, no old values, bounded devices. Pure."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import View

MAX_NAME = 253
"""Maximum length of an identity or label value in a batch, in characters."""

MAX_DEVICES = 1024
"""Maximum number of GPUs and instances of one machine: 16 GPUs with 64 instances each."""

MAX_VALUES = 20_000
"""Maximum number of values of one machine: 16 GPUs and 256 vGPU instances have about 15,000."""

OLD_SECONDS = {Lane.FAST: 300, Lane.SLOW: 900, Lane.STATIC: 7200, Lane.EVENT: 300}
"""Maximum age of readings with a time of measurement when the page arrives, by this machine's clock."""

TOO_OLD = Absent(Reason.STALE, "the exporter's own timestamp is too old")


def drop_invalid_names(samples: Iterable[Sample]) -> list[Sample]:
    """Drop devices and dimensions whose names are empty or too long for a batch."""
    return [
        msgspec.structs.replace(
            sample, dims=tuple(dim for dim in sample.dims if all(len(label) <= MAX_NAME for label in dim.labels))
        )
        for sample in samples
        if sample.view is None or _has_valid_names(sample.view)
    ]


def merge_samples(samples: Iterable[Sample], at: int) -> list[Sample]:
    """Merge samples to one per device and lane, with the oldest time; the values of old samples are absent.

    Args:
        samples: samples of one page, of any time.
        at: arrival time of the page in nanoseconds since 1970. Later times of measurement are replaced by it.
    """
    together: dict[tuple[str, Lane], Sample] = {}
    for sample in samples:
        key = (_key(sample), sample.lane)
        known = together.get(key)
        sample = _without_old_values(msgspec.structs.replace(sample, measured_at=min(sample.measured_at, at)), at)
        together[key] = sample if known is None else _merge(known, sample)
    return list(together.values())


class BoundedSamples(NamedTuple):
    """Samples within the maximum of one machine.

    Attributes:
        samples: of the machine and the kept devices.
        devices: view keys of the kept devices.
        left_out: number of devices beyond the maximum.
        left_out_values: number of values of the machine beyond the maximum.
    """

    samples: list[Sample]
    devices: frozenset[str]
    left_out: int
    left_out_values: int


def bound_samples(samples: Sequence[Sample], known: Collection[str]) -> BoundedSamples:
    """Keep the machine and its devices up to `MAX_DEVICES` and `MAX_VALUES`: known devices first, in page order.

    A device beyond the maximum is left out whole, so that it never appears with a part of its readings.
    """
    counts: dict[str, int] = {}
    for sample in samples:
        key = _key(sample)
        counts[key] = counts.get(key, 0) + len(sample.values) + len(sample.dims)
    kept: set[str] = set()
    values = 0
    for key in sorted(counts, key=lambda key: (key != _MACHINE, key not in known)):
        if len(kept - {_MACHINE}) < MAX_DEVICES and values + counts[key] <= MAX_VALUES:
            kept.add(key)
            values += counts[key]
    left_out = counts.keys() - kept
    return BoundedSamples(
        [sample for sample in samples if _key(sample) in kept],
        frozenset(kept - {_MACHINE}),
        len(left_out - {_MACHINE}),
        counts[_MACHINE] if _MACHINE in left_out else 0,
    )


_MACHINE = ""


def _key(sample: Sample) -> str:
    return _MACHINE if sample.view is None else sample.view.key


def _has_valid_names(view: View) -> bool:
    names = (view.uuid, view.instance, view.parent)
    return all(name is None or 0 < len(name) <= MAX_NAME for name in names)


def _without_old_values(sample: Sample, at: int) -> Sample:
    if at - sample.measured_at <= OLD_SECONDS[sample.lane] * NANOS:
        return sample
    return msgspec.structs.replace(
        sample,
        measured_at=at,  # time of the absence
        values=dict.fromkeys(sample.values, TOO_OLD),
        dims=tuple(DimValue(dim.metric, dim.labels, TOO_OLD) for dim in sample.dims),
    )


def _merge(one: Sample, other: Sample) -> Sample:
    values: dict[str, Value | Absent] = {**one.values, **other.values}
    at = min(one.measured_at, other.measured_at)
    return msgspec.structs.replace(one, values=values, dims=(*one.dims, *other.dims), measured_at=at)
