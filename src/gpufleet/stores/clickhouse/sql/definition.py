"""Definition of an SQL view, and its statement. Pure."""

from hashlib import blake2b

import msgspec


class ViewColumn(msgspec.Struct, frozen=True):
    """Column of a view: name, SQL expression, help, and whether it is a metric."""

    name: str
    expression: str
    help: str
    of_metric: bool = False


class SqlView(msgspec.Struct, frozen=True, kw_only=True):
    """SQL view.

    Attributes:
        name: SQL name.
        help: meaning of a row.
        columns: columns in order.
        source: text after FROM.
        metrics: description of the metric columns for the reference, which does not list them.
    """

    name: str
    help: str
    columns: tuple[ViewColumn, ...]
    source: str
    metrics: str = ""


COLUMN_HELP = {
    "cluster": "id of the cluster",
    "machine": "the hub's id of the machine",
    "view": "key of the device's view, such as `gpu/GPU-…`; empty for the machine itself",
    "reader": "reader of the value",
    "lane": "schedule of the reading: static, fast, slow, event",
    "provenance": "source of the measurement: `host_local_probe`, `slice_guest`, `imported`, …",
    "measured_at": "time of measurement, by the machine's clock",
    "received_at": "time of receipt by the hub, or by the first relay before it, by the hub's clock",
    "reported_at": "time of the newest report, by the hub's clock",
    "epoch": "epoch of the sender's sequence numbers",
    "seq": "sequence number of the batch in its epoch",
    "driver_session": "differs after a restart of the driver, which resets counters",
    "kind": "`gpu`, `mig` or `vgpu`",
    "side": "`host`, `guest`, `vgpu_host` or `pci_only`",
    "uuid": "UUID of the device, or NULL",
    "pci_address": "PCI address, or NULL",
    "instance": "instance id of a vGPU, or NULL",
    "parent": "key of the parent view, or NULL",
    "index": "the driver's last reported device index; not an identity",
    "metric": "metric name in the catalogue",
    "labels": "values of the metric's dimensions, in order",
    "text": "the text",
    "since": "first measurement of this text",
    "state": "state of the reader",
    "interval_seconds": "reading interval, or NULL",
    "last_attempt": "last attempt to read, or NULL",
    "last_success": "last successful reading, or NULL",
    "duration_seconds": "duration of the last reading, or NULL",
    "failures": "consecutive failures",
    "error_class": "class of the last error, or empty",
    "last_error": "message of the last error, or empty",
    "total": "number of processes; greater than the list if the agent truncated it",
}


def table_columns(names: str) -> tuple[ViewColumn, ...]:
    """Return view columns that equal table columns, by names separated by spaces."""
    return tuple(ViewColumn(name, f"`{name}`", COLUMN_HELP[name]) for name in names.split())


def nan_column(name: str) -> ViewColumn:
    """Return the view column of a table column in which NaN is an unknown number: NULL in the view."""
    return ViewColumn(name, f"if(isNaN(`{name}`), NULL, `{name}`)", COLUMN_HELP[name])


def escape_literal(text: str) -> str:
    """Escape a text for an SQL literal."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def named_source(table: str) -> str:
    """Return the source of a table whose rows have subject numbers, with the columns of their subjects.

    `subjects` is not FINAL: a number has one meaning, and is inserted once.
    """
    return f"{table} FINAL INNER JOIN subjects ON {table}.subject = subjects.number"


def render_view(view: SqlView) -> str:
    """Return the statement that creates or replaces the view."""
    columns = ",\n".join(f"    {column.expression} AS `{column.name}`" for column in view.columns)
    return f"CREATE OR REPLACE VIEW {view.name} AS SELECT\n{columns}\nFROM {view.source}\nCOMMENT '{view_digest(view)}'"


def view_digest(view: SqlView) -> str:
    """Return the comment that identifies this build's definition of a view."""
    definition = "\n".join([view.source, *(f"{column.name}: {column.expression}" for column in view.columns)])
    return f"gpufleet {blake2b(definition.encode(), digest_size=8).hexdigest()}"
