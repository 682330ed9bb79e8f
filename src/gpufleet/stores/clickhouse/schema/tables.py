"""Table definitions, derived from the catalogue. `statements.py` renders them as SQL.

Every table is a ReplacingMergeTree with the identity of a row as its sorting key, so duplicate rows collapse. Only the
engine clause differs between an embedded folder, a server and a replicated cluster.
"""

import enum
from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.model.catalogue import CORE_METRICS, Metric, ValueType
from gpufleet.model.process import PROCESS_READINGS

SCHEMA_VERSION = 1
"""Incremented for table changes that do not follow from the catalogue. A newer store is rejected."""

DEDUPLICATION_WINDOW = 10_000
"""Insert tokens kept per table: at one write per second, longer than a crash and its replay take."""

MERGE_SETTINGS = {"min_parts_to_merge_at_once": 8, "merge_selector_base": 10}
"""Settings of tables that get a part from nearly every flush: the minimum number of parts per merge, and how many times
as large as its largest part a merged part must be.

By default the engine merges nearly every new part with the one or two before it. With the first setting alone, each
merge includes the result of the previous one until that has 4 MB.
See `docs/decisions/0029-merges-are-of-parts-of-similar-size.md`.
"""

BUSY_TABLES = (
    *("samples", "latest", "dim_samples", "reader_status", "processes", "holdings", "holder_states"),
    *("cluster_objects", "collectors"),
)

WIDE_PART_BYTES = 64 << 20
"""Uncompressed size from which a part has files for each column. Below it, all columns of a part are in one file.

With the engine's default of 10 MiB, inserts and small merges write and sync hundreds of files.
See `docs/decisions/0031-small-parts-have-one-file.md`.
"""

TEXT = "LowCardinality(String)"
STRING = "String"
INSTANT = "DateTime64(9, 'UTC')"


class Engine(enum.StrEnum):
    """Variant of the engine clause."""

    PLAIN = "plain"  # embedded, or one server
    REPLICATED = "replicated"  # servers with a Keeper; path and replica name are the servers' defaults


class Column(msgspec.Struct, frozen=True):
    """Column of a table.

    Attributes:
        name: SQL name.
        type: ClickHouse type.
        codec: compression codec; empty for the server's default (LZ4).
    """

    name: str
    type: str
    codec: str = "ZSTD(1)"


class TableDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """Definition of a table.

    Attributes:
        name: SQL name.
        columns: columns in order.
        key: sorting key, which identifies a row.
        version: of rows with equal keys, the row with the greatest value of this column is kept; if empty, the last
            written row.
        partition: partition expression; empty for a single partition.
        lookup: optimised for lookups of single machines, which should read few rows and one file: a fine index
            granularity, and compact parts of any size.
        searched: columns with a bloom filter, for lookups by a text that is not at the start of the key.
        ranged: columns whose least and greatest value are known for each granule, for queries of a range.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    version: str = ""
    partition: str = ""
    lookup: bool = False
    searched: tuple[str, ...] = ()
    ranged: tuple[str, ...] = ()


SUBJECT = (
    Column("cluster", TEXT),
    Column("machine", TEXT),
    Column("view", STRING),
)
"""Subject of a row: cluster id, the hub's machine id, and the view key ('' for the machine itself)."""

_LANE = (Column("reader", TEXT), Column("lane", TEXT))
_RECEIVED = Column("received_at", INSTANT, "Delta, ZSTD(1)")
_NUMBER = (Column("epoch", TEXT), Column("seq", "UInt64", "Delta, ZSTD(1)"))
_REPORTED = Column("reported_at", INSTANT)
SUBJECT_KEY = ("cluster", "machine", "view", "reader", "lane")
"""Columns that a subject number replaces."""

SUBJECT_NUMBER = Column("subject", "UInt32", "Delta, ZSTD(1)")
"""Cluster, machine, view, reader and lane of a row, as the number of a row in `subjects`."""

_SAMPLE_KEY = ("subject", "measured_at")

_REPORT = (
    Column("provenance", TEXT),
    Column("measured_at", INSTANT, "DoubleDelta, ZSTD(1)"),
    _RECEIVED,
    *_NUMBER,
    Column("driver_session", "UInt64"),
    Column("absence_set", "UInt64"),
    Column("info_set", "UInt64"),
)

KNOWN_AFTER = Column("known_after", "Int64", "ZSTD(1)")
"""`known_at` of the row in `latest`, as nanoseconds after `received_at`: 0, or negative for backlog."""

_SAMPLE_TAIL = (
    Column("tail_int_ids", "Array(UInt16)"),
    Column("tail_int_values", "Array(UInt64)"),
    Column("tail_float_ids", "Array(UInt16)"),
    Column("tail_float_values", "Array(Float64)"),
)


_VALUES = (
    Column("int_ids", "Array(UInt16)"),
    Column("int_values", "Array(UInt64)"),
    Column("float_ids", "Array(UInt16)"),
    Column("float_values", "Array(Float64)"),
)
"""Values of any metric by catalogue number: a table that is rewritten constantly should have few columns."""

KNOWN_AT = Column("known_at", INSTANT, "ZSTD(1)")
"""Version of a row in `latest`: the place of the report in the hub's order, independent of senders' clocks."""


HAS_TOTALS = Column("has_totals", "Bool")
"""Return whether a row of `latest` has a number of a metric that contributes to totals."""


def metric_type(metric: Metric) -> str:
    """Return the column type of a core metric.

    Raises:
        ValueError: for a text metric: texts are stored in the table `info`.
    """
    match metric.type:
        case ValueType.INT:
            return "Nullable(UInt64)" if metric.low is not None and metric.low >= 0 else "Nullable(Int64)"
        case ValueType.FLOAT:
            return "Nullable(Float64)"
        case ValueType.ENUM:
            names = ", ".join(f"'{name}' = {position}" for position, name in enumerate(metric.states))
            return f"Nullable(Enum8({names}))"
        case ValueType.TEXT:
            raise ValueError(f"{metric.name}: a text metric has no column in samples")


def _metric_column(metric: Metric) -> Column:
    return Column(metric.name, metric_type(metric))


def _sample_columns(metrics: Iterable[Metric]) -> tuple[Column, ...]:
    return (SUBJECT_NUMBER, *_REPORT, KNOWN_AFTER, *map(_metric_column, metrics), *_SAMPLE_TAIL)


def tables(core: Sequence[Metric] = CORE_METRICS) -> tuple[TableDefinition, ...]:
    """Return every table except rollups, with a column in `samples` for each core metric."""
    return (
        TableDefinition(
            name="samples",
            columns=_sample_columns(core),
            key=_SAMPLE_KEY,
            partition="toDate(measured_at)",
            ranged=("received_at",),
        ),
        LATEST,
        LATEST_POSITION,
        DIM_SAMPLES,
        SUBJECTS,
        ABSENCE_SETS,
        INFO,
        VIEWS,
        READER_STATUS,
        EVENTS,
        HOLDINGS,
        HOLDER_STATES,
        INVENTORY,
        PROCESSES,
        DECLARED,
        CLUSTER_OBJECTS,
        COLLECTORS,
        FINDING_TRANSITIONS,
    )


FAST_CODEC = "LZ4"
"""Codec for short-lived rows: a third less processor time and a third more space than ZSTD."""

LATEST = TableDefinition(
    name="latest",
    columns=tuple(
        msgspec.structs.replace(column, codec=FAST_CODEC)
        for column in (*SUBJECT, *_LANE, *_REPORT, KNOWN_AT, HAS_TOTALS, *_VALUES)
        if column not in _NUMBER
    ),
    key=SUBJECT_KEY,
    version="known_at",
    lookup=True,
)

LATEST_POSITION = TableDefinition(
    name="latest_position",
    columns=(Column("name", STRING), Column("received_at", INSTANT)),
    key=("name",),
    version="received_at",
)
"""The instant before which all rows of `latest` were received, in an embedded store; see `samples/snapshot.py`."""

DIM_SAMPLES = TableDefinition(
    name="dim_samples",
    columns=(
        SUBJECT_NUMBER,
        Column("provenance", TEXT),
        Column("measured_at", INSTANT, "Delta, ZSTD(1)"),
        _RECEIVED,
        *_NUMBER,
        Column("driver_session", "UInt64"),
        Column("metric", TEXT),
        Column("labels", "Array(String)"),
        Column("int_value", "Nullable(UInt64)"),
        Column("float_value", "Nullable(Float64)"),
        Column("absence_set", "UInt64"),
    ),
    key=(*_SAMPLE_KEY, "metric", "labels"),
    partition="toDate(measured_at)",
)

SUBJECTS = TableDefinition(
    name="subjects",
    columns=(Column("number", "UInt32"), *SUBJECT, *_LANE),
    key=SUBJECT_KEY,
    version="number",
    lookup=True,
)
"""Numbers of subjects. Of several numbers of a subject, only the greatest is used; see `samples/subjects.py`."""

ABSENCE_SETS = TableDefinition(
    name="absence_sets",
    columns=(
        Column("id", "UInt64"),
        Column("metrics", "Array(String)"),
        Column("reasons", "Array(String)"),
        Column("details", "Array(String)"),
    ),
    key=("id",),
    lookup=True,
)

INFO = TableDefinition(
    name="info",
    columns=(
        *SUBJECT,
        *_LANE,
        Column("info_set", "UInt64"),
        Column("since", INSTANT),
        Column("before", INSTANT),
        _RECEIVED,
        Column("metric", TEXT),
        Column("text", STRING),
    ),
    key=("cluster", "machine", "view", "reader", "lane", "info_set", "since", "metric"),
    lookup=True,
)

VIEWS = TableDefinition(
    name="views",
    columns=(
        *SUBJECT,
        Column("reader", TEXT),
        Column("kind", TEXT),
        Column("side", TEXT),
        Column("uuid", "Nullable(String)"),
        Column("pci_address", "Nullable(String)"),
        Column("instance", "Nullable(String)"),
        Column("parent", "Nullable(String)"),
        Column("index", "Nullable(Int64)"),
        _REPORTED,
    ),
    key=("cluster", "machine", "view", "reader"),
    version="reported_at",
    lookup=True,
)

READER_STATUS = TableDefinition(
    name="reader_status",
    columns=(
        *SUBJECT[:2],
        *_LANE,
        Column("state", TEXT),
        Column("interval_seconds", "Float64"),  # NaN if unknown, as for the duration
        Column("last_attempt", f"Nullable({INSTANT})"),
        Column("last_success", f"Nullable({INSTANT})"),
        Column("duration_seconds", "Float64"),
        Column("failures", "UInt64"),
        Column("error_class", STRING),
        Column("last_error", STRING),
        _REPORTED,
        _RECEIVED,
    ),
    key=("cluster", "machine", "reader", "lane"),
    version="reported_at",
    lookup=True,
)

EVENTS = TableDefinition(
    name="events",
    columns=(
        *SUBJECT,
        Column("at", INSTANT),
        Column("kind", TEXT),
        Column("code", "Int64"),
        Column("attribute_names", "Array(String)"),
        Column("attribute_values", "Array(String)"),
        _RECEIVED,
    ),
    key=("cluster", "machine", "at", "view", "kind", "code", "attribute_names", "attribute_values"),
    partition="toYYYYMM(at)",
)

_PROCESS_TYPES = {ValueType.INT: "Nullable(UInt64)", ValueType.FLOAT: "Nullable(Float64)"}

_HOLDER = ("kind", "id", "name", "namespace")
"""Identity of a holder; a holder's parent has only these."""

_HOLDER_TEXTS = ("user", "account", "queue", "qos", "array_job", "array_task", "slurm_cluster")
_HOLDER_LISTS = (
    *("owner_kinds", "owner_names", "owner_uids", "owner_api_versions"),
    *("label_names", "label_values", "annotation_names", "annotation_values"),
)
_HOLDER_COUNTS = ("nodes", "gpus")

HOLDINGS = TableDefinition(
    name="holdings",
    columns=(
        *SUBJECT,
        *(Column(f"holder_{part}", STRING) for part in (*_HOLDER, *_HOLDER_TEXTS)),
        *(Column(f"holder_{part}", "Array(String)") for part in _HOLDER_LISTS),
        *(Column(f"holder_{part}", "UInt64") for part in _HOLDER_COUNTS),
        *(Column(f"parent_{part}", STRING) for part in _HOLDER),
        *(Column(name, STRING) for name in ("container", "container_id")),
        Column("steps", "Array(String)"),
        Column("share", TEXT),
        *(Column(name, "UInt64") for name in ("replicas", "total_replicas")),
        Column("claim", STRING),
        Column("since", INSTANT),
        Column("until", f"Nullable({INSTANT})"),
        Column("methods", "Array(String)"),
        Column("verdict", TEXT),
        Column("certain_verdict", TEXT),
        Column("certain_until", f"Nullable({INSTANT})"),
        _REPORTED,
        _RECEIVED,
    ),
    key=("cluster", "machine", "view", "holder_kind", "holder_id", "container", "since"),
    version="reported_at",
    lookup=True,
    searched=("holder_id", "holder_name", "holder_namespace", "holder_user", "holder_array_job", "holder_owner_names"),
)

HOLDER_STATES = TableDefinition(
    name="holder_states",
    columns=(
        *SUBJECT[:2],
        *(Column(name, TEXT) for name in ("sender", "epoch")),
        _REPORTED,
        _RECEIVED,
        Column("sent_at", INSTANT),
        Column("views", "Array(String)"),
        Column("states", "Array(String)"),
        Column("details", "Array(String)"),
        Column("unresolved_sources", "Array(String)"),
        Column("unresolved_names", "Array(UInt64)"),
        Column("unresolved_examples", "Array(Array(String))"),
        Column("failed_sources", "Array(String)"),
    ),
    key=("cluster", "machine", "sender", "epoch"),
    version="reported_at",
    lookup=True,
)

INVENTORY = TableDefinition(
    name="inventory",
    columns=(
        *SUBJECT[:2],
        _REPORTED,
        _RECEIVED,
        Column("inventory_set", "UInt64"),
        Column("addresses", "Array(String)"),
        Column("vendors", "Array(UInt32)"),
        Column("devices", "Array(UInt32)"),
        Column("class_codes", "Array(UInt32)"),
        Column("drivers", "Array(Nullable(String))"),
        Column("numa_nodes", "Array(Nullable(Int64))"),
        Column("physical_functions", "Array(Nullable(String))"),
    ),
    key=("cluster", "machine", "reported_at"),
)

PROCESSES = TableDefinition(
    name="processes",
    columns=(
        *SUBJECT,
        Column("reader", TEXT),
        Column("provenance", TEXT),
        Column("measured_at", INSTANT, "Delta, ZSTD(1)"),
        _RECEIVED,
        Column("total", "UInt64"),
        Column("pids", "Array(UInt32)"),
        Column("start_times", "Array(Nullable(UInt64))"),
        Column("kinds", "Array(String)"),
        Column("names", "Array(String)"),
        *(Column(name, f"Array({_PROCESS_TYPES[kind.type]})") for name, kind in PROCESS_READINGS.items()),
        Column("absence_sets", "Array(UInt64)"),
    ),
    key=("cluster", "machine", "view", "reader", "measured_at"),
    partition="toDate(measured_at)",
)

DECLARED = TableDefinition(
    name="declared",
    columns=(
        *SUBJECT[:2],
        Column("reader", TEXT),
        Column("metric", TEXT),
        Column("resource", STRING),
        Column("value", "Nullable(UInt64)"),
        Column("measured_at", INSTANT),
        _RECEIVED,
    ),
    key=("cluster", "machine", "reader", "metric", "resource"),
    version="measured_at",
    lookup=True,
)

_OBSERVED = Column("observed_at", INSTANT)

CLUSTER_OBJECTS = TableDefinition(
    name="cluster_objects",
    columns=(
        Column("cluster", TEXT),
        Column("kind", TEXT),
        Column("uid", STRING),
        Column("sender", TEXT),
        Column("is_end", "UInt8"),
        *(Column(name, STRING) for name in ("namespace", "name", "node", "queue")),
        Column("names", "Array(String)"),
        Column("content", STRING),
        _OBSERVED,
        _REPORTED,
        _RECEIVED,
        Column("ended_at", f"Nullable({INSTANT})"),
    ),
    key=("cluster", "kind", "uid", "sender", "is_end"),
    version="reported_at",
    lookup=True,
    searched=("queue",),
)
"""Objects of Kubernetes. The report of an end is a row of its own, so that the object is still known afterwards."""

COLLECTORS = TableDefinition(
    name="collectors",
    columns=(
        Column("cluster", TEXT),
        Column("sender", TEXT),
        Column("system_uid", STRING),
        Column("server_version", STRING),
        Column("copies", STRING),
        _OBSERVED,
        _REPORTED,
        _RECEIVED,
    ),
    key=("cluster", "sender"),
    version="reported_at",
    lookup=True,
)

FINDING_TRANSITIONS = TableDefinition(
    name="finding_transitions",
    columns=(
        Column("cluster", TEXT),
        Column("at", INSTANT),
        *(Column(name, STRING) for name in ("id", "scope")),
        *(Column(name, TEXT) for name in ("kind", "reason", "rule", "severity", "state", "hidden_by")),
        *(Column(name, "Array(String)") for name in ("evidence_names", "evidence_values")),
        *(Column(name, INSTANT) for name in ("first", "last", "opened_at")),
        Column("closed_at", f"Nullable({INSTANT})"),
        *(Column(name, "UInt64") for name in ("openings", "number")),
    ),
    key=("cluster", "at", "id", "kind"),
    partition="toYYYYMM(at)",
)
"""Transitions of findings. The number is not part of the key, because a restored registry repeats numbers."""

MIGRATIONS = TableDefinition(
    name="schema_migrations",
    columns=(
        Column("version", "UInt32"),
        Column("catalogue", "UInt32"),
        Column("applied_at", INSTANT),
        Column("statements", "Array(String)"),
    ),
    key=("version", "catalogue", "applied_at"),
)
