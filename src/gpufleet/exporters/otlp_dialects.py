"""OTLP dialects: attributes of devices and points of readings under the names of each convention."""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from gpufleet.dialects import l9gpu, l9gpu_points, otel, otel_holders
from gpufleet.exporters.otlp_resource import info_texts
from gpufleet.model.holdings import Holding
from gpufleet.model.reading import Value
from gpufleet.model.snapshot import Device, Host


class DerivedPoint(NamedTuple):
    """A point computed from several readings, with the instant and the reader of the main one."""

    point: otel.OtelPoint
    at: dt.datetime
    reader: str


class OtlpDialect(Protocol):
    """Names of one convention."""

    def resource_attributes(self, cluster: str) -> Mapping[str, str]:
        """Return resource attributes beyond the common ones."""
        ...

    def service_attributes(self) -> Mapping[str, str]:
        """Return resource attributes that replace the agent's own if it exports no other dialect."""
        ...

    def device_attributes(
        self, device: Device, of_machine: Mapping[str, str], resource: Mapping[str, str]
    ) -> dict[str, str] | None:
        """Return the attributes that identify a device, or None if the dialect does not cover it.

        Args:
            device: the device.
            of_machine: info texts of its machine, by catalogue name.
            resource: resource attributes of its machine.
        """
        ...

    def holder_attributes(self, holding: Holding) -> dict[str, str]:
        """Return the attributes of the holder of a device."""
        ...

    def points_of(self, metric: str, labels: tuple[str, ...], value: Value) -> Iterable[otel.OtelPoint]:
        """Return the points of one value."""
        ...

    def derived_points(self, of: Device | Host) -> Iterable[DerivedPoint]:
        """Return points computed from several readings."""
        ...


class OtelDialect:
    """OpenTelemetry semantic conventions, and gpufleet's own names for other metrics."""

    def resource_attributes(self, cluster: str) -> Mapping[str, str]:
        """Return no additional attributes."""
        return {}

    def service_attributes(self) -> Mapping[str, str]:
        """Return no attributes: the agent's own are those of the convention."""
        return {}

    def device_attributes(
        self, device: Device, of_machine: Mapping[str, str], resource: Mapping[str, str]
    ) -> dict[str, str]:
        """Return identity, product and versions of a device."""
        return otel.device_attributes(device.view, {**of_machine, **info_texts(device.readings)})

    def holder_attributes(self, holding: Holding) -> dict[str, str]:
        """Return pod, container, owners, job and virtual machine."""
        return otel_holders.holder_attributes(holding)

    def points_of(self, metric: str, labels: tuple[str, ...], value: Value) -> Iterable[otel.OtelPoint]:
        """Return at least one point: a metric without a conventional name has gpufleet's own."""
        return otel.points_of(metric, labels, value)

    def derived_points(self, of: Device | Host) -> Iterable[DerivedPoint]:
        """Return no points: derived values are left to the consumer."""
        return ()


class L9gpuDialect:
    """Names of l9gpu; GPUs only."""

    def resource_attributes(self, cluster: str) -> Mapping[str, str]:
        """Return vendor and cluster, as in l9gpu's own resources."""
        return {l9gpu.VENDOR: "nvidia", l9gpu.CLUSTER: cluster}

    def service_attributes(self) -> Mapping[str, str]:
        """Return the service name by which dashboards for l9gpu select its resources."""
        return {l9gpu.SERVICE: "l9gpu"}

    def device_attributes(
        self, device: Device, of_machine: Mapping[str, str], resource: Mapping[str, str]
    ) -> dict[str, str] | None:
        """Return index, identity and product of a GPU, and the owner attributes of its resource."""
        return l9gpu_points.device_attributes(device.view, device.name, resource)

    def holder_attributes(self, holding: Holding) -> dict[str, str]:
        """Return pod, container and owners as OpenTelemetry does, and a job as l9gpu's collector does."""
        return otel_holders.holder_attributes(holding, l9gpu.JOB)

    def points_of(self, metric: str, labels: tuple[str, ...], value: Value) -> Iterable[otel.OtelPoint]:
        """Return the points of a value; none if l9gpu has no name for the metric."""
        return l9gpu_points.points_of(metric, labels, value)

    def derived_points(self, of: Device | Host) -> Iterator[DerivedPoint]:
        """Return the quotients and sums used by l9gpu's rules and dashboards."""
        for row in l9gpu.QUOTIENTS:
            reading, by = of.readings.get(row.metric), of.readings.get(row.by)
            if reading is None or reading.measured_at is None or by is None:
                continue
            point = l9gpu_points.quotient(row, reading.value, by.value)
            if point is not None:
                yield DerivedPoint(point, reading.measured_at, reading.reader)
        parts = [dim for dim in of.dimensions if dim.metric == l9gpu.SUM.metric]
        instants = [dim.measured_at for dim in parts if dim.measured_at is not None]
        total = l9gpu_points.sum_of(dim.value for dim in parts)
        if total is not None and instants:
            yield DerivedPoint(total, max(instants), parts[0].reader)


OTLP_DIALECTS: dict[str, OtlpDialect] = {"otel": OtelDialect(), "l9gpu": L9gpuDialect()}
"""Dialects by name in the configuration."""
