"""SQL views for users, over samples, rollups and the other tables. Pure.

Tables may change between schema versions; views only gain columns. Each view returns a row once, as tables do after
merges.
"""

from collections.abc import Callable

from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.fleet.cluster_objects import OBJECT_TTL_NS
from gpufleet.model.catalogue import CATALOGUE, Metric, Storage, ValueType
from gpufleet.model.kubernetes import CopyState
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.model.stored.kubernetes import ObjectKind
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.schema.tables import metric_type
from gpufleet.stores.clickhouse.sql.definition import (
    SqlView,
    ViewColumn,
    escape_literal,
    named_source,
    nan_column,
    table_columns,
)
from gpufleet.stores.clickhouse.sql.windows import WINDOW_VIEWS

LATEST, SAMPLES = "latest", "samples"


_SUBJECT = "cluster machine view"
_NEWEST = f"{_SUBJECT} reader lane provenance measured_at received_at driver_session"
_SAMPLE = f"{_SUBJECT} reader lane provenance measured_at received_at epoch seq driver_session"


def _of_arrays(metric: Metric, prefix: str = "") -> str:
    """Return the SQL expression for a metric in arrays with a prefix; a state by name."""
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
    return f"CAST({value}, '{escape_literal(metric_type(metric))}')" if is_column else value


def _metrics(of: Callable[[Metric], str]) -> tuple[ViewColumn, ...]:
    """Return a column for each metric with one value per sample."""
    return tuple(
        ViewColumn(metric.name, of(metric), f"{metric.help}{f'; {metric.unit}' if metric.unit else ''}", of_metric=True)
        for metric in CATALOGUE.values()
        if metric.storage in (Storage.CORE, Storage.TAIL)
    )


_EACH = (
    "a column for each metric without dimensions that is not a text, by its name in [metrics.md](metrics.md), in its "
    "unit; NULL if absent (`fleet_absences` has the reason) or of another kind of subject"
)

_UNTIL = (
    f"if(isNull(holdings.until) AND reported_at < now64(9, 'UTC') - INTERVAL {HOLDING_TTL_NS // NANOS} SECOND, "
    "greatest(since, reported_at), holdings.until)"
)
"""The rule of `fleet.attribution.reported.known_until`."""

_KNOWN_AT = "least(observed_at, reported_at)"

_OLDEST = f"now64(9, 'UTC') - INTERVAL {OBJECT_TTL_NS // NANOS} SECOND"

_POD_COPY = f"arrayFirst(c -> JSONExtractString(c, 'resource') = '{ObjectKind.POD}', JSONExtractArrayRaw(copies))"

_COPIES_OF_PODS = f"""(SELECT cluster, maxIf(
        if(state = '{CopyState.SYNCED}', toUnixTimestamp64Nano({_KNOWN_AT}), JSONExtractInt(copy, 'since')),
        state IN ('{CopyState.SYNCED}', '{CopyState.STALE}', '{CopyState.FORBIDDEN}')) AS current_at
    FROM (SELECT *, {_POD_COPY} AS copy, JSONExtractString(copy, 'state') AS state FROM collectors FINAL)
    WHERE {_KNOWN_AT} >= {_OLDEST} GROUP BY cluster)"""  # noqa: S608 - names are constants
"""Newest instant at which a present collector of a cluster had a current copy of the pods, in nanoseconds; or 0."""

_PODS = f"""(SELECT cluster, uid, newest, known_at, last, ifNull(copies.current_at, 0) AS current_at FROM (
        SELECT cluster, uid, argMaxIf(tuple(namespace, name, node, queue, content), {_KNOWN_AT}, is_end = 0) AS newest,
            maxIf({_KNOWN_AT}, is_end = 0) AS known_at, argMax((is_end, ended_at), ({_KNOWN_AT}, is_end = 0)) AS last
        FROM cluster_objects FINAL WHERE kind = '{ObjectKind.POD}' GROUP BY cluster, uid HAVING countIf(is_end = 0) > 0
    ) AS pods LEFT JOIN {_COPIES_OF_PODS} AS copies USING (cluster))"""  # noqa: S608 - names are constants
"""Newest state of each pod, by the rules of `fleet.cluster_objects` for collectors whose clocks agree."""

_JUDGED_AT = "if(current_at = 0, now64(9, 'UTC'), least(now64(9, 'UTC'), fromUnixTimestamp64Nano(current_at, 'UTC')))"
"""Time for which the presence of pods is judged: `fleet.cluster_objects.judged_at`."""

_ENDED_AT = (
    f"multiIf(last.1 = 1, last.2, known_at < {_JUDGED_AT} - INTERVAL {OBJECT_TTL_NS // NANOS} SECOND, known_at, NULL)"
)

_LAST_OWNER = "JSONExtractString(JSONExtractArrayRaw(newest.5, 'owners')[-1], '{}')"

_REQUESTS = (
    "mapFromArrays(arrayMap(r -> JSONExtractString(r, 'resource'), JSONExtractArrayRaw(newest.5, 'requests')), "
    "arrayMap(r -> JSONExtractUInt(r, 'count'), JSONExtractArrayRaw(newest.5, 'requests')))"
)

_FINDING = (
    ("id", "id of the finding, another at each opening"),
    ("rule", "rule"),
    ("scope", "key of the subject: `cluster/machine`, `cluster/machine/view` and so on; empty for the hub"),
    ("severity", "`critical`, `warning` or `info`"),
    ("state", "`open`, `closed` or `unknown`"),
    ("first", "first observation"),
    ("last", "newest observation at the transition"),
    ("opened_at", "time of the opening"),
    ("closed_at", "time of the closing, or NULL"),
    ("hidden_by", "rule that explained the finding at the transition, or empty"),
    ("openings", "openings of this rule and subject within the hour before"),
)

_OF_FINDING = (
    ViewColumn("cluster", "cluster", "id of the cluster; empty for the hub itself"),
    *(ViewColumn(name, name, text) for name, text in _FINDING),
    ViewColumn("evidence", "mapFromArrays(evidence_names, evidence_values)", "observed values by name"),
)

_CURRENT = "(cluster, machine, view, reader, lane, info_set)"

VIEWS = (
    SqlView(
        name="fleet_devices",
        help="A device as last described by a reader.",
        columns=table_columns(f"{_SUBJECT} reader kind side uuid pci_address instance parent index reported_at"),
        source="views FINAL",
    ),
    SqlView(
        name="fleet_latest",
        help="The newest sample of each device (and of each machine, with an empty `view`), reader and lane. "
        "Samples of any age are included: check `received_at`.",
        columns=(*table_columns(_NEWEST), *_metrics(_of_latest)),
        source=f"{LATEST} FINAL",
        metrics=_EACH,
    ),
    SqlView(
        name="fleet_samples",
        help="Every sample over time; restrict `measured_at`, `cluster` and `machine`.",
        columns=(*table_columns(_SAMPLE), *_metrics(_of_samples)),
        source=named_source(SAMPLES),
        metrics=_EACH,
    ),
    SqlView(
        name="fleet_absences",
        help="An absent reading of the newest sample, with its reason.",
        columns=(
            *table_columns(f"{_SUBJECT} reader lane measured_at"),
            ViewColumn("metric", "absent_metric", "metric name in the catalogue"),
            ViewColumn("reason", "absent_reason", "reason code"),
            ViewColumn("detail", "absent_detail", "detail of the reason"),
        ),
        source=f"(SELECT * FROM {LATEST} FINAL WHERE absence_set != 0) AS newest "  # noqa: S608 - names are ours
        "INNER JOIN (SELECT * FROM absence_sets FINAL) AS sets ON newest.absence_set = sets.id "
        "ARRAY JOIN metrics AS absent_metric, reasons AS absent_reason, details AS absent_detail",
    ),
    SqlView(
        name="fleet_dimensions",
        help="A value with dimensions (of a link, an ECC location) over time; restrict as for `fleet_samples`.",
        columns=(
            *table_columns(f"{_SUBJECT} reader lane provenance measured_at received_at driver_session metric labels"),
            ViewColumn(
                "value", "coalesce(toFloat64(int_value), float_value)", "number, inexact beyond 2^53; NULL if absent"
            ),
            ViewColumn("integer", "int_value", "the same for integers: exact"),
        ),
        source=named_source("dim_samples"),
    ),
    SqlView(
        name="fleet_texts",
        help="A text (name, serial, VBIOS, driver, hostname) of the newest sample.",
        columns=table_columns(f"{_SUBJECT} reader lane metric text since received_at"),
        source=f"info FINAL WHERE {_CURRENT} IN (SELECT {_CURRENT[1:-1]} FROM {LATEST} FINAL WHERE info_set != 0) "  # noqa: S608
        f"ORDER BY since LIMIT 1 BY {_CURRENT[1:-1]}, metric",
    ),
    SqlView(
        name="fleet_text_history",
        help="Every text ever reported, with its times. It is repeated after missing reports, and for late ones.",
        columns=table_columns(f"{_SUBJECT} reader lane metric text since received_at"),
        source="info FINAL",
    ),
    SqlView(
        name="fleet_events",
        help="An event, such as an XID, a reset or throttling; the kinds are in the events reference.",
        columns=(
            *table_columns(_SUBJECT),
            ViewColumn("at", "at", "time of the event, by the machine's clock"),
            ViewColumn("kind", "kind", "event kind, such as `xid`"),
            ViewColumn("code", "code", "event code, such as the XID; 0 if the kind has none"),
            ViewColumn("attributes", "mapFromArrays(attribute_names, attribute_values)", "texts by name"),
            *table_columns("received_at"),
        ),
        source="events FINAL",
    ),
    SqlView(
        name="fleet_readers",
        help="The last reported status of each reader of a machine.",
        columns=(
            *table_columns("cluster machine reader lane state"),
            nan_column("interval_seconds"),
            *table_columns("last_attempt last_success"),
            nan_column("duration_seconds"),
            *table_columns("failures error_class last_error reported_at received_at"),
        ),
        source="reader_status FINAL",
    ),
    SqlView(
        name="fleet_holders",
        help="A present or past holder of a device, as last reported, with a row per container of a pod; `until` is "
        "NULL while it lasts.",
        columns=(
            *table_columns(_SUBJECT),
            ViewColumn("kind", "holder_kind", "`pod`, `container`, `job`, `vm` or `allocation`"),
            ViewColumn(
                "id",
                "holder_id",
                "identity: the UID of a pod (`namespace/name` if it is unknown) or virtual machine, or the id of a job "
                "or container",
            ),
            ViewColumn("name", "holder_name", "for display"),
            ViewColumn("namespace", "holder_namespace", "namespace, or empty"),
            ViewColumn("user", "holder_user", "user of a job, or empty"),
            ViewColumn("account", "holder_account", "account of a job, or empty"),
            ViewColumn("queue", "holder_queue", "SLURM's partition of a job, or empty"),
            ViewColumn("qos", "holder_qos", "SLURM's quality of service of a job, or empty"),
            ViewColumn("array_job", "holder_array_job", "id of the job array, or empty"),
            ViewColumn("array_task", "holder_array_task", "number of the job in its array, or empty"),
            ViewColumn("slurm_cluster", "holder_slurm_cluster", "SLURM cluster of the job, or empty"),
            ViewColumn("nodes", "holder_nodes", "nodes of the whole job, or 0"),
            ViewColumn("gpus", "holder_gpus", "GPUs of the whole job, or 0"),
            ViewColumn(
                "owner_kinds", "holder_owner_kinds", "kinds of the owners, such as `ReplicaSet`, the nearest first"
            ),
            ViewColumn("owner_names", "holder_owner_names", "names of the owners, in the same order"),
            ViewColumn("owner_uids", "holder_owner_uids", "UIDs of the owners, or empty texts"),
            ViewColumn("owner_api_versions", "holder_owner_api_versions", "API versions of the owners, or empty texts"),
            ViewColumn("labels", "mapFromArrays(holder_label_names, holder_label_values)", "labels by name"),
            ViewColumn(
                "annotations", "mapFromArrays(holder_annotation_names, holder_annotation_values)", "annotations by name"
            ),
            ViewColumn("parent_kind", "parent_kind", "kind of the holder's own holder, or empty"),
            ViewColumn("parent_id", "parent_id", "identity of the holder's own holder, or empty"),
            ViewColumn("parent_name", "parent_name", "name of the holder's own holder, or empty"),
            ViewColumn("parent_namespace", "parent_namespace", "namespace of the holder's own holder, or empty"),
            ViewColumn("container", "container", "name of the pod's container, or empty"),
            ViewColumn("container_id", "container_id", "id of the container in the container runtime, or empty"),
            ViewColumn("steps", "steps", "SLURM steps of the job that use the device"),
            ViewColumn(
                "share", "share", "`exclusive`, `timeslice` (also MPS under Kubernetes), `mps`, `mig`, `vgpu` or `dra`"
            ),
            ViewColumn("replicas", "replicas", "replicas of a shared device that the holder has, or 0"),
            ViewColumn("total_replicas", "total_replicas", "replicas that the device is shared into, or 0 if unknown"),
            ViewColumn("claim", "claim", "`namespace/name` of the resource claim, or empty"),
            ViewColumn("since", "since", "start of the holding, as reported"),
            ViewColumn(
                "until",
                _UNTIL,
                "end of the holding, or NULL while it lasts; the last report if that is more than "
                f"{HOLDING_TTL_NS // (60 * NANOS)} minutes ago",
            ),
            ViewColumn("methods", "methods", "sources of the evidence, such as `kubelet` or `exporter_labels`"),
            ViewColumn(
                "verdict", "verdict", "`agreed`, `declared_only`, `observed_only`, `conflict`, `unknown` or `none`"
            ),
            ViewColumn("certain_verdict", "certain_verdict", "last certain verdict, if it is `unknown` now; or empty"),
            ViewColumn("certain_until", "certain_until", "time at which the verdict became `unknown`, or NULL"),
            *table_columns("reported_at received_at"),
        ),
        source="holdings FINAL",
    ),
    SqlView(
        name="fleet_processes",
        help="A process on a device at an instant, over time; restrict `measured_at`.",
        columns=(
            *table_columns(f"{_SUBJECT} reader provenance measured_at received_at total"),
            ViewColumn("pid", "a_pid", "process id"),
            ViewColumn("start_time", "a_start", "clock ticks since boot, or NULL"),
            ViewColumn("kinds", "a_kind", "kinds of use: compute, graphics, …"),
            ViewColumn("name", "a_name", "empty unless agents are configured to send names"),
            *(ViewColumn(name, f"a_{name}", metric.help) for name, metric in PROCESS_READINGS.items()),
        ),
        source="processes FINAL ARRAY JOIN pids AS a_pid, start_times AS a_start, kinds AS a_kind, names AS a_name"
        + "".join(f", `{name}` AS a_{name}" for name in PROCESS_READINGS),
    ),
    SqlView(
        name="fleet_buses",
        help="A PCI device of a machine, at each change of the device list.",
        columns=(
            *table_columns("cluster machine reported_at received_at"),
            ViewColumn("address", "an_address", "PCI address"),
            ViewColumn("vendor", "a_vendor", "PCI vendor id"),
            ViewColumn("device", "a_device", "PCI device id"),
            ViewColumn("class_code", "a_class", "PCI class"),
            ViewColumn("driver", "a_driver", "kernel driver, or NULL"),
            ViewColumn("numa_node", "a_node", "NUMA node, or NULL"),
            ViewColumn(
                "physical_function", "a_function", "address of the physical function of a virtual function, or NULL"
            ),
        ),
        source="inventory FINAL ARRAY JOIN addresses AS an_address, vendors AS a_vendor, devices AS a_device, "
        "class_codes AS a_class, drivers AS a_driver, numa_nodes AS a_node, physical_functions AS a_function",
    ),
    SqlView(
        name="fleet_kubernetes",
        help="A Kubernetes declaration for a machine, as last reported by a reader; `value` is NULL if it has ended. "
        "Declarations of any age are included: check `received_at`.",
        columns=(
            *table_columns("cluster machine reader metric"),
            ViewColumn("resource", "resource", "resource, such as `nvidia_com_gpu`, or the label with the count"),
            ViewColumn("value", "value", "count, or NULL"),
            *table_columns("measured_at received_at"),
        ),
        source="declared FINAL",
    ),
    SqlView(
        name="fleet_pods",
        help="A pod with GPU requests or claims, as the collector of its cluster last reported it; ended ones too.",
        columns=(
            *table_columns("cluster"),
            ViewColumn("uid", "uid", "UID"),
            ViewColumn("namespace", "newest.1", "namespace"),
            ViewColumn("name", "newest.2", "name"),
            ViewColumn("node", "newest.3", "name of its Kubernetes node; empty before it is scheduled"),
            ViewColumn("queue", "newest.4", "queue of a batch scheduler, or empty"),
            ViewColumn("phase", "JSONExtractString(newest.5, 'phase')", "phase, such as `Running`"),
            ViewColumn("owner_kind", _LAST_OWNER.format("kind"), "kind of its last known owner, or empty"),
            ViewColumn("owner_name", _LAST_OWNER.format("name"), "name of its last known owner, or empty"),
            ViewColumn("requests", _REQUESTS, "number of devices by resource"),
            ViewColumn("reported_at", "known_at", "time of the newest report of it"),
            ViewColumn(
                "ended_at",
                _ENDED_AT,
                "its end, or its last report if none followed while the collector could read pods; else NULL",
            ),
        ),
        source=_PODS,
    ),
    SqlView(
        name="fleet_findings",
        help="A finding as of its newest transition.",
        columns=_OF_FINDING,
        source="finding_transitions FINAL WHERE (cluster, id, at) IN "
        "(SELECT cluster, id, max(at) FROM finding_transitions GROUP BY cluster, id)",
    ),
    SqlView(
        name="fleet_finding_transitions",
        help="An opening, escalation or closing of a finding, with the finding after it.",
        columns=(
            ViewColumn("at", "at", "time of the transition"),
            ViewColumn("kind", "kind", "`opened`, `escalated` or `closed`"),
            ViewColumn(
                "reason", "reason", "`firing`, `healthy`, `retired`, `subject_gone`, `not_tracked` or `rule_removed`"
            ),
            *_OF_FINDING,
        ),
        source="finding_transitions FINAL",
    ),
    *WINDOW_VIEWS,
)
"""Every SQL view, in the order of the documentation."""
