"""Which machines tell of a view, or of a text."""

from typing import Any

from gpufleet.stores.clickhouse.client import Handle

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
