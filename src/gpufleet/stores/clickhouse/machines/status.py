"""How each reader of machines was doing when last heard of.

Who holds the devices of machines, as it was told last.

Which machines tell of a view, or of a text.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from gpufleet.model.catalogue import Lane
from gpufleet.model.holding import Holder, HolderKind, Holding, Share, Verdict
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.cache import fetch_newest

_SELECT = """
SELECT machine, reader, lane, state, interval_seconds, toUnixTimestamp64Nano(last_attempt),
    toUnixTimestamp64Nano(last_success), duration_seconds, failures, error_class, last_error,
    toUnixTimestamp64Nano(reported_at)
"""


def fetch_readers(handle: Handle, cluster: str, machines: Sequence[str]) -> dict[str, tuple[ReaderStatus, ...]]:
    """Ask for the newest status of each reader and lane of each machine."""
    parameters = {"cluster": cluster, "machines": list(machines)}
    found: dict[str, list[ReaderStatus]] = {}
    for (
        machine,
        reader,
        lane,
        state,
        interval,
        last_attempt,
        last_success,
        duration,
        failures,
        error_class,
        last_error,
        _,
    ) in fetch_newest(handle, _SELECT, "reader_status", parameters, key=3, rank=itemgetter(-1)):
        status = ReaderStatus(
            reader=reader,
            lane=Lane(lane),
            state=ReaderState(state),
            interval_seconds=interval,
            last_attempt=last_attempt,
            last_success=last_success,
            duration_seconds=duration,
            failures=failures,
            error_class=error_class,
            last_error=last_error,
        )
        found.setdefault(machine, []).append(status)
    return {machine: tuple(statuses) for machine, statuses in found.items()}


_OPEN = """
SELECT machine, view, holder_kind, holder_id, holder_name, holder_namespace, parent_kind, parent_id, parent_name,
    parent_namespace, share, toUnixTimestamp64Nano(since), methods, verdict
FROM holdings FINAL
WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND until IS NULL
ORDER BY machine, view, since, holder_id
"""


def fetch_holdings(handle: Handle, cluster: str, machines: Sequence[str]) -> dict[str, tuple[Holding, ...]]:
    """Ask for every holding of each machine that has not ended."""
    found: dict[str, list[Holding]] = {}
    rows = handle.query(_OPEN, parameters={"cluster": cluster, "machines": list(machines)}).result_rows
    for machine, view, *words, share, since, methods, verdict in rows:
        holding = Holding(
            view=view,
            holder=_holder(words[:4]),
            parent=_holder(words[4:]) if words[4] else None,
            share=Share(share),
            since=since,
            methods=tuple(methods),
            verdict=Verdict(verdict),
        )
        found.setdefault(machine, []).append(holding)
    return {machine: tuple(holdings) for machine, holdings in found.items()}


def _holder(words: Sequence[str]) -> Holder:
    kind, id_, name, namespace = words
    return Holder(kind=HolderKind(kind), id=id_, name=name, namespace=namespace)


_BY_VIEW = """
SELECT DISTINCT machine FROM views WHERE cluster = {cluster:String} AND view = {view:String} ORDER BY machine
"""

_TOLD = """
SELECT DISTINCT machine, view, reader, lane, info_set FROM info
WHERE text = {text:String} AND cluster = {cluster:String} AND metric = {metric:String}
"""

_STANDS = """
SELECT machine, view, reader, lane, info_set FROM latest FINAL
WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND view IN {views:Array(String)}
"""


def fetch_tellers_of_view(handle: Handle, cluster: str, view: str) -> tuple[str, ...]:
    """Ask for the machines that ever told of a view."""
    rows = handle.query(_BY_VIEW, parameters={"cluster": cluster, "view": view}).result_rows
    return tuple(row[0] for row in rows)


def fetch_tellers_of_text(handle: Handle, cluster: str, metric: str, text: str) -> tuple[str, ...]:
    """Ask for the machines of which a newest sample has this text of an info metric.

    Who ever told it is a scan of texts; whether it still stands is looked up for those alone. One question for both
    made the server read every newest sample of the cluster.
    """
    told = handle.query(_TOLD, parameters={"cluster": cluster, "metric": metric, "text": text}).result_rows
    if not told:
        return ()
    parameters: dict[str, Any] = {
        "cluster": cluster,
        "machines": sorted({row[0] for row in told}),
        "views": sorted({row[1] for row in told}),
    }
    stands = handle.query(_STANDS, parameters=parameters).result_rows
    return tuple(sorted({row[0] for row in set(map(tuple, told)) & set(map(tuple, stands))}))
