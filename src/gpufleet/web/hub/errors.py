"""Every error as one JSON shape, `ErrorAnswer`, with the right status."""

import logging
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import ExceptionHandlersMap

from gpufleet.hub.query.history import QuestionError
from gpufleet.hub.query.sql import BusyError
from gpufleet.hub.query.targets import AmbiguousError
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.model.errors import ConflictError, GpufleetError, NotFoundError, RegistryError, SqlError, StoreError
from gpufleet.web.hub.access import ForbiddenError
from gpufleet.web.hub.ingest import RETRY_AFTER_SECONDS

LOG = logging.getLogger(__name__)

AnyRequest = Request[Any, Any, Any]

_HTTP_ERRORS = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class DegradedError(GpufleetError):
    """The hub answers, and does not get through what it has taken."""


def _answer(status: int, error: ErrorAnswer) -> Response[ErrorAnswer]:
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
    return Response(error, status_code=status, media_type="application/json", headers=headers)


def _question(_: AnyRequest, error: QuestionError) -> Response[ErrorAnswer]:
    return _answer(400, ErrorAnswer(error="bad_request", detail=str(error), field=error.field))


def _forbidden(_: AnyRequest, error: ForbiddenError) -> Response[ErrorAnswer]:
    return _answer(403, ErrorAnswer(error="forbidden", detail=str(error)))


def _not_found(_: AnyRequest, error: NotFoundError) -> Response[ErrorAnswer]:
    return _answer(404, ErrorAnswer(error="not_found", detail=str(error)))


def _ambiguous(_: AnyRequest, error: AmbiguousError) -> Response[ErrorAnswer]:
    return _answer(409, ErrorAnswer(error="ambiguous", detail=str(error), candidates=error.candidates))


def _conflict(_: AnyRequest, error: ConflictError) -> Response[ErrorAnswer]:
    return _answer(409, ErrorAnswer(error="conflict", detail=str(error)))


def _unavailable(_: AnyRequest, error: StoreError | RegistryError) -> Response[ErrorAnswer]:
    LOG.warning("a question could not be answered: %s", error)
    return _answer(503, ErrorAnswer(error="unavailable", detail=str(error)))


def _http(request: AnyRequest, error: HTTPException) -> Response[ErrorAnswer]:
    """Say what the framework found, naming the field where it knows one."""
    status = error.status_code
    if status >= 500:
        return _defect(request, error)
    if status == 404:
        detail = f"there is no {request.url.path}; /openapi.json lists what there is"
        return _answer(404, ErrorAnswer(error="not_found", detail=detail))
    extra = error.extra
    first = extra[0] if isinstance(extra, list) and extra and isinstance(extra[0], dict) else {}
    field, words = str(first.get("key", "")), str(first.get("message", "")) or error.detail
    if field == "data":
        field = ""  # the framework's name for the whole body
    detail = f"{field}: {words}" if field else words
    return _answer(status, ErrorAnswer(error=_HTTP_ERRORS.get(status, "bad_request"), detail=detail, field=field))


def _defect(request: AnyRequest, error: Exception) -> Response[ErrorAnswer]:
    LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _answer(500, ErrorAnswer(error="internal", detail="a defect; the hub's log has the words"))


def _bad_query(_: AnyRequest, error: SqlError) -> Response[ErrorAnswer]:
    return _answer(400, ErrorAnswer(error="bad_query", detail=str(error), field="sql"))


def _busy(_: AnyRequest, error: BusyError) -> Response[ErrorAnswer]:
    return _answer(503, ErrorAnswer(error="busy", detail=str(error)))


def _too_deep(_: AnyRequest, __: RecursionError) -> Response[ErrorAnswer]:
    return _answer(400, ErrorAnswer(error="bad_request", detail="the body's JSON is nested too deeply"))


def _no_text(_: AnyRequest, error: UnicodeDecodeError) -> Response[ErrorAnswer]:
    return _answer(400, ErrorAnswer(error="bad_request", detail=f"the body's JSON is no UTF-8: {error.reason}"))


def _degraded(_: AnyRequest, error: DegradedError) -> Response[ErrorAnswer]:
    return _answer(503, ErrorAnswer(error="degraded", detail=str(error)))


HANDLERS: ExceptionHandlersMap = {
    QuestionError: _question,
    AmbiguousError: _ambiguous,
    ConflictError: _conflict,
    DegradedError: _degraded,
    ForbiddenError: _forbidden,
    NotFoundError: _not_found,
    RegistryError: _unavailable,
    StoreError: _unavailable,
    SqlError: _bad_query,
    BusyError: _busy,
    msgspec.ValidationError: lambda _, error: _answer(400, ErrorAnswer(error="bad_request", detail=str(error))),
    RecursionError: _too_deep,
    UnicodeDecodeError: _no_text,
    HTTPException: _http,
    Exception: _defect,
}
"""The handlers of the application."""
