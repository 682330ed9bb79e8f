"""What is believed of what a page says: names that can be names, one instant a lane, nothing too old. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import View

MAX_NAME = 253
"""Characters of an identity or of a dimension's value: what a batch carries."""

MAX_DEVICES = 1024
"""GPUs and instances of one machine: 16 GPUs with 64 instances each are more than any has."""

MAX_VALUES = 20_000
"""Values of one machine that are taken: a machine with 16 GPUs and 256 vGPU instances has about 15,000."""

OLD_SECONDS = {Lane.FAST: 300, Lane.SLOW: 900, Lane.STATIC: 7200, Lane.EVENT: 300}
"""How old readings may be when the page comes, by this machine's clock, where it says when they were measured."""

TOO_OLD = Absent(Reason.STALE, "the exporter itself says that it was measured too long ago")


def nameable(samples: Iterable[Sample]) -> list[Sample]:
    """Leave out devices and dimensions that are called by what no batch could carry."""
    return [
        msgspec.structs.replace(
            sample, dims=tuple(dim for dim in sample.dims if all(len(label) <= MAX_NAME for label in dim.labels))
        )
        for sample in samples
        if sample.view is None or _is_name(sample.view)
    ]


def whole(samples: Iterable[Sample], at: int) -> list[Sample]:
    """Return one sample a device and lane, as of the oldest of its values; one that is too old has none.

    Args:
        samples: of one page, of any instants.
        at: nanoseconds since 1970 when it came. What was measured later by its own word came then.
    """
    together: dict[tuple[str, Lane], Sample] = {}
    for sample in samples:
        key = (sample.view.key if sample.view is not None else "", sample.lane)
        known = together.get(key)
        sample = _not_too_old(msgspec.structs.replace(sample, measured_at=min(sample.measured_at, at)), at)
        together[key] = sample if known is None else _joined(known, sample)
    return list(together.values())


def count(samples: Sequence[Sample]) -> tuple[int, int]:
    """Return how many devices samples speak of, and how many values they have."""
    devices = {sample.view.key for sample in samples if sample.view is not None}
    return len(devices), sum(len(sample.values) + len(sample.dims) for sample in samples)


def _is_name(view: View) -> bool:
    names = (view.uuid, view.instance, view.parent)
    return all(name is None or 0 < len(name) <= MAX_NAME for name in names)


def _not_too_old(sample: Sample, at: int) -> Sample:
    if at - sample.measured_at <= OLD_SECONDS[sample.lane] * NANOS:
        return sample
    return msgspec.structs.replace(
        sample,
        measured_at=at,  # since when it is known to be absent
        values=dict.fromkeys(sample.values, TOO_OLD),
        dims=tuple(DimValue(dim.metric, dim.labels, TOO_OLD) for dim in sample.dims),
    )


def _joined(one: Sample, other: Sample) -> Sample:
    values: dict[str, Value | Absent] = {**one.values, **other.values}
    at = min(one.measured_at, other.measured_at)
    return msgspec.structs.replace(one, values=values, dims=(*one.dims, *other.dims), measured_at=at)
