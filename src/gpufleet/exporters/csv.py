"""The snapshot as CSV (RFC 4180), one reading per row.

A text that a spreadsheet could read as a formula is prefixed with an apostrophe.
"""

import csv
import datetime as dt
import io

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import DimReading, Reading
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.text import escape_formula

COLUMNS = (
    "node",
    "subject",
    "side",
    "uuid",
    "pci_address",
    "name",
    "metric",
    "dimensions",
    "value",
    "unit",
    "absent",
    "detail",
    "reader",
    "measured_at",
)
"""Column names. `subject` is a device key or `machine`; `dimensions` are `name=value`, separated by semicolons."""


class CsvExporter:
    """Renders every reading, present or absent."""

    def render(self, snapshot: Snapshot) -> bytes:
        """Return a header row and one row per reading."""
        page = io.StringIO()
        writer = csv.writer(page)
        writer.writerow(COLUMNS)
        for device in snapshot.devices:
            writer.writerows(_rows(_device_columns(snapshot, device), device.readings, device.dimensions))
        host = [escape_formula(snapshot.node.name), "machine", "", "", "", ""]
        writer.writerows(_rows(host, snapshot.host.readings, snapshot.host.dimensions))
        return page.getvalue().encode()


def _device_columns(snapshot: Snapshot, device: Device) -> list[str]:
    texts = (
        snapshot.node.name,
        device.key,
        device.side,
        device.uuid or "",
        device.pci_address or "",
        device.name or "",
    )
    return [escape_formula(text) for text in texts]


def _rows(subject: list[str], readings: dict[str, Reading], dimensions: tuple[DimReading, ...]) -> list[list[str]]:
    rows = [
        [*subject, *_reading_cells(name, "", r.value, r.absent, r.detail, r.reader, r.measured_at)]
        for name, r in readings.items()
    ]
    for dim in dimensions:
        labels = ";".join(f"{name}={value}" for name, value in dim.labels.items())
        rows.append(
            [
                *subject,
                *_reading_cells(dim.metric, labels, dim.value, dim.absent, dim.detail, dim.reader, dim.measured_at),
            ]
        )
    return rows


def _reading_cells(
    metric: str,
    labels: str,
    value: float | str | None,
    absent: Reason | None,
    detail: str,
    reader: str,
    at: dt.datetime | None,
) -> list[str]:
    return [
        metric,
        escape_formula(labels),
        "" if value is None else escape_formula(value) if isinstance(value, str) else str(value),
        CATALOGUE[metric].unit,
        absent or "",
        escape_formula(detail),
        escape_formula(reader),
        "" if at is None else at.isoformat().replace("+00:00", "Z"),
    ]
