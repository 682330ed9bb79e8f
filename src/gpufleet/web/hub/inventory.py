"""Routes of the inventory's history."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from gpufleet.hub.paging import asked, page_of
from gpufleet.hub.queries import Queries
from gpufleet.model.inventory import ChangeKind, GpuChangePage, GpuPool
from gpufleet.web.hub.formats import listed
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import Cursor, InstantPlace, Limit, instant

Since = Annotated[str | None, QueryParameter(description="RFC 3339; the beginning unless given.")]
Until = Annotated[str | None, QueryParameter(description="RFC 3339, excluded; now unless given.")]


class Inventory(Controller):
    """What moved, what was replaced, what is alike."""

    path = "/v1/gpus"
    tags = ("fleet",)

    @get(
        "/changes",
        summary="GPUs that moved to another machine or slot, and slots that hold another GPU, newest first",
        description="As hosts tell: a GPU that is passed through to a virtual machine has not moved.",
        responses=errors(),
    )
    async def list_changes(
        self,
        queries: NamedDependency[Queries],
        cluster: Annotated[str | None, QueryParameter(description="Only of this cluster, where it is now.")] = None,
        machine: Annotated[str | None, QueryParameter(description="Only of this machine, by id or name.")] = None,
        kind: Annotated[ChangeKind | None, QueryParameter(description="Only of this kind.")] = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> GpuChangePage:
        """Return a page."""
        place = asked(limit, cursor, "changes", cluster, machine, kind, since, until, place=InstantPlace)
        return await queries.inventory.changes(
            start=instant("since", since) if since is not None else 0,
            end=instant("until", until) if until is not None else queries.now_ns(),
            cluster=cluster,
            machine=machine,
            kind=kind,
            asked=place,
        )

    @get("/pools", summary="GPUs that are alike in name, driver and VBIOS, by cluster", responses=errors())
    async def list_pools(
        self,
        request: Request[Any, Any, Any],
        queries: NamedDependency[Queries],
        cluster: Annotated[str | None, QueryParameter(description="Only of this cluster.")] = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[GpuPool, ...]]:
        """Return them by cluster, side, name, driver and VBIOS."""
        place = asked(limit, cursor, "pools", cluster, place=tuple[str, str, str, str, str])
        return listed(request, page_of(await queries.inventory.pools(cluster), _key, place))


def _key(pool: GpuPool) -> tuple[str, ...]:
    return pool.cluster, pool.side, pool.name or "", pool.driver or "", pool.vbios or ""
