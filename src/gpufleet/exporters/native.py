"""The series of a snapshot under gpufleet's own names, each with its instant of measurement.

For remote write. The page is rendered by `prometheus`, which caches its lines between rounds. A test compares both.
They differ in values that were measured before the present holding of their device: these have no labels of the holder.
"""

import datetime as dt
import itertools
from collections.abc import Generator, Iterable, Mapping

from gpufleet.dialects.native import MEASURED, PREFIX
from gpufleet.exporters.exposition import MetricsPage, format_labels
from gpufleet.exporters.holders import HOLDER_INFO, HOLDER_STATE, holder_labels
from gpufleet.exporters.prometheus import (
    DEVICE_LABEL_TEXTS,
    GPU_INFO,
    HOST_INFO,
    UNLABELLED_TEXTS,
    PageSubject,
    add_agent,
    subjects_of,
)
from gpufleet.exporters.subjects import ABSENT
from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind
from gpufleet.model.holdings import DeviceHolders, HolderState
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Device, Snapshot, Source


def add_native(page: MetricsPage, snapshot: Snapshot, *, holder_labels: bool = False) -> Generator[None, None, None]:
    """Add the readings of devices, machine and agent to a page, in small steps.

    Args:
        page: the page.
        snapshot: the source of the readings.
        holder_labels: as in `NativePage`.
    """
    for name, metric in CATALOGUE.items():
        page.declare(PREFIX + name, "counter" if metric.kind is MetricKind.COUNTER else "gauge", metric.help)
    for family in (GPU_INFO, HOST_INFO, ABSENT, HOLDER_INFO, HOLDER_STATE, MEASURED):
        page.declare(family, "gauge", "")
    for subject in itertools.chain.from_iterable(subjects_of(snapshot, holder_labels=holder_labels)):
        yield
        one = subject.of
        _add_readings(page, subject, one.readings, one.dimensions)
        _add_measured(page, subject, one.sources)
        if isinstance(one, Device):
            _add_info(page, GPU_INFO, subject.labels.base, one.readings, DEVICE_LABEL_TEXTS)
            _add_holders(page, subject.labels.identity, one.holders)
        else:
            _add_info(page, HOST_INFO, subject.labels.base, one.readings, UNLABELLED_TEXTS)
    add_agent(page, snapshot)


def _add_readings(
    page: MetricsPage, subject: PageSubject, readings: Mapping[str, Reading], dimensions: Iterable[DimReading]
) -> None:
    for name, reading in readings.items():
        base = subject.labels.at(reading.measured_at)
        if reading.value is None:
            page.add(ABSENT, f'{base},metric="{name}",reason="{reading.absent}"', 1, reading.measured_at)
        else:
            _add_value(page, CATALOGUE[name], base, reading.value, reading.measured_at)
    for dim in dimensions:
        base = subject.labels.at(dim.measured_at)
        if dim.value is None:
            where = format_labels({f"dim_{name}": value for name, value in dim.labels.items()})
            page.add(ABSENT, f'{base},{where},metric="{dim.metric}",reason="{dim.absent}"', 1, dim.measured_at)
        else:
            _add_value(page, CATALOGUE[dim.metric], f"{base},{format_labels(dim.labels)}", dim.value, dim.measured_at)


def _add_value(page: MetricsPage, metric: Metric, labels: str, value: Value, at: dt.datetime | None) -> None:
    if metric.kind is MetricKind.STATE:
        for state in metric.states:
            page.add(PREFIX + metric.name, f'{labels},state="{state}"', int(state == value), at)
    elif not isinstance(value, str):
        page.add(PREFIX + metric.name, labels, value, at)


def _add_measured(page: MetricsPage, subject: PageSubject, sources: Iterable[Source]) -> None:
    for source in sources:
        labels = format_labels({"reader": source.reader, "lane": source.lane, "provenance": source.provenance})
        page.add(
            MEASURED,
            f"{subject.labels.at(source.measured_at)},{labels}",
            source.measured_at.timestamp(),
            source.measured_at,
        )


def _add_holders(page: MetricsPage, base: str, holders: DeviceHolders | None) -> None:
    if holders is None:
        return
    for holding in holders.holdings:
        page.add(HOLDER_INFO, f"{base},{format_labels(holder_labels(holding))}", 1)
    for state in HolderState:
        page.add(HOLDER_STATE, f'{base},state="{state}"', int(state is holders.state))


def _add_info(
    page: MetricsPage, family: str, base: str, readings: Mapping[str, Reading], known: frozenset[str]
) -> None:
    texts = {
        name.removeprefix("gpu_").removeprefix("host_"): str(reading.value)
        for name, reading in readings.items()
        if reading.value is not None and CATALOGUE[name].kind is MetricKind.INFO and name not in known
    }
    page.add(family, ",".join(filter(None, (base, format_labels(texts)))), 1)
