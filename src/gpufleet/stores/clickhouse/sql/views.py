"""What a person's statement may read: views over the tables, in the words of the documentation. Pure.

A table's layout may change with the schema's version; a view's columns are only ever added to. Each view shows a row
once, as the tables do once they are merged.
"""

from collections.abc import Callable
from hashlib import blake2b

from gpufleet.model.catalogue import CATALOGUE, Metric, Storage, ValueType
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.stores.clickhouse.schema import metric_type
from gpufleet.stores.clickhouse.sql.shown import Shown, SqlView, escaped, same
from gpufleet.stores.clickhouse.sql.windows import WINDOW_VIEWS

LATEST, SAMPLES = "latest", "samples"


_SUBJECT = "cluster machine view"
_SAMPLE = f"{_SUBJECT} reader lane provenance measured_at received_at epoch seq driver_session"


def _of_arrays(metric: Metric, prefix: str = "") -> str:
    """Return what a row has of a metric in arrays of that prefix; a state by its name."""
    kind = "float" if metric.type is ValueType.FLOAT else "int"
    ids = f"{prefix}{kind}_ids"
    value = f"{prefix}{kind}_values[indexOf({ids}, {metric.id})]"
    if metric.type is ValueType.ENUM:
        names = ", ".join(f"'{name}'" for name in metric.states)
        value = f"[{names}][{value} + 1]"
    return f"if(has({ids}, {metric.id}), {value}, NULL)"


def _of_samples(metric: Metric) -> str:
    return f"`{metric.name}`" if metric.storage is Storage.CORE else _of_arrays(metric, "tail_")


def _of_latest(metric: Metric) -> str:
    value = _of_arrays(metric)
    is_column = metric.storage is Storage.CORE and metric.type is ValueType.ENUM
    return f"CAST({value}, '{escaped(metric_type(metric))}')" if is_column else value


def _metrics(of: Callable[[Metric], str]) -> tuple[Shown, ...]:
    """Return a column for each metric that has one value a sample; where it is NULL, `fleet_absences` says why."""
    return tuple(
        Shown(metric.name, of(metric), f"{metric.help}{f'; {metric.unit}' if metric.unit else ''}", of_metric=True)
        for metric in CATALOGUE.values()
        if metric.storage in (Storage.CORE, Storage.TAIL)
    )


_EACH = (
    "a column for each metric that has no dimensions and is no text, by its name in [metrics.md](metrics.md), in its "
    "unit; NULL where it is absent (`fleet_absences` says why) or of another kind of subject"
)

_CURRENT = "(cluster, machine, view, reader, lane, info_set)"

VIEWS = (
    SqlView(
        name="fleet_devices",
        help="A device as one reader describes it, as it was last told.",
        columns=same(f"{_SUBJECT} reader kind side uuid pci_address instance parent index reported_at"),
        source="views FINAL",
    ),
    SqlView(
        name="fleet_latest",
        help="The newest sample of each device (and of each machine, with an empty `view`), reader and lane. How old "
        "it is says `received_at`: nothing is left out for its age.",
        columns=(*same(_SAMPLE), *_metrics(_of_latest)),
        source=f"{LATEST} FINAL",
        metrics=_EACH,
    ),
    SqlView(
        name="fleet_samples",
        help="Every sample over time; ask with bounds on `measured_at`, `cluster` and `machine`.",
        columns=(*same(_SAMPLE), *_metrics(_of_samples)),
        source=f"{SAMPLES} FINAL",
        metrics=_EACH,
    ),
    SqlView(
        name="fleet_absences",
        help="A reading that is absent in the newest sample, and why.",
        columns=(
            *same(f"{_SUBJECT} reader lane measured_at"),
            Shown("metric", "absent_metric", "name in the catalogue"),
            Shown("reason", "absent_reason", "of the closed set"),
            Shown("detail", "absent_detail", "adds to the reason"),
        ),
        source=f"(SELECT * FROM {LATEST} FINAL WHERE absence_set != 0) AS newest "  # noqa: S608 - names are ours
        "INNER JOIN (SELECT * FROM absence_sets FINAL) AS sets ON newest.absence_set = sets.id "
        "ARRAY JOIN metrics AS absent_metric, reasons AS absent_reason, details AS absent_detail",
    ),
    SqlView(
        name="fleet_dimensions",
        help="A value with dimensions (a link's, an ECC location's) over time; ask with bounds as of `fleet_samples`.",
        columns=(
            *same(f"{_SUBJECT} reader lane provenance measured_at received_at driver_session metric labels"),
            Shown("value", "coalesce(toFloat64(int_value), float_value)", "number, inexact past 2^53; NULL if absent"),
            Shown("integer", "int_value", "the same where it is whole: exact"),
        ),
        source="dim_samples FINAL",
    ),
    SqlView(
        name="fleet_texts",
        help="A text (name, serial, VBIOS, driver, hostname) that stands in the newest sample.",
        columns=same(f"{_SUBJECT} reader lane metric text since received_at"),
        source=f"info FINAL WHERE {_CURRENT} IN (SELECT {_CURRENT[1:-1]} FROM {LATEST} FINAL WHERE info_set != 0)",  # noqa: S608
    ),
    SqlView(
        name="fleet_text_history",
        help="Every text that was ever told, with when.",
        columns=same(f"{_SUBJECT} reader lane metric text since received_at"),
        source="info FINAL",
    ),
    SqlView(
        name="fleet_events",
        help="What happened: XIDs, resets, throttles; the kinds are in the reference of events.",
        columns=(
            *same(_SUBJECT),
            Shown("at", "at", "when it happened, by the machine's clock"),
            Shown("kind", "kind", "such as `xid`"),
            Shown("code", "code", "such as the XID; 0 where the kind has none"),
            Shown("attributes", "mapFromArrays(attribute_names, attribute_values)", "texts by name"),
            *same("received_at"),
        ),
        source="events FINAL",
    ),
    SqlView(
        name="fleet_readers",
        help="How each reader of a machine was doing when last heard of.",
        columns=same(
            "cluster machine reader lane state interval_seconds last_attempt last_success duration_seconds failures "
            "error_class last_error reported_at received_at"
        ),
        source="reader_status FINAL",
    ),
    SqlView(
        name="fleet_holders",
        help="Who holds a device, or held it, as it was told last; `until` is NULL while it lasts.",
        columns=(
            *same(_SUBJECT),
            Shown("kind", "holder_kind", "`pod`, `job`, `vm` or `allocation`"),
            Shown("id", "holder_id", "its identity: UID of a pod, or `namespace/name` where nobody tells it"),
            Shown("name", "holder_name", "for display"),
            Shown("namespace", "holder_namespace", "where it lives, or empty"),
            Shown("parent_kind", "parent_kind", "who holds the holder, or empty"),
            Shown("parent_id", "parent_id", "its identity, or empty"),
            Shown("share", "share", "`exclusive`, `timeslice` (or MPS, where nobody tells) or `mig`"),
            Shown("since", "since", "since when, by whoever told"),
            Shown("until", "until", "until when, or NULL"),
            Shown("methods", "methods", "how it was established, such as `exporter_labels`"),
            Shown("verdict", "verdict", "what the evidence amounts to"),
            *same("reported_at received_at"),
        ),
        source="holdings FINAL",
    ),
    SqlView(
        name="fleet_processes",
        help="A process on a device at an instant, over time; ask with bounds on `measured_at`.",
        columns=(
            *same(f"{_SUBJECT} reader provenance measured_at received_at total"),
            Shown("pid", "a_pid", "process id"),
            Shown("start_time", "a_start", "clock ticks since boot, or NULL"),
            Shown("kinds", "a_kind", "what it holds: compute, graphics, …"),
            Shown("name", "a_name", "empty unless agents are told to send names"),
            *(Shown(name, f"a_{name}", metric.help) for name, metric in PROCESS_READINGS.items()),
        ),
        source="processes FINAL ARRAY JOIN pids AS a_pid, start_times AS a_start, kinds AS a_kind, names AS a_name"
        + "".join(f", `{name}` AS a_{name}" for name in PROCESS_READINGS),
    ),
    SqlView(
        name="fleet_buses",
        help="The PCI devices of a machine, each time that the list changed.",
        columns=(
            *same("cluster machine reported_at received_at"),
            Shown("address", "an_address", "PCI address"),
            Shown("vendor", "a_vendor", "PCI vendor id"),
            Shown("device", "a_device", "PCI device id"),
            Shown("class_code", "a_class", "PCI class"),
            Shown("driver", "a_driver", "kernel driver, or NULL"),
            Shown("numa_node", "a_node", "or NULL"),
            Shown("physical_function", "a_function", "address of it for a virtual function, or NULL"),
        ),
        source="inventory FINAL ARRAY JOIN addresses AS an_address, vendors AS a_vendor, devices AS a_device, "
        "class_codes AS a_class, drivers AS a_driver, numa_nodes AS a_node, physical_functions AS a_function",
    ),
    SqlView(
        name="fleet_kubernetes",
        help="What Kubernetes says of a machine, as each teller said it last; `value` is NULL where it has ended. "
        "How old it is says `received_at`: nothing is left out for its age.",
        columns=(
            *same("cluster machine reader metric"),
            Shown("resource", "resource", "such as `nvidia_com_gpu`, or the label that says it"),
            Shown("value", "value", "how many, or NULL"),
            *same("measured_at received_at"),
        ),
        source="declared FINAL",
    ),
    *WINDOW_VIEWS,
)
"""All of them, in the order of the documentation."""


def render_view(view: SqlView) -> str:
    """Return the statement that makes the view, or makes it anew."""
    columns = ",\n".join(f"    {column.made_of} AS `{column.name}`" for column in view.columns)
    return f"CREATE OR REPLACE VIEW {view.name} AS SELECT\n{columns}\nFROM {view.source}\nCOMMENT '{mark(view)}'"


def mark(view: SqlView) -> str:
    """Return the comment by which a view is known to be this build's."""
    made = "\n".join([view.source, *(f"{column.name}: {column.made_of}" for column in view.columns)])
    return f"gpufleet {blake2b(made.encode(), digest_size=8).hexdigest()}"
