"""The snapshot in the Prometheus text format (version 0.0.4), under gpufleet's own names.

Every metric of the catalogue is `gpufleet_` and its name. A reading without a value has no series;
`gpufleet_reading_absent` says which those are, and why. A state has one series for each of its names, 1 for the
one it is in and 0 for the others. Texts that seldom change are labels of `gpufleet_gpu_info` and
`gpufleet_host_info`, which are always 1. `gpufleet_measured_timestamp_seconds` says by reader and lane when a subject's
readings were measured. Series of a MIG device or vGPU instance also carry the UUID of its GPU (`gpu`)
and which part of it they are about.
"""

from collections.abc import Iterable, Mapping

from gpufleet.exporters.exposition import Page, labelled
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, MetricKind
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Device, ReaderReport, Snapshot
from gpufleet.model.status import ReaderState
from gpufleet.model.view import ViewKind

PREFIX = "gpufleet_"
MEASURED = "gpufleet_measured_timestamp_seconds"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_JOINED_ELSEWHERE = {
    "gpu_name",
    "gpu_pci_address",
    "mig_profile",
    "mig_gpu_instance",
    "mig_compute_instance",
    "vgpu_type",
    "vgpu_vm_id",
}
"""Info texts that every series of a device already carries as labels."""


_INSTANCE_LABELS = {
    ViewKind.MIG: (
        ("profile", "mig_profile"),
        ("gpu_instance", "mig_gpu_instance"),
        ("compute_instance", "mig_compute_instance"),
    ),
    ViewKind.VGPU: (("profile", "vgpu_type"), ("vm_id", "vgpu_vm_id")),
}
"""Labels of an instance, and the texts they show."""


class PrometheusExporter:
    """Renders the page of one machine."""

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the whole page."""
        return render_page(snapshot).encode()


def render_page(snapshot: Snapshot) -> Page:
    """Write everything the snapshot knows; more families can be added to the page."""
    page = Page()
    node = {"node": snapshot.node.name}
    for name, metric in CATALOGUE.items():
        if metric.kind is not MetricKind.INFO:
            page.declare(PREFIX + name, "counter" if metric.kind is MetricKind.COUNTER else "gauge", metric.help)
    page.declare("gpufleet_gpu_info", "gauge", "Texts that seldom change of one device; always 1")
    page.declare("gpufleet_host_info", "gauge", "Texts that seldom change of the machine; always 1")
    page.declare("gpufleet_reading_absent", "gauge", "1 for a reading that has no value, with the reason")
    page.declare(MEASURED, "gauge", "When readings of this reader and lane were measured, since 1970")
    for device in snapshot.devices:
        labels = {**node, **_device_labels(device)}
        _readings(page, labels, device.readings, device.dimensions)
        page.add("gpufleet_gpu_info", labelled({**labels, **_texts(device.readings)}), 1)
    _readings(page, node, snapshot.host.readings, snapshot.host.dimensions)
    page.add("gpufleet_host_info", labelled({**node, **_texts(snapshot.host.readings)}), 1)
    _readers(page, node, snapshot.readers)
    page.declare("gpufleet_capability", "gauge", "1 if this agent can do it here, else 0")
    for name, word in snapshot.capabilities.items():
        page.add("gpufleet_capability", labelled({**node, "capability": name}), int(word == "available"))
    page.declare("gpufleet_build_info", "gauge", "Version of gpufleet and of its catalogue; always 1")
    page.add(
        "gpufleet_build_info",
        labelled({**node, "version": snapshot.version, "catalogue": str(snapshot.catalogue)}),
        1,
    )
    return page


def _device_labels(device: Device) -> dict[str, str]:
    labels = {
        "uuid": device.uuid or "",
        "pci_address": device.pci_address or "",
        "kind": str(device.kind),
        "side": str(device.side),
        "name": device.name or "",
    }
    if device.kind is not ViewKind.GPU:
        labels |= _instance_labels(device)
    # Where no driver tells a UUID, only the instance tells two devices of one board apart.
    return labels if device.uuid or not device.instance else {**labels, "device_instance": device.instance}


def _instance_labels(device: Device) -> dict[str, str]:
    """Return what tells which GPU an instance is cut from, and which part of it that is."""
    labels = {"gpu": (device.parent or "").removeprefix(f"{ViewKind.GPU}/")}
    for label, metric in _INSTANCE_LABELS[device.kind]:
        reading = device.readings.get(metric)
        labels[label] = "" if reading is None or reading.value is None else str(reading.value)
    return labels


def _readings(
    page: Page, labels: dict[str, str], readings: Mapping[str, Reading], dimensions: Iterable[DimReading]
) -> None:
    base = labelled(labels)
    measured: dict[tuple[str, Lane], float] = {}
    for name, reading in readings.items():
        metric = CATALOGUE[name]
        if reading.measured_at is not None:
            measured[reading.reader, metric.lane] = reading.measured_at.timestamp()
        if reading.value is None:
            page.add("gpufleet_reading_absent", f'{base},metric="{name}",reason="{reading.absent}"', 1)
        elif metric.kind is not MetricKind.INFO:
            _value(page, metric, base, reading.value)
    for dim in dimensions:
        metric = CATALOGUE[dim.metric]
        if dim.value is None:
            # A dimension can be called `reason` too, so all of them are written `dim_...` here.
            where = labelled({**labels, **{f"dim_{name}": value for name, value in dim.labels.items()}})
            page.add("gpufleet_reading_absent", f'{where},metric="{dim.metric}",reason="{dim.absent}"', 1)
        else:
            _value(page, metric, f"{base},{labelled(dim.labels)}", dim.value)
        if dim.measured_at is not None:
            measured[dim.reader, metric.lane] = dim.measured_at.timestamp()
    for (reader, lane), at in measured.items():
        page.add(MEASURED, f"{base},{labelled({'reader': reader, 'lane': lane})}", at)


def _value(page: Page, metric: Metric, labels: str, value: Value) -> None:
    if metric.kind is MetricKind.STATE:
        for state in metric.states:
            page.add(PREFIX + metric.name, f'{labels},state="{state}"', int(state == value))
    elif not isinstance(value, str):
        page.add(PREFIX + metric.name, labels, value)


def _texts(readings: Mapping[str, Reading]) -> dict[str, str]:
    return {
        name.removeprefix("gpu_").removeprefix("host_"): str(reading.value)
        for name, reading in readings.items()
        if reading.value is not None and CATALOGUE[name].kind is MetricKind.INFO and name not in _JOINED_ELSEWHERE
    }


_READER_FAMILIES = (
    ("gpufleet_reader_success", "1 if the newest pass of this reader's lane gave anything, 0 if it failed"),
    ("gpufleet_reader_partial", "1 if part of the newest pass stayed without values, else 0"),
    ("gpufleet_reader_duration_seconds", "How long the newest pass took"),
    ("gpufleet_reader_interval_seconds", "How often the lane is meant to be read"),
    ("gpufleet_reader_last_attempt_timestamp_seconds", "When the newest pass began, since 1970"),
    ("gpufleet_reader_last_success_timestamp_seconds", "When a pass last gave anything, since 1970"),
    ("gpufleet_reader_consecutive_failures", "Passes in a row that failed"),
    ("gpufleet_reader_error", "1 for a lane whose newest pass failed or was partial, with the class of its error"),
)


def _readers(page: Page, node: dict[str, str], reports: Iterable[ReaderReport]) -> None:
    for family, words in _READER_FAMILIES:
        page.declare(family, "gauge", words)
    for report in reports:
        labels = labelled({**node, "reader": report.reader, "lane": report.lane})
        page.add("gpufleet_reader_interval_seconds", labels, report.interval_seconds)
        if report.last_success is not None:
            page.add("gpufleet_reader_last_success_timestamp_seconds", labels, report.last_success.timestamp())
        if report.state is ReaderState.NEVER:
            continue
        page.add("gpufleet_reader_success", labels, int(report.state in (ReaderState.OK, ReaderState.PARTIAL)))
        page.add("gpufleet_reader_partial", labels, int(report.state is ReaderState.PARTIAL))
        page.add("gpufleet_reader_duration_seconds", labels, report.duration_seconds)
        page.add("gpufleet_reader_consecutive_failures", labels, report.failures)
        if report.last_attempt is not None:
            page.add("gpufleet_reader_last_attempt_timestamp_seconds", labels, report.last_attempt.timestamp())
        if report.error_class:
            page.add("gpufleet_reader_error", f"{labels},{labelled({'error_class': report.error_class})}", 1)
