"""Which machines tell of a view, or of a text."""

from typing import Any

from gpufleet.stores.clickhouse.client import Handle

_BY_VIEW = """
SELECT DISTINCT machine FROM views WHERE cluster = {cluster:String} AND view = {view:String} ORDER BY machine
"""

_BY_TEXT = """
SELECT DISTINCT machine FROM latest FINAL
WHERE cluster = {cluster:String} AND (machine, view, reader, lane, info_set) IN (
    SELECT machine, view, reader, lane, info_set FROM info
    PREWHERE cluster = {cluster:String} AND metric = {metric:String} WHERE text = {text:String})
ORDER BY machine
"""


def fetch_tellers_of_view(handle: Handle, cluster: str, view: str) -> tuple[str, ...]:
    """Ask for the machines that ever told of a view."""
    return _machines(handle, _BY_VIEW, {"cluster": cluster, "view": view})


def fetch_tellers_of_text(handle: Handle, cluster: str, metric: str, text: str) -> tuple[str, ...]:
    """Ask for the machines of which a newest sample has this text of an info metric."""
    return _machines(handle, _BY_TEXT, {"cluster": cluster, "metric": metric, "text": text})


def _machines(handle: Handle, query: str, parameters: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[0] for row in handle.query(query, parameters=parameters).result_rows)
