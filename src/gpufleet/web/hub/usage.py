"""Routes of usage and SQL."""

from collections.abc import Sequence
from typing import Annotated

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from gpufleet.hub.query import Queries
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.model.api.sql import SqlAnswer, SqlRequest, SqlViewRecord
from gpufleet.model.api.usage import ALLOCATION_DIMENSIONS, HOLDER_DIMENSIONS, UsageAnswer, UsageDimension
from gpufleet.model.time import NANOS
from gpufleet.web.hub.access import ForbiddenError
from gpufleet.web.hub.allocations import Tenant
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import parse_instant

DEFAULT_SPAN = 24 * 3600 * NANOS

GroupBy = Annotated[
    list[str] | None,
    QueryParameter(
        description="cluster, model; allocation, tenant, team; or namespace, owner, pod, job, user, account, queue, "
        "which show the holders of all tenants. Comma-separated or repeated. Default: allocation."
    ),
]
ClusterFilter = Annotated[str | None, QueryParameter(description="Only GPUs of this cluster.")]
Start = Annotated[str | None, QueryParameter(description="RFC 3339; default: one day before `end`.")]
End = Annotated[str | None, QueryParameter(description="RFC 3339, exclusive; default and maximum: now.")]


class UsageRoutes(Controller):
    """GPU-hours, energy and cost."""

    path = "/v1/usage"
    tags = ("usage",)

    @get(
        summary="GPU-hours held, used, idle and unknown, energy and cost; a tenant sees its own allocations",
        description="Each physical GPU counts once per row and once in the total, regardless of its number of views. "
        "Dimensions of holders (namespace, owner, pod, job, user, account, queue) are for operators and admins: 403. "
        "They cannot be combined with allocation, tenant and team.",
        responses=errors(),
    )
    async def get_usage(
        self,
        queries: NamedDependency[Queries],
        tenant: Tenant,
        group_by: GroupBy = None,
        cluster: ClusterFilter = None,
        start: Start = None,
        end: End = None,
    ) -> UsageAnswer:
        """Return usage by group, and the total."""
        now = queries.now_ns()
        last = min(now, parse_instant("end", end)) if end is not None else now
        first = parse_instant("start", start) if start is not None else max(0, last - DEFAULT_SPAN)
        if first >= now:
            raise InvalidQueryError("start", "must not be in the future")
        by = dimensions(group_by)
        if HOLDER_DIMENSIONS.isdisjoint(by):
            return await queries.usage.of(first, last, by, tenant, cluster)
        if tenant is not None:
            raise ForbiddenError("usage by holder is of all tenants: this needs a token of the role operator or admin")
        return await queries.usage.by_holder(first, last, by, cluster)


def dimensions(texts: Sequence[str] | None) -> tuple[UsageDimension, ...]:
    """Parse the values of `group_by`, in order and without duplicates; the default is by allocation.

    Raises:
        InvalidQueryError: if a value is not a dimension, or if dimensions of holders and of allocations are mixed.
    """
    if texts is None:
        return (UsageDimension.ALLOCATION,)
    found = []
    for name in (name for text in texts for name in text.split(",")):
        try:
            found.append(UsageDimension(name.strip()))
        except ValueError as error:
            detail = f"{name[:50]!r} must be one of {', '.join(UsageDimension)}"
            raise InvalidQueryError("group_by", detail) from error
    if not HOLDER_DIMENSIONS.isdisjoint(found) and not ALLOCATION_DIMENSIONS.isdisjoint(found):
        raise InvalidQueryError("group_by", "allocation, tenant and team cannot be combined with dimensions of holders")
    return tuple(dict.fromkeys(found))


class SqlRoutes(Controller):
    """SQL statements of administrators over views of the store."""

    path = "/v1/query"
    tags = ("sql",)

    @get(summary="List the views that a statement may read, and their columns", responses=errors())
    async def list_views(self, queries: NamedDependency[Queries]) -> tuple[SqlViewRecord, ...]:
        """Return the views, in the order of the documentation."""
        return queries.sql.views()

    @post(
        summary="Run a SELECT over the views",
        description="400 `bad_query` if it is invalid, reads something other than a view, calls a forbidden function, "
        "or exceeds a limit. The statement is recorded in the audit log.",
        status_code=200,
        responses=errors(413),
    )
    async def query(self, data: JSONBody[SqlRequest], queries: NamedDependency[Queries]) -> SqlAnswer:
        """Run the statement."""
        return await queries.sql.select(data.sql)
