"""What a person's statement may read: views over the tables, in the words of the documentation. Pure.

A table's layout may change with the schema's version; a view's columns are only ever added to. Each view shows a row
once, as the tables do once they are merged.

What a view for people is, and the words for columns that several have. Pure.

Views over minutes and hours: what is left of samples when their days are over. Pure.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b

import msgspec

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage, ValueType
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.stores.clickhouse.schema.tables import metric_type


class Shown(msgspec.Struct, frozen=True):
    """One column of a view: its name, what it is made of, what it says, and whether it is a metric's."""

    name: str
    made_of: str
    help: str
    of_metric: bool = False


class SqlView(msgspec.Struct, frozen=True, kw_only=True):
    """One view.

    Attributes:
        name: as in SQL.
        help: what one row is.
        columns: in order.
        source: what stands after FROM.
        metrics: which columns of metrics it has, for the reference: they are too many to be listed there.
    """

    name: str
    help: str
    columns: tuple[Shown, ...]
    source: str
    metrics: str = ""


WORDS = {
    "cluster": "id of the cluster",
    "machine": "the hub's id of the machine",
    "view": "key of the device's view, such as `gpu/GPU-…`; empty for the machine itself",
    "reader": "who read it",
    "lane": "schedule that it is read on: static, fast, slow, event",
    "provenance": "who measured: `host_local_probe`, `slice_guest`, `imported`, …",
    "measured_at": "when it was measured, by the machine's clock",
    "received_at": "when the hub received it, or the first relay before it, by the hub's clock",
    "reported_at": "when it was last told, by the hub's clock",
    "epoch": "run of the sender's sequence numbers",
    "seq": "number of the batch in it",
    "driver_session": "another number is another start of the driver: counters begin again",
    "kind": "`gpu`, `mig` or `vgpu`",
    "side": "`host`, `guest`, `vgpu_host` or `pci_only`",
    "uuid": "of the device, or NULL",
    "pci_address": "or NULL",
    "instance": "of a vGPU, or NULL",
    "parent": "key of the view that it is a part of, or NULL",
    "index": "the driver's position number when last told; it names nothing",
    "metric": "name in the catalogue",
    "labels": "values of the metric's dimensions, in their order",
    "text": "what it says",
    "since": "when it was first measured so",
    "state": "how the reader was doing",
    "interval_seconds": "how often it reads",
    "last_attempt": "or NULL",
    "last_success": "or NULL",
    "duration_seconds": "of the last pass",
    "failures": "in a row",
    "error_class": "or empty",
    "last_error": "in its own words, or empty",
    "total": "processes that there were; more than are listed where the agent cut the list",
}


def same(names: str) -> tuple[Shown, ...]:
    """Return columns that are what the table has, by their names with blanks between them."""
    return tuple(Shown(name, f"`{name}`", WORDS[name]) for name in names.split())


def escaped(text: str) -> str:
    """Return a text as it stands in a literal."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


_TELLER = "cluster machine view reader lane provenance"
_WINDOWS_CURRENT = (
    "FINAL WHERE (toStartOfHour(at), version) IN (SELECT hour, max(version) FROM rolled_hours GROUP BY hour)"
)
"""An attempt that was cut short, or knew less, is no answer (`rollup/tables.py`)."""

_SPANS = (("minute", "a minute", "1m", " Fractions may be rounded to seven digits."), ("hour", "an hour", "1h", ""))
_AT = "when the {} began; the newest two hours are not made yet"

_PARTS = {
    MetricKind.GAUGE: {
        "min": "least",
        "max": "greatest",
        "avg": "mean of the samples",
        "count": "samples that had a value",
    },
    MetricKind.COUNTER: {"last": "last value", "increase": "by how much it grew, over starts of the driver too"},
    MetricKind.STATE: {"last": "last state"},
}
_TAILS = {MetricKind.GAUGE: "tail_gauge", MetricKind.COUNTER: "tail_counter", MetricKind.STATE: "tail_state"}

_METRICS = (
    "for each metric that has no dimensions and is no text, by its name in [metrics.md](metrics.md): of a gauge "
    "`_min`, `_max`, `_avg` and `_count` (samples that had a value), of a counter `_last` and `_increase` (over starts "
    "of the driver too), of a state `_last`; NULL, or a count of 0, where no sample had a value"
)


def _part(metric: Metric, part: str) -> str:
    """Return what a row has of a part of a metric; a state by its name."""
    if metric.storage is Storage.CORE:
        value = f"`{metric.name}_{part}`"
    else:
        prefix = _TAILS[metric.kind]
        value = f"{prefix}_{part}[indexOf({prefix}_ids, {metric.id})]"
        if part != "count":  # outside an array stands 0, which is right for a count
            value = f"if(has({prefix}_ids, {metric.id}), {value}, NULL)"
    if metric.kind is MetricKind.STATE:
        names = ", ".join(f"'{escaped(name)}'" for name in metric.states)
        value = f"if(isNull({value}), NULL, [{names}][assumeNotNull({value}) + 1])"
    return value


_STATES = ", ".join(
    f"'{metric.name}'"
    for metric in CATALOGUE.values()
    if metric.kind is MetricKind.STATE and metric.storage not in (Storage.CORE, Storage.TAIL)
)


def _whole(part: str) -> str:
    """Return a part of a counter with dimensions; a state is kept as a position, which is nobody's number."""
    return f"if(metric IN ({_STATES}), NULL, int_{part})"


def _counted(part: str) -> str:
    return f"coalesce(toFloat64({_whole(part)}), float_{part})"


def _windows_metrics() -> Iterator[Shown]:
    for metric in CATALOGUE.values():
        if metric.storage in (Storage.CORE, Storage.TAIL):
            for part, words in _PARTS[metric.kind].items():
                yield Shown(f"{metric.name}_{part}", _part(metric, part), f"{metric.name}: {words}", of_metric=True)


def _at(span: str) -> Shown:
    return Shown("at", "at", _AT.format(span))


def _all(span: str, one: str, table: str, digits: str) -> Iterator[SqlView]:
    yield SqlView(
        name=f"fleet_{span}s",
        help=f"What the samples of {one} come to, by device and reader; ask with bounds on `at`, `cluster` and "
        f"`machine`.{digits}",
        columns=(*same(_TELLER), _at(span), Shown("samples", "samples", "how many there were"), *_windows_metrics()),
        source=f"windows_{table} {_WINDOWS_CURRENT}",
        metrics=_METRICS,
    )
    yield SqlView(
        name=f"fleet_dimension_{span}s",
        help=f"What the values with dimensions of {one} come to; ask with bounds as of `fleet_{span}s`.",
        columns=(
            *same(f"{_TELLER} metric labels"),
            _at(span),
            *(Shown(part, part, f"{_PARTS[MetricKind.GAUGE][part]}; of gauges") for part in ("min", "max", "avg")),
            Shown("count", "count", _PARTS[MetricKind.GAUGE]["count"]),
            Shown("last", _counted("last"), "last value; of counters, inexact past 2^53"),
            Shown("last_integer", _whole("last"), "the same where it is whole: exact"),
            Shown("increase", _counted("increase"), "by how much it grew, over starts of the driver too; of counters"),
            Shown("increase_integer", _whole("increase"), "the same where it is whole: exact"),
        ),
        source=f"dim_windows_{table} {_WINDOWS_CURRENT}",
    )
    yield SqlView(
        name=f"fleet_state_{span}s",
        help=f"How long a device was in a state in {one}; what nobody knew is in no row.",
        columns=(
            *same(f"{_TELLER} metric labels"),
            Shown("state", "state", "one of the metric's states"),
            _at(span),
            Shown("seconds", "seconds", "of it"),
        ),
        source=f"state_windows_{table} {_WINDOWS_CURRENT}",
    )


WINDOW_VIEWS = tuple(view for span, one, table, digits in _SPANS for view in _all(span, one, table, digits))
"""All of them, in the order of the documentation."""


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
