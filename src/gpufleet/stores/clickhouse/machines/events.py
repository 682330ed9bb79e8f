"""Event queries, page by page."""

from typing import Any

from gpufleet.model.stored.samples import EventQuery, EventSpan, StoredEvent
from gpufleet.stores.clickhouse.connection.client import Handle

_EVENTS = """
SELECT cluster, machine, view, toUnixTimestamp64Nano(at) AS at_ns, kind, code, attribute_names, attribute_values,
    toUnixTimestamp64Nano(min(received_at)),
    cityHash64(cluster, machine, view, at_ns, kind, code, attribute_names, attribute_values) AS id
FROM events
WHERE ({spans}){conditions}
GROUP BY cluster, machine, view, at, kind, code, attribute_names, attribute_values
{having}
ORDER BY at_ns DESC, id DESC
LIMIT {{limit:UInt32}}
"""


def fetch_events(handle: Handle, query: EventQuery) -> tuple[StoredEvent, ...]:
    """Return matching events; see `ports.HistoryStore.events`."""
    if not query.spans:
        return ()
    parameters: dict[str, Any] = {"limit": query.limit}
    spans = " OR ".join(_span(number, span, parameters) for number, span in enumerate(query.spans))
    conditions = having = ""
    if query.view is not None:
        parameters["view"] = query.view
        conditions += " AND view = {view:String}"
    if query.kinds:
        parameters["kinds"] = list(query.kinds)
        conditions += " AND kind IN {kinds:Array(String)}"
    if query.codes:
        parameters["codes"] = list(query.codes)
        conditions += " AND code IN {codes:Array(Int64)}"
    if query.before is not None:
        parameters["before_at"], parameters["before_id"] = query.before
        conditions += " AND at <= fromUnixTimestamp64Nano({before_at:Int64}, 'UTC')"
        having = "HAVING (at_ns, id) < ({before_at:Int64}, {before_id:UInt64})"
    statement = _EVENTS.format(spans=spans, conditions=conditions, having=having)
    return tuple(
        StoredEvent(
            id=number,
            cluster=cluster,
            machine=machine,
            view=view or None,
            at=at,
            kind=kind,
            code=code,
            attributes=dict(zip(names, values, strict=True)),
            received_at=received_at,
        )
        for cluster, machine, view, at, kind, code, names, values, received_at, number in handle.query(
            statement, parameters=parameters
        ).result_rows
    )


def _span(number: int, span: EventSpan, parameters: dict[str, Any]) -> str:
    parameters[f"start{number}"], parameters[f"end{number}"] = span.start, span.end
    terms = [
        f"at >= fromUnixTimestamp64Nano({{start{number}:Int64}}, 'UTC')",
        f"at < fromUnixTimestamp64Nano({{end{number}:Int64}}, 'UTC')",
    ]
    for column, value in (("cluster", span.cluster), ("machine", span.machine)):
        if value is not None:
            parameters[f"{column}{number}"] = value
            terms.append(f"{column} = {{{column}{number}:String}}")
    if span.views is not None:
        parameters[f"views{number}"] = sorted(span.views)
        terms.append(f"view IN {{views{number}:Array(String)}}")
    return f"({' AND '.join(terms)})"
