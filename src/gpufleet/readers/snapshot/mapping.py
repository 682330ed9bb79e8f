"""Conversion of a snapshot document to samples. Pure."""

from collections.abc import Callable, Iterable

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.device_state import shared_reason
from gpufleet.model.reading import READER_PRECEDENCE, DimReading, DimValue, Reading, Sample, Value, value_of
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderState
from gpufleet.model.time import to_ns
from gpufleet.model.view import Side, View, ViewKind

NAME = "snapshot"

MAX_AGE_NS = 3600 * 10**9
"""Maximum age of a reading relative to the document's time; older readings get this age, as none of them is current."""

_GPU_READERS = ("nvml", "dcgm", "nvidia_smi")

_Key = tuple[str, int]


def samples_of(snapshot: Snapshot, lane: Lane, received_at: int) -> tuple[Sample, ...]:
    """Return the samples of a lane.

    Measurement times are converted to this machine's clock: the document's time becomes the time of receipt, and each
    reading keeps its age. The other machine's clock error has no effect.

    Args:
        snapshot: the document.
        lane: lane of the readings.
        received_at: nanoseconds since 1970 by this machine's clock.
    """
    document_at = to_ns(snapshot.measured_at)

    def local_time(reading: Reading | DimReading) -> int:
        measured = reading.measured_at
        age = 0 if measured is None or measured.tzinfo is None else document_at - to_ns(measured)
        return received_at - min(max(age, 0), MAX_AGE_NS)

    found: list[Sample] = []
    for device in snapshot.devices:
        if device.side is Side.HOST and device.kind is not ViewKind.VGPU:
            found += _samples(device.view, device.readings.items(), device.dimensions, lane, local_time)
    host = [item for item in snapshot.host.readings.items() if item[1].reader in _GPU_READERS]
    found += _samples(None, host, (), lane, local_time)
    return tuple(found)


def why_no_gpu(snapshot: Snapshot) -> Absent:
    """Return the reason for a snapshot without GPUs: the error of its GPU reader."""
    for report in snapshot.readers:
        if report.reader in _GPU_READERS and (report.state is ReaderState.FAILED or report.last_error):
            reason = Reason(report.error_class) if report.error_class else Reason.READER_FAILED
            reason = Reason.READER_FAILED if reason is Reason.UNKNOWN else shared_reason(reason)
            return Absent(reason, report.last_error)
    return Absent(Reason.NO_SUPPORTED_GPU, "gpufleet found no GPU there")


def _samples(
    view: View | None,
    readings: Iterable[tuple[str, Reading]],
    dimensions: Iterable[DimReading],
    lane: Lane,
    instant: Callable[[Reading | DimReading], int],
) -> list[Sample]:
    values: dict[_Key, dict[str, Value | Absent]] = {}
    dims: dict[_Key, list[DimValue]] = {}
    for name, reading in readings:
        if name in CATALOGUE and CATALOGUE[name].lane is lane:
            values.setdefault((_reader(reading), instant(reading)), {})[name] = value_of(reading)
    for dim in dimensions:
        metric = CATALOGUE.get(dim.metric)
        if metric is not None and metric.lane is lane and set(dim.labels) == set(metric.dims):
            labels = tuple(dim.labels[name] for name in metric.dims)
            dims.setdefault((_reader(dim), instant(dim)), []).append(DimValue(dim.metric, labels, value_of(dim)))
    return [
        Sample(
            view=view,
            reader=reader,
            lane=lane,
            measured_at=at,
            values=values.get((reader, at), {}),
            dims=tuple(dims.get((reader, at), ())),
        )
        for reader, at in sorted({*values, *dims})
    ]


def _reader(reading: Reading | DimReading) -> str:
    return reading.reader if reading.reader in READER_PRECEDENCE else NAME
