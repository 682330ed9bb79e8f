"""Under whose names OTLP goes out: what each dialect makes of a device and of its readings."""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from gpufleet.dialects import l9gpu, l9gpu_points, otel
from gpufleet.exporters.otlp_resource import texts
from gpufleet.model.reading import Value
from gpufleet.model.snapshot import Device, Host


class Computed(NamedTuple):
    """A point of several readings: of which instant, and who read the one that it is told of."""

    point: otel.Point
    at: dt.datetime
    reader: str


class Names(Protocol):
    """One dialect."""

    def resource(self, cluster: str) -> Mapping[str, str]:
        """Return attributes of a machine's resource, beside those that every one has."""
        ...

    def about(
        self, device: Device, of_machine: Mapping[str, str], resource: Mapping[str, str]
    ) -> dict[str, str] | None:
        """Return what names a device in its points, or None where the dialect has no word for it.

        Args:
            device: the device.
            of_machine: its machine's texts, by catalogue name.
            resource: its machine's attributes.
        """
        ...

    def points_of(self, metric: str, labels: tuple[str, ...], value: Value) -> Iterable[otel.Point]:
        """Return the points of one value."""
        ...

    def computed(self, of: Device | Host) -> Iterable[Computed]:
        """Return points that are of several readings together."""
        ...


class OtelNames:
    """OpenTelemetry's conventions, and our own names beside them."""

    def resource(self, cluster: str) -> Mapping[str, str]:
        """Return nothing more."""
        return {}

    def about(self, device: Device, of_machine: Mapping[str, str], resource: Mapping[str, str]) -> dict[str, str]:
        """Return identity, product and versions."""
        return otel.device_attributes(device.view, {**of_machine, **texts(device.readings)})

    def points_of(self, metric: str, labels: tuple[str, ...], value: Value) -> Iterable[otel.Point]:
        """Return at least one: what has no name of a convention has ours."""
        return otel.points_of(metric, labels, value)

    def computed(self, of: Device | Host) -> Iterable[Computed]:
        """Return none: what can be computed is left to whoever asks."""
        return ()


class L9gpuNames:
    """l9gpu's: of GPUs only."""

    def resource(self, cluster: str) -> Mapping[str, str]:
        """Return the maker and the cluster, as its own resources have them."""
        return {l9gpu.VENDOR: "nvidia", l9gpu.CLUSTER: cluster}

    def about(
        self, device: Device, of_machine: Mapping[str, str], resource: Mapping[str, str]
    ) -> dict[str, str] | None:
        """Return index, identity and product, and once more whose it is."""
        return l9gpu_points.device_attributes(device.view, device.name, resource)

    def points_of(self, metric: str, labels: tuple[str, ...], value: Value) -> Iterable[otel.Point]:
        """Return those that it has a name for."""
        return l9gpu_points.points_of(metric, labels, value)

    def computed(self, of: Device | Host) -> Iterator[Computed]:
        """Return quotients and sums that its rules and dashboards ask for."""
        for row in l9gpu.QUOTIENTS:
            reading, by = of.readings.get(row.metric), of.readings.get(row.by)
            if reading is None or reading.measured_at is None or by is None:
                continue
            point = l9gpu_points.quotient(row, reading.value, by.value)
            if point is not None:
                yield Computed(point, reading.measured_at, reading.reader)
        parts = [dim for dim in of.dimensions if dim.metric == l9gpu.SUM.metric]
        instants = [dim.measured_at for dim in parts if dim.measured_at is not None]
        total = l9gpu_points.sum_of(dim.value for dim in parts)
        if total is not None and instants:
            yield Computed(total, max(instants), parts[0].reader)


NAMES: dict[str, Names] = {"otel": OtelNames(), "l9gpu": L9gpuNames()}
"""Dialects by their names in the configuration."""
