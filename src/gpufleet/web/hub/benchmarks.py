"""`/v1/benchmarks`: benchmark captures that senders posted. Nothing here starts a capture.

200 {"status": "accepted" | "duplicate", "id"}    durable
400 bad_capture, bad_version    the body is not a capture; `field` names the location
400 bad_request                 an unknown parameter, or no cluster
403 other_cluster               the token is bound to another cluster
403 foreign_cluster             the cluster is not served here
403 too_many_captures           the cluster has reached its limit of captures
408 slow_body, 413 too_large, 415 bad_content_type
503 overloaded, not_written     send it again
"""

import asyncio
from collections.abc import Container
from concurrent.futures import Executor
from typing import Annotated, Any

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from gpufleet.hub.captures import ArchiveFullError, CaptureArchive
from gpufleet.hub.query.paging import cut_page, parse_page_request
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.model.api.benchmarks import MAX_CAPTURE_BYTES, PostedAnswer, PostedCapture
from gpufleet.model.errors import WireError, WireVersionError
from gpufleet.web.hub.formats import list_response
from gpufleet.web.hub.http import (
    BoundedBody,
    ClientDisconnectedError,
    Receive,
    RequestRejectedError,
    Scope,
    Send,
    header,
    respond,
)
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import Cursor, Limit
from gpufleet.web.query_string import ParameterError, parse_query_string


class CaptureEndpoint:
    """Ingestion endpoint of captures.

    Args:
        archive: stores them.
        served: ids of the served clusters.
        pressure: budget of all bodies.
        threads: run the archive, which blocks.
        body_timeout_seconds: time limit of a body.
    """

    def __init__(
        self,
        *,
        archive: CaptureArchive,
        served: Container[str],
        pressure: ByteBudget,
        threads: Executor,
        body_timeout_seconds: float,
    ) -> None:
        self._archive = archive
        self._served = served
        self._pressure = pressure
        self._threads = threads
        self._timeout = body_timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send, bound_to: str | None = None) -> None:
        """Answer a request; `bound_to` is the cluster that the token is bound to, or None."""
        body = BoundedBody(self._pressure, MAX_CAPTURE_BYTES)
        try:
            cluster = self._check_head(scope, bound_to)
            content = await body.read_whole(scope, receive, self._timeout)
            answer = await self._add(cluster, content)
        except ClientDisconnectedError:
            return
        except RequestRejectedError as refused:
            await respond(send, refused.status, refused.answer, [(b"connection", b"close")])
            return
        finally:
            body.close()
        await respond(send, 200, answer)

    def _check_head(self, scope: Scope, bound_to: str | None) -> str:
        try:
            given = parse_query_string(scope["query_string"], scope["path"], {"cluster": False})
        except ParameterError as error:
            raise RequestRejectedError(400, "bad_request", error.reason, error.field) from error
        cluster = next(iter(given.get("cluster", ())), bound_to)
        if cluster is None:
            raise RequestRejectedError(400, "bad_request", "name the cluster of the machine", "cluster")
        if bound_to is not None and cluster != bound_to:
            raise RequestRejectedError(403, "other_cluster", f"the token is bound to {bound_to}", "cluster")
        if cluster not in self._served:
            raise RequestRejectedError(403, "foreign_cluster", f"{cluster[:253]!r} is not served here", "cluster")
        content_type = next(iter(header(scope, b"content-type")), "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise RequestRejectedError(415, "bad_content_type", "send application/json", "Content-Type")
        return cluster

    async def _add(self, cluster: str, content: bytes) -> PostedAnswer:
        loop = asyncio.get_running_loop()
        try:
            record, is_new = await loop.run_in_executor(self._threads, self._archive.add, cluster, content)
        except WireVersionError as error:
            raise RequestRejectedError(400, "bad_version", error.reason, error.field) from error
        except WireError as error:
            raise RequestRejectedError(400, "bad_capture", error.reason, error.field) from error
        except ArchiveFullError as error:
            raise RequestRejectedError(403, "too_many_captures", str(error)) from error
        except OSError as error:
            detail = f"the capture cannot be written: {error.strerror or error}"
            raise RequestRejectedError(503, "not_written", detail) from error
        return PostedAnswer(status="accepted" if is_new else "duplicate", id=record.id)


class BenchmarkRoutes(Controller):
    """Posted captures."""

    path = "/v1/benchmarks"
    tags = ("benchmarks",)

    @get(summary="List benchmark captures that senders posted", responses=errors())
    async def list_captures(
        self,
        request: Request[Any, Any, Any],
        archive: NamedDependency[CaptureArchive],
        cluster: Annotated[str | None, QueryParameter(description="Only entries of this cluster.")] = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[PostedCapture, ...]]:
        """Return a page, sorted by cluster, machine and time of the capture."""
        page = parse_page_request(limit, cursor, "benchmarks", cluster, place=tuple[str, str, str, str])
        records = await asyncio.to_thread(archive.records, cluster)
        return list_response(request, cut_page(records, _place, page))

    @get(
        "/{capture_id:str}",
        summary="Get the document of a posted capture, byte for byte",
        description="`capture_id` is the SHA-256 digest of the document.",
        responses=errors(404),
        media_type="application/json",
    )
    async def get_capture(self, capture_id: FromPath[str], archive: NamedDependency[CaptureArchive]) -> Response[Any]:
        """Return the document."""
        content = await asyncio.to_thread(archive.content, capture_id)
        headers = {"content-disposition": "attachment", "cache-control": "private, no-cache"}
        return Response(content, media_type="application/json", headers=headers)


def _place(one: PostedCapture) -> tuple[str, str, str, str]:
    return one.cluster, one.machine.name, one.started_at.isoformat(), one.id
