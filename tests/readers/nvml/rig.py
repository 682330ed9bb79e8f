"""Limits and accessors shared by the NVML reader tests."""

from collections.abc import Callable

from gpufleet.model.absence import Absent
from gpufleet.model.reading import DimValue, Round, Sample, Value
from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.readers.nvml.watch import NvmlLimits

PATIENT = NvmlLimits(call=20, init=20, hang=60, grace=10, retry=0)
"""For tests without a hang: no deadline that a busy machine could miss."""

HASTY = NvmlLimits(call=1, init=20, hang=3600, grace=10, retry=0)
"""For tests in which a device hangs and the child must not be killed."""

NO_START = NvmlLimits(call=1, init=0.5, hang=3600, grace=10, retry=0)
"""For tests in which NVML does not start."""

Start = Callable[..., NvmlReader]


def device(round_: Round, index: int) -> Sample:
    """Return the sample of the GPU at `index`."""
    (found,) = [sample for sample in round_.samples if sample.view is not None and sample.view.index == index]
    return found


def parts(round_: Round, index: int) -> dict[str, Sample]:
    """Return the samples of all parts of the GPU at `index`, by UUID."""
    parent = device(round_, index).view
    assert parent is not None
    found = {}
    for sample in round_.samples:
        if sample.view is not None and sample.view.parent == parent.key:
            assert sample.view.uuid is not None
            found[sample.view.uuid] = sample
    return found


def own(round_: Round) -> dict[str, Value | Absent]:
    """Return the readings of the machine itself."""
    (found,) = [sample for sample in round_.samples if sample.view is None]
    return found.values


def dim(sample: Sample, metric: str) -> dict[str, Value | Absent]:
    """Return the values of a metric with one dimension, by label."""
    values: list[DimValue] = [value for value in sample.dims if value.metric == metric]
    return {value.labels[0]: value.value for value in values}


def reasons(sample: Sample) -> set[str]:
    """Return the reasons of all absent values."""
    everything = [*sample.values.values(), *(value.value for value in sample.dims)]
    return {str(value.reason) for value in everything if isinstance(value, Absent)}


def dims(sample: Sample, metric: str) -> dict[tuple[str, ...], Value | Absent]:
    """Return the values of a metric with dimensions, by labels. Labels must be unique."""
    values = [value for value in sample.dims if value.metric == metric]
    found = {value.labels: value.value for value in values}
    assert len(found) == len(values)
    return found
