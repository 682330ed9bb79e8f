"""Exception handlers of the API: each error as an `ErrorAnswer` with its HTTP status."""

import logging
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import ExceptionHandlersMap

from gpufleet.hub.query.executors import BusyError
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.targets import AmbiguousError
from gpufleet.model.access import Principal, Role
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.model.errors import (
    ConflictError,
    GpufleetError,
    NotFoundError,
    RegistryError,
    SqlError,
    StoreError,
    StoreStartingError,
)
from gpufleet.web.hub.access import ForbiddenError
from gpufleet.web.hub.ingest import RETRY_AFTER_SECONDS
from gpufleet.web.hub.parameters import parameter_name

LOG = logging.getLogger(__name__)

AnyRequest = Request[Any, Any, Any]

_HTTP_ERRORS = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class DegradedError(GpufleetError):
    """The hub responds, but cannot flush accepted batches."""


def _answer(status: int, error: ErrorAnswer) -> Response[ErrorAnswer]:
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
    return Response(error, status_code=status, media_type="application/json", headers=headers)


def _invalid_query(_: AnyRequest, error: InvalidQueryError) -> Response[ErrorAnswer]:
    return _answer(400, ErrorAnswer(error="bad_request", detail=str(error), field=error.field))


def _forbidden(_: AnyRequest, error: ForbiddenError) -> Response[ErrorAnswer]:
    return _answer(403, ErrorAnswer(error="forbidden", detail=str(error)))


def _not_found(_: AnyRequest, error: NotFoundError) -> Response[ErrorAnswer]:
    return _answer(404, ErrorAnswer(error="not_found", detail=str(error), candidates=error.candidates))


def _ambiguous(_: AnyRequest, error: AmbiguousError) -> Response[ErrorAnswer]:
    return _answer(409, ErrorAnswer(error="ambiguous", detail=str(error), candidates=error.candidates))


def _conflict(_: AnyRequest, error: ConflictError) -> Response[ErrorAnswer]:
    return _answer(409, ErrorAnswer(error="conflict", detail=str(error)))


def _unavailable(request: AnyRequest, error: StoreError | RegistryError) -> Response[ErrorAnswer]:
    """Return 503. The error's text may have paths, statements and ids of all tenants: only operators see it."""
    LOG.warning("cannot answer a query: %s", error)
    principal: Principal | None = request.scope.get("auth")
    reads_all = principal is not None and not principal.roles.isdisjoint((Role.OPERATOR, Role.ADMIN))
    detail = str(error) if reads_all else "the hub's store or registry cannot answer now: retry later"
    return _answer(503, ErrorAnswer(error="unavailable", detail=detail))


def _starting(_: AnyRequest, __: StoreStartingError) -> Response[ErrorAnswer]:
    detail = "the hub is loading the newest samples after a start: retry in some seconds"
    return _answer(503, ErrorAnswer(error="starting", detail=detail))


def _http(request: AnyRequest, error: HTTPException) -> Response[ErrorAnswer]:
    """Convert an error of the framework, with its field if known."""
    status = error.status_code
    body_error = _body_error(error)
    if body_error is not None:
        return _answer(400, body_error)
    if status >= 500:
        return _internal_error(request, error)
    if status == 404:
        detail = f"no such path: {request.url.path}; /openapi.json lists all paths"
        return _answer(404, ErrorAnswer(error="not_found", detail=detail))
    extra = error.extra
    first = extra[0] if isinstance(extra, list) and extra and isinstance(extra[0], dict) else {}
    field, message = str(first.get("key", "")), str(first.get("message", "")) or error.detail
    if field == "data":
        field = ""  # the framework's name for the whole body
    elif field:
        field = parameter_name(request.route_handler, field)
    detail = f"{field}: {message}" if field else message
    return _answer(status, ErrorAnswer(error=_HTTP_ERRORS.get(status, "bad_request"), detail=detail, field=field))


def _body_error(error: HTTPException) -> ErrorAnswer | None:
    """Return the error of an invalid body that the framework reports as an internal error.

    If a body field has the name of a dependency, such as `tenant`, the framework reports its error as the dependency's.
    """
    if error.status_code < 500 or not isinstance(error.__cause__, msgspec.ValidationError):
        return None
    message, _, path = str(error.__cause__).rpartition(" - at ")
    _, _, field = path.strip("`").partition("$.data.")  # `data` is the framework's name for the whole body
    if not field:
        return None
    return ErrorAnswer(error="bad_request", detail=f"{field}: {message}", field=field)


def _internal_error(request: AnyRequest, error: Exception) -> Response[ErrorAnswer]:
    LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _answer(500, ErrorAnswer(error="internal", detail="internal error: see the hub's log"))


def _bad_query(_: AnyRequest, error: SqlError) -> Response[ErrorAnswer]:
    return _answer(400, ErrorAnswer(error="bad_query", detail=str(error), field="sql"))


def _busy(_: AnyRequest, error: BusyError) -> Response[ErrorAnswer]:
    return _answer(503, ErrorAnswer(error="busy", detail=str(error)))


def _too_deep(_: AnyRequest, __: RecursionError) -> Response[ErrorAnswer]:
    return _answer(400, ErrorAnswer(error="bad_request", detail="the body's JSON is nested too deeply"))


def _not_utf8(_: AnyRequest, error: UnicodeDecodeError) -> Response[ErrorAnswer]:
    return _answer(400, ErrorAnswer(error="bad_request", detail=f"the body is not valid UTF-8: {error.reason}"))


def _degraded(_: AnyRequest, error: DegradedError) -> Response[ErrorAnswer]:
    return _answer(503, ErrorAnswer(error="degraded", detail=str(error)))


HANDLERS: ExceptionHandlersMap = {
    InvalidQueryError: _invalid_query,
    AmbiguousError: _ambiguous,
    ConflictError: _conflict,
    DegradedError: _degraded,
    ForbiddenError: _forbidden,
    NotFoundError: _not_found,
    RegistryError: _unavailable,
    StoreError: _unavailable,
    StoreStartingError: _starting,
    SqlError: _bad_query,
    BusyError: _busy,
    msgspec.ValidationError: lambda _, error: _answer(400, ErrorAnswer(error="bad_request", detail=str(error))),
    RecursionError: _too_deep,
    UnicodeDecodeError: _not_utf8,
    HTTPException: _http,
    Exception: _internal_error,
}
"""Exception handlers of the application."""
