"""Route of holders."""

from typing import Annotated

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from gpufleet.hub.query import Queries
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.holders import HolderFilter
from gpufleet.hub.query.paging import parse_page_request
from gpufleet.model.api.holders import HolderPage
from gpufleet.model.holdings import HolderKind
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import Cursor, Limit, parse_instant

Place = tuple[str, str, str, str, str, str, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]
"""Page position in the list, as `holding_place` returns it."""

Ids = Annotated[
    list[str] | None,
    QueryParameter(
        name="id", description="Only this holder, by pod UID, job id, VM UUID or container id; may be repeated."
    ),
]


class HolderRoutes(Controller):
    """Holders of devices."""

    path = "/v1/holders"
    tags = ("fleet",)

    @get(
        summary="List holders: which pod, job or virtual machine has which device",
        description="Default: holders whose holding lasts now. `at` selects an instant, `start` and `end` an interval. "
        "A page can have fewer entries than its limit.",
        responses=errors(),
    )
    async def list_holders(
        self,
        queries: NamedDependency[Queries],
        cluster: Annotated[str | None, QueryParameter(description="Only entries of this cluster.")] = None,
        machine: Annotated[
            str | None, QueryParameter(description="Only entries of this machine, by id or name.")
        ] = None,
        kind: Annotated[HolderKind | None, QueryParameter(description="Only holders of this kind.")] = None,
        ids: Ids = None,
        namespace: Annotated[
            str | None, QueryParameter(description="Only holders of this Kubernetes namespace.")
        ] = None,
        name: Annotated[str | None, QueryParameter(description="Only holders with this name.")] = None,
        user: Annotated[str | None, QueryParameter(description="Only holders of this user.")] = None,
        account: Annotated[str | None, QueryParameter(description="Only holders of this account.")] = None,
        queue: Annotated[
            str | None,
            QueryParameter(description="Only holders of this queue: a SLURM partition, or a queue in Kubernetes."),
        ] = None,
        at: Annotated[str | None, QueryParameter(description="RFC 3339; not with `start` or `end`.")] = None,
        start: Annotated[str | None, QueryParameter(description="RFC 3339.")] = None,
        end: Annotated[
            str | None, QueryParameter(description="RFC 3339, exclusive; default: now. Needs `start`.")
        ] = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> HolderPage:
        """Return a page, by cluster, machine, device and holder."""
        query = (cluster, machine, kind, ids, namespace, name, user, account, queue, at, start, end)
        selected = HolderFilter(
            cluster=cluster,
            machine=machine,
            kind=kind,
            ids=tuple(ids or ()),
            namespace=namespace,
            name=name,
            user=user,
            account=account,
            queue=queue,
            interval=_interval(at, start, end, queries.now_ns()),
        )
        return await queries.holders.page(selected, parse_page_request(limit, cursor, "holders", *query, place=Place))


def _interval(at: str | None, start: str | None, end: str | None, now: int) -> tuple[int, int] | None:
    """Return the interval of a query in nanoseconds since 1970; None for now.

    Raises:
        InvalidQueryError: naming the parameter.
    """
    if at is not None:
        if start is not None or end is not None:
            raise InvalidQueryError("at", "conflicts with start and end: set an instant or an interval")
        instant = parse_instant("at", at)
        return instant, instant + 1
    if start is None:
        if end is not None:
            raise InvalidQueryError("end", "needs start: set both, or at for an instant")
        return None
    return parse_instant("start", start), now if end is None else parse_instant("end", end)
