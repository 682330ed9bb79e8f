"""The route of what allocations came to.

Routes of SQL.
"""

from collections.abc import Sequence
from typing import Annotated

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from gpufleet.hub.query import Queries
from gpufleet.hub.query.history import QuestionError
from gpufleet.model.api.sql import SqlAnswer, SqlQuestion, SqlViewRecord
from gpufleet.model.api.usage import Dimension, UsageAnswer
from gpufleet.model.time import NANOS
from gpufleet.web.hub.allocations import Tenant
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import instant

DEFAULT_SPAN = 24 * 3600 * NANOS

GroupBy = Annotated[
    list[str] | None,
    QueryParameter(
        description="cluster, allocation, tenant, team, model; with commas or repeated. allocation unless given."
    ),
]
Start = Annotated[str | None, QueryParameter(description="RFC 3339; a day before `end` unless given.")]
End = Annotated[str | None, QueryParameter(description="RFC 3339, excluded; now unless given, and never later.")]


class Usage(Controller):
    """GPU-hours, energy and cost."""

    path = "/v1/usage"
    tags = ("usage",)

    @get(
        summary="GPU-hours held, used, idle and unknown, energy and cost; to a tenant, of its own allocations",
        description="Each GPU counts once in every row and in the total, whoever sees it.",
        responses=errors(),
    )
    async def get_usage(
        self,
        queries: NamedDependency[Queries],
        tenant: Tenant,
        group_by: GroupBy = None,
        start: Start = None,
        end: End = None,
    ) -> UsageAnswer:
        """Return rows and their total."""
        now = queries.now_ns()
        last = min(now, instant("end", end)) if end is not None else now
        first = instant("start", start) if start is not None else max(0, last - DEFAULT_SPAN)
        if first >= now:
            raise QuestionError("start", "is not yet: there is usage until now")
        return await queries.usage.of(first, last, dimensions(group_by), tenant)


def dimensions(texts: Sequence[str] | None) -> tuple[Dimension, ...]:
    """Read every `group_by`, in their order, each dimension once; by allocation where none is given.

    Raises:
        QuestionError: if one of them is none.
    """
    if texts is None:
        return (Dimension.ALLOCATION,)
    found = []
    for name in (name for text in texts for name in text.split(",")):
        try:
            found.append(Dimension(name.strip()))
        except ValueError as error:
            words = f"{name[:50]!r} is none of {', '.join(Dimension)}"
            raise QuestionError("group_by", words) from error
    return tuple(dict.fromkeys(found))


class SqlRoutes(Controller):
    """Statements of administrators over views of the store."""

    path = "/v1/query"
    tags = ("sql",)

    @get(summary="The views that a statement may read, and their columns", responses=errors())
    async def list_views(self, queries: NamedDependency[Queries]) -> tuple[SqlViewRecord, ...]:
        """Return them in the order of the documentation."""
        return queries.sql.views()

    @post(
        summary="Answer one SELECT over the views",
        description="400 `bad_query` when it is wrong, reads what is no view, calls what may not be called, or comes "
        "to more than it may. It is recorded in the audit log.",
        status_code=200,
        responses=errors(413),
    )
    async def query(self, data: JSONBody[SqlQuestion], queries: NamedDependency[Queries]) -> SqlAnswer:
        """Ask it."""
        return await queries.sql.select(data.sql)
