"""Routes of SQL."""

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from gpufleet.hub.queries import Queries
from gpufleet.model.sql import SqlAnswer, SqlQuestion, SqlViewRecord
from gpufleet.web.hub.openapi import errors


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
