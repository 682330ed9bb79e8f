"""Holdings: rows of the table `holdings`, and queries."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.model.holdings import HET_JOB, CertainPeriod, Holder, HolderKind, Holding, HoldingVerdict, Owner, Share
from gpufleet.model.stored.holdings import HoldingQuery, StoredHolding, StoredJob
from gpufleet.model.stored.kubernetes import ObjectKind
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.machines.present_holdings import PresentHoldings, SizedHolding, is_of_machines
from gpufleet.stores.clickhouse.samples.cache import cells_size
from gpufleet.stores.clickhouse.schema.columns import Columns, listed_cells
from gpufleet.stores.clickhouse.schema.tables import HOLDINGS

_INSTANTS = frozenset({"since", "until", "certain_until", "reported_at"})

_READ = tuple(column.name for column in HOLDINGS.columns if column.name != "received_at")

_COLUMNS = ", ".join(f"toUnixTimestamp64Nano({name})" if name in _INSTANTS else name for name in _READ)

_KEY = ", ".join(HOLDINGS.key)

_NEWEST = f"""
SELECT {_COLUMNS} FROM (
    SELECT * FROM holdings WHERE {{candidates}} ORDER BY {_KEY}, reported_at DESC LIMIT 1 BY {_KEY}
) WHERE {{conditions}}
ORDER BY {_KEY}
"""  # noqa: S608 - names are constants; values are bound as parameters
"""Newest reports of holdings, without FINAL, which takes seconds for a million rows even if one of them matches.

A condition on a column outside of the key must hold for the newest report, so `conditions` select from the newest ones.
`candidates` only selects by key, and leaves out old reports.
"""

_MATCHED = f"({_KEY}) IN (SELECT {_KEY} FROM holdings WHERE {{conditions}})"  # noqa: S608
"""Holdings with a report, possibly an older one, that meets the conditions."""

_PAGE_SETTINGS = "SETTINGS max_block_size = 2048, read_in_order_use_buffering = 0"
"""A page is read in the order of the table: small blocks, so that the query ends soon after the page is full."""

_PLACE_TYPES = {name: "Int64" if name == "since" else "String" for name in HOLDINGS.key}

_PLACES = ", ".join(f"{{p_{name}:Array({type_})}}" for name, type_ in _PLACE_TYPES.items())

_PLACE = ", ".join("toUnixTimestamp64Nano(since)" if name == "since" else name for name in HOLDINGS.key)

_CELLS = [
    f"fromUnixTimestamp64Nano(p.{place}, 'UTC')" if name == "since" else f"p.{place}"
    for place, name in enumerate(_PLACE_TYPES, start=1)
]

_OF_PLACES = f"""({_KEY}) IN (
    SELECT {", ".join(_CELLS)} FROM (SELECT arrayJoin(arrayZip({_PLACES})) AS p))"""  # noqa: S608
"""Holdings at given places."""

_CANDIDATES = f"""
SELECT {_PLACE} FROM holdings WHERE {{conditions}}
ORDER BY {_KEY} LIMIT 1 BY {_KEY} LIMIT {{{{limit:UInt64}}}} {_PAGE_SETTINGS}
"""  # noqa: S608 - names are constants; values are bound as parameters
"""Places of holdings with a report, possibly an older one, that meets the conditions."""

_HOLDING_BYTES = 1_000
"""Size of a holding in memory besides its texts and lists."""

MAX_STEPWISE = 2_000
"""Maximum limit of a query by texts that is answered in steps."""

_START, _END, _REPEATED = (f"fromUnixTimestamp64Nano({{{name}:Int64}}, 'UTC')" for name in ("start", "end", "repeated"))

_IS_RECENT = f"(since < {_END} AND (until > {_START} OR since >= {_START} OR reported_at >= {_REPEATED}))"
"""Holds for the newest report of a holding if it holds for any: no end is long after its report."""

_OVERLAPS = f"""(since < {_END} AND (until > {_START}
    OR (until IS NULL AND (since >= {_START} OR reported_at >= {_REPEATED}))))"""
"""The rule of `fleet.attribution.reported.may_overlap`."""

_OF_GROUPS = f"""(holder_id IN {{ids:Array(String)}} OR holder_array_job IN {{groups:Array(String)}}
    OR (hasAny(holder_owner_names, {{groups:Array(String)}}) AND arrayExists(
        (kind, name) -> kind = '{HET_JOB}' AND has({{groups:Array(String)}}, name),
        holder_owner_kinds, holder_owner_names)))"""

_JOB = ", ".join(
    f"holder_{part}" for part in ("id", "array_job", "array_task", "slurm_cluster", "owner_kinds", "owner_names")
)

_JOBS = f"""
SELECT {_JOB}, toUnixTimestamp64Nano(since), toUnixTimestamp64Nano(max(ifNull(until, reported_at)))
FROM holdings
WHERE cluster = {{cluster:String}} AND holder_kind = '{HolderKind.JOB}' AND holder_slurm_cluster != '' AND {_OF_GROUPS}
GROUP BY {_JOB}, since
ORDER BY {_JOB}, since
"""  # noqa: S608 - names are constants; values are bound as parameters
"""Runs of jobs from all reports of their holdings. The ids of a job do not change from report to report."""

_OF_HOLDER = "holder_{name} = {{{name}:String}}"

_TEXTS = ("namespace", "name", "user", "account", "queue")

_OF_CLUSTER = frozenset({"namespace", "name", "queue"})
"""Texts of a pod that only its cluster may know."""

_OF_POD = f"""holder_{{name}} IN ({{{{{{name}}:String}}}}, '')
    AND (holder_{{name}} = {{{{{{name}}:String}}}} OR (holder_{{name}} = '' AND holder_kind = '{HolderKind.POD}'
    AND (cluster, holder_id) IN (SELECT cluster, arrayJoin([uid, concat(namespace, '/', name)]) FROM cluster_objects
        WHERE kind = '{ObjectKind.POD}' AND {{name}} = {{{{{{name}}:String}}}})))"""  # noqa: S608 - names are constants
"""Condition on a text that the node reports, or that any report of the cluster has for the pod if the node has none.

The pod is known by its UID, or by `namespace/name` if its node reports no UID. The first line leaves out most rows
before the pods of the cluster are looked up.
"""

_FOLLOWS = """cluster >= {after_cluster:String}
    AND (cluster, machine) >= ({after_cluster:String}, {after_machine:String})
    AND (cluster, machine, view, holder_kind, holder_id, container, toUnixTimestamp64Nano(since)) >
    ({after_cluster:String}, {after_machine:String}, {after_view:String}, {after_kind:String}, {after_id:String},
    {after_container:String}, {after_since:Int64})"""

_AFTER = ("cluster", "machine", "view", "kind", "id", "container", "since")


def newest_holdings(holdings: Iterable[Holding]) -> Iterable[Holding]:
    """Return the last report of each holding of a machine: rows of one batch have no order in the table."""
    return {(one.view, one.holder.kind, one.holder.id, one.container, one.since): one for one in holdings}.values()


def holding_cells(accepted: AcceptedBatch, machine: str, holding: Holding) -> tuple[object, ...]:
    """Return the row of a holding."""
    holder = holding.holder
    labels, annotations = sorted(holder.labels.items()), sorted(holder.annotations.items())
    return (
        accepted.batch.cluster,
        machine,
        holding.view,
        *_identity(holder),
        holder.user,
        holder.account,
        holder.queue,
        holder.qos,
        holder.array_job,
        holder.array_task,
        holder.slurm_cluster,
        [owner.kind for owner in holder.owners],
        [owner.name for owner in holder.owners],
        [owner.uid for owner in holder.owners],
        [owner.api_version for owner in holder.owners],
        [name for name, _ in labels],
        [text for _, text in labels],
        [name for name, _ in annotations],
        [text for _, text in annotations],
        holder.nodes,
        holder.gpus,
        *(("", "", "", "") if holding.parent is None else _identity(holding.parent)),
        holding.container,
        holding.container_id,
        list(holding.steps),
        holding.share.value,
        holding.replicas,
        holding.total_replicas,
        holding.claim,
        holding.since,
        holding.until,
        list(holding.methods),
        holding.verdict.value,
        "" if holding.certain is None else holding.certain.verdict.value,
        None if holding.certain is None else holding.certain.until,
        accepted.reported_at,
        accepted.received_at,
    )


def fetch_holdings(handle: Handle, memory: PresentHoldings | None, query: HoldingQuery) -> tuple[StoredHolding, ...]:
    """Return matching holdings; see `ports.SampleStore.holdings`.

    `memory` is None if other processes may write to the tables.
    """
    if query.machines == ():
        return ()
    cluster, machines = query.cluster, query.machines
    if memory is not None and cluster is not None and machines is not None and is_of_machines(query):
        return tuple(memory.fetch(cluster, machines, query.start, lambda some: _fetch_recent(handle, query, some)))
    if query.limit is not None and query.limit <= MAX_STEPWISE and _has_texts(query):
        return _fetch_page(handle, query, query.limit)
    statement, parameters = _statement(query)
    return tuple([_stored(row) for row in handle.query(statement, parameters=parameters).result_rows])


def _fetch_recent(handle: Handle, query: HoldingQuery, machines: Sequence[str]) -> list[SizedHolding]:
    """Return the newest reports of the recent holdings of some machines of a query."""
    query = msgspec.structs.replace(query, machines=tuple(machines))
    parameters = _times(query)
    candidates = " AND ".join([_IS_RECENT, *_key_conditions(query, parameters)])
    statement = _NEWEST.format(candidates=candidates, conditions=_IS_RECENT)
    return [_sized(row) for row in handle.query(statement, parameters=parameters).result_rows]


def written_holdings(written: Columns) -> Iterator[SizedHolding]:
    """Return the rows of the table `holdings` that were written."""
    return map(_sized, zip(*(listed_cells(written[name]) for name in _READ), strict=True))


def _sized(row: Sequence[Any]) -> SizedHolding:
    return SizedHolding(_stored(row), _HOLDING_BYTES + cells_size(row))


def _has_texts(query: HoldingQuery) -> bool:
    return any(getattr(query, name) is not None for name in _TEXTS)


def _fetch_page(handle: Handle, query: HoldingQuery, limit: int) -> tuple[StoredHolding, ...]:
    """Return the first matching holdings of a query by texts.

    Each step reads the next places of holdings with a matching report, of narrow columns only, and then their newest
    reports. That one may have another text, or an end.
    """
    found: list[StoredHolding] = []
    while len(found) < limit:
        parameters = _times(query)
        conditions = [_IS_RECENT, *_key_conditions(query, parameters), *_report_conditions(query, parameters)]
        statement = _CANDIDATES.format(conditions=" AND ".join(conditions))
        places = handle.query(statement, parameters={**parameters, "limit": limit}).result_rows
        if places:
            columns = {
                f"p_{name}": list(cells) for name, cells in zip(_PLACE_TYPES, zip(*places, strict=True), strict=True)
            }
            conditions = [_OVERLAPS, *_report_conditions(query, parameters)]
            statement = _NEWEST.format(candidates=_OF_PLACES, conditions=" AND ".join(conditions))
            rows = handle.query(statement, parameters=parameters | columns).result_rows
            found += [_stored(row) for row in rows]
        if len(places) < limit:
            break
        query = msgspec.structs.replace(query, after=tuple(places[-1]))
    return tuple(found[:limit])


def fetch_slurm_jobs(handle: Handle, query: HoldingQuery) -> tuple[StoredJob, ...]:
    """Return the runs of jobs of known SLURM clusters; see `ports.SampleStore.slurm_jobs`."""
    parameters = {"cluster": query.cluster, "ids": list(query.ids), "groups": list(query.groups)}
    return tuple([_job(row) for row in handle.query(_JOBS, parameters=parameters).result_rows])


def _job(row: Sequence[Any]) -> StoredJob:
    id_, array_job, array_task, slurm_cluster, kinds, names, first, last = row
    holder = Holder(
        kind=HolderKind.JOB,
        id=id_,
        array_job=array_job,
        array_task=array_task,
        slurm_cluster=slurm_cluster,
        owners=tuple([Owner(kind=kind, name=name) for kind, name in zip(kinds, names, strict=True)]),
    )
    return StoredJob(holder=holder, first=first, last=last)


def _statement(query: HoldingQuery) -> tuple[str, dict[str, Any]]:
    parameters = _times(query)
    of_key, of_report = _key_conditions(query, parameters), _report_conditions(query, parameters)
    candidates = [_IS_RECENT, *of_key]
    if of_report:
        candidates.append(_MATCHED.format(conditions=" AND ".join([*candidates, *of_report])))
    statement = _NEWEST.format(candidates=" AND ".join(candidates), conditions=" AND ".join([_OVERLAPS, *of_report]))
    if query.limit is not None:
        parameters["limit"] = query.limit
        statement += f"LIMIT {{limit:UInt64}} {_PAGE_SETTINGS}"
    return statement, parameters


def _times(query: HoldingQuery) -> dict[str, Any]:
    return {"start": query.start, "end": query.end, "repeated": max(0, query.start - HOLDING_TTL_NS)}


def _key_conditions(query: HoldingQuery, parameters: dict[str, Any]) -> list[str]:
    """Return the conditions on columns of the key; adds their parameters."""
    conditions = []
    if query.cluster is not None:
        parameters["cluster"] = query.cluster
        conditions.append("cluster = {cluster:String}")
    if query.machines is not None:
        parameters["machines"] = list(query.machines)
        conditions.append("machine IN {machines:Array(String)}")
    if query.kind is not None:
        parameters["kind"] = query.kind.value
        conditions.append("holder_kind = {kind:String}")
    if query.ids and not query.groups:
        parameters["ids"] = list(query.ids)
        conditions.append("holder_id IN {ids:Array(String)}")
    if query.after is not None:
        parameters |= {f"after_{name}": cell for name, cell in zip(_AFTER, query.after, strict=True)}
        conditions.append(_FOLLOWS)
    return conditions


def _report_conditions(query: HoldingQuery, parameters: dict[str, Any]) -> list[str]:
    """Return the conditions on columns that a later report may change; adds their parameters."""
    conditions = []
    for name in _TEXTS:
        text = getattr(query, name)
        if text is not None:
            parameters[name] = text
            condition = _OF_POD if name in _OF_CLUSTER else _OF_HOLDER
            conditions.append(condition.format(name=name))
    if query.groups:
        parameters |= {"ids": list(query.ids), "groups": list(query.groups)}
        conditions.append(_OF_GROUPS)
    return conditions


def _stored(row: Sequence[Any]) -> StoredHolding:
    cell = dict(zip(_READ, row, strict=True))
    owners = zip(*(cell[f"holder_owner_{part}"] for part in ("kinds", "names", "uids", "api_versions")), strict=True)
    holder = Holder(
        kind=HolderKind(cell["holder_kind"]),
        id=cell["holder_id"],
        name=cell["holder_name"],
        namespace=cell["holder_namespace"],
        owners=tuple([Owner(kind=kind, name=name, uid=uid, api_version=api) for kind, name, uid, api in owners]),
        labels=dict(zip(cell["holder_label_names"], cell["holder_label_values"], strict=True)),
        annotations=dict(zip(cell["holder_annotation_names"], cell["holder_annotation_values"], strict=True)),
        user=cell["holder_user"],
        account=cell["holder_account"],
        queue=cell["holder_queue"],
        qos=cell["holder_qos"],
        array_job=cell["holder_array_job"],
        array_task=cell["holder_array_task"],
        slurm_cluster=cell["holder_slurm_cluster"],
        nodes=cell["holder_nodes"],
        gpus=cell["holder_gpus"],
    )
    parent = None
    if cell["parent_kind"]:
        parent = Holder(
            kind=HolderKind(cell["parent_kind"]),
            id=cell["parent_id"],
            name=cell["parent_name"],
            namespace=cell["parent_namespace"],
        )
    certain = None
    if cell["certain_until"] is not None:
        certain = CertainPeriod(verdict=HoldingVerdict(cell["certain_verdict"]), until=cell["certain_until"])
    holding = Holding(
        view=cell["view"],
        holder=holder,
        parent=parent,
        container=cell["container"],
        container_id=cell["container_id"],
        steps=tuple(cell["steps"]),
        share=Share(cell["share"]),
        replicas=cell["replicas"],
        total_replicas=cell["total_replicas"],
        claim=cell["claim"],
        since=cell["since"],
        until=cell["until"],
        methods=tuple(cell["methods"]),
        verdict=HoldingVerdict(cell["verdict"]),
        certain=certain,
    )
    return StoredHolding(
        cluster=cell["cluster"], machine=cell["machine"], holding=holding, reported_at=cell["reported_at"]
    )


def _identity(holder: Holder) -> tuple[str, str, str, str]:
    return holder.kind.value, holder.id, holder.name, holder.namespace
