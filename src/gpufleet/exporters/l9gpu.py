"""The snapshot as a page under l9gpu's names. GPUs only, as in that project.

l9gpu has no page. Names and labels are those of its guides: OpenTelemetry's names with underscores, without a unit
(`gpu_utilization{k8s_pod_name,job_id}`). The series and the labels of a holder are those of the points that
`otlp_dialects` sends. The name of the cluster is left to the scraper, as on every page.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping

from gpufleet.dialects.l9gpu import HOST, L9GPU, QUOTIENTS, SUM
from gpufleet.dialects.otel import KIND, PCI, SIDE, OtelPoint
from gpufleet.exporters.exposition import MetricsPage, format_labels, prometheus_name
from gpufleet.exporters.holders import holder_at
from gpufleet.exporters.otlp_dialects import L9gpuDialect
from gpufleet.exporters.prometheus import guest_labels
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.time import to_ns
from gpufleet.model.view import Side

_OWN = frozenset({KIND, SIDE, PCI})
"""Attributes that l9gpu does not have. They mark points for a hub, which does not read these pages."""


def add_l9gpu(page: MetricsPage, snapshot: Snapshot) -> None:
    """Add the l9gpu families to a page. A GPU without a UUID has none."""
    units = {row.name: row.unit for row in L9GPU} | {row.name: row.unit for row in QUOTIENTS} | {SUM.name: SUM.unit}
    for name, unit in units.items():
        page.declare(prometheus_name(name), "gauge", f"{name} of l9gpu, unit {unit}")
    _add_gpus(page, snapshot.devices, snapshot.node.name, {})
    for guest in snapshot.guests:
        _add_gpus(page, guest.devices, guest.machine.name or guest.name, guest_labels(guest))


def _add_gpus(page: MetricsPage, devices: Iterable[Device], host: str, more: Mapping[str, str]) -> None:
    dialect, seen = L9gpuDialect(), set[str]()
    for device in devices:
        own = dialect.device_attributes(device, {}, {HOST: host})
        if own is None or device.uuid is None or device.uuid in seen or device.side is Side.PCI_ONLY:
            continue
        seen.add(device.uuid)  # receivers reject a page with duplicate series
        identity = {name: text for name, text in own.items() if name not in _OWN}
        for point, at in _points(dialect, device):
            holding = holder_at(device.holders, to_ns(at))
            held = {} if holding is None else dialect.holder_attributes(holding)
            labels = {**_labels(held), **_labels({**identity, **point.attributes}), **more}
            page.add(prometheus_name(point.name), format_labels(labels), point.value, at)


def _points(dialect: L9gpuDialect, device: Device) -> Iterator[tuple[OtelPoint, dt.datetime]]:
    """Yield the points of a GPU with their instants of measurement."""
    for name, reading in device.readings.items():
        if reading.value is not None and reading.measured_at is not None:
            for point in dialect.points_of(name, (), reading.value):
                yield point, reading.measured_at
    for dim in device.dimensions:
        if dim.value is not None and dim.measured_at is not None:
            for point in dialect.points_of(dim.metric, tuple(dim.labels.values()), dim.value):
                yield point, dim.measured_at
    for derived in dialect.derived_points(device):
        yield derived.point, derived.at


def _labels(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes as labels. Of two attributes with one name, the first by name is kept."""
    labels: dict[str, str] = {}
    for name, text in sorted(attributes.items()):
        labels.setdefault(prometheus_name(name), text)
    return labels
