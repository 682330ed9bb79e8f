"""Parsing and validation of query parameters."""

import contextlib
import datetime as dt
import re
from typing import Annotated, Any

import msgspec
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter

from gpufleet.hub.query.history import InvalidQueryError, SeriesWindow, make_window
from gpufleet.model.time import NANOS, to_ns
from gpufleet.model.view import ViewKind, normalise_pci_address
from gpufleet.web.query_string import ParameterError, parse_query_string

Limit = Annotated[int | None, QueryParameter(description="Entries per page, 1 to 1000; default: 1000.")]
Cursor = Annotated[
    str | None, QueryParameter(description="Position of the page: `next` or the `Link` header of the previous page.")
]
Metrics = Annotated[
    list[str] | None,
    QueryParameter(name="metric", description="Catalogue name; required, may be repeated."),
]
Start = Annotated[str | None, QueryParameter(description="RFC 3339; default: one hour before `end`.")]
End = Annotated[str | None, QueryParameter(description="RFC 3339, exclusive; default: now.")]
Step = Annotated[str | None, QueryParameter(description="Duration such as 60, 15s, 1m or 6h; default: 60 seconds.")]

InstantPlace = tuple[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], Annotated[int, msgspec.Meta(ge=0)]]
"""Page position in a list sorted by time: nanoseconds since 1970, and a number."""

DEFAULT_SPAN = 3600 * NANOS
DEFAULT_STEP = 60 * NANOS

_STEP = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)?")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_window(start: str | None, end: str | None, step: str | None, now: int) -> SeriesWindow:
    """Parse a window; the default is the last hour in steps of one minute.

    Raises:
        InvalidQueryError: naming the parameter.
    """
    last = parse_instant("end", end) if end is not None else now
    first = parse_instant("start", start) if start is not None else last - DEFAULT_SPAN
    return make_window(first, last, parse_duration("step", step) if step is not None else DEFAULT_STEP)


def parse_instant(field: str, text: str) -> int:
    """Parse an RFC 3339 time as nanoseconds since 1970.

    Raises:
        InvalidQueryError: if the time is invalid, has no time zone or is before 1970.
    """
    # A plus sign in a query string is decoded as a space.
    fixed = text.replace(" ", "+") if "T" in text else text
    try:
        at = to_ns(msgspec.convert(fixed, dt.datetime))
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidQueryError(field, f"{text!r} is not an RFC 3339 time such as 2026-01-31T12:00:00Z") from error
    if at < 0:
        raise InvalidQueryError(field, f"{text!r} is before 1970")
    return at


def gpu_view_key(text: str) -> str:
    """Return the view key of a GPU: by PCI address if the text is one, otherwise by UUID."""
    with contextlib.suppress(ValueError):
        return f"{ViewKind.GPU}/pci/{normalise_pci_address(text)}"
    return f"{ViewKind.GPU}/{text}"


def parse_duration(field: str, text: str) -> int:
    """Parse a duration (`60`, `15s`, `1m`, `6h`, `1d`) as nanoseconds.

    Raises:
        InvalidQueryError: if the text is not a duration.
    """
    found = _STEP.fullmatch(text)
    if found is None:
        raise InvalidQueryError(field, f"{text!r} is not a duration such as 60, 15s, 1m or 6h")
    return int(float(found[1]) * _SECONDS[found[2]] * NANOS)


FORMAT = "format"
"""Parameter of every route."""


def reject_unknown_parameters(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Reject unknown and repeated query parameters.

    Raises:
        InvalidQueryError: naming the parameter.
    """
    query = connection.scope["query_string"]
    if not query or not connection.scope["path"].startswith("/v1/"):
        return
    try:
        parse_query_string(query, connection.url.path, {FORMAT: False, **_parameters(handler)})
    except ParameterError as error:
        raise InvalidQueryError(error.field, error.reason) from error


def parameter_name(handler: BaseRouteHandler, argument: str) -> str:
    """Return the name of a parameter in requests; the framework reserves some names for arguments, such as `state`."""
    field = handler.parsed_fn_signature.parameters.get(argument)
    parameter = None if field is None else field.kwarg_definition
    return (isinstance(parameter, QueryParameter) and parameter.name) or argument


def _parameters(handler: BaseRouteHandler) -> dict[str, bool]:
    """Return the query parameters of a route, and whether each may be repeated."""
    return {
        parameter.name or name: field.is_non_string_sequence
        for name, field in handler.parsed_fn_signature.parameters.items()
        if isinstance(parameter := field.kwarg_definition, QueryParameter)
    }
