"""Times and steps out of query strings.

What a query string may say: what its route takes, and once where one is meant.

A filter that nothing heeds would be answered with everything, as if all of it fitted.
"""

import contextlib
import datetime as dt
import re
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter

from gpufleet.hub.query.history import QuestionError, Window, window
from gpufleet.model.time import NANOS, to_ns
from gpufleet.model.view import ViewKind, normalise_pci_address

Limit = Annotated[int | None, QueryParameter(description="Entries of a page; 1 to 1000, 1000 unless given.")]
Cursor = Annotated[str | None, QueryParameter(description="Of the page before: its `next`, or what its `Link` says.")]

InstantPlace = tuple[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], Annotated[int, msgspec.Meta(ge=0)]]
"""Place in a list by time: nanoseconds since 1970, and a number."""

DEFAULT_SPAN = 3600 * NANOS
DEFAULT_STEP = 60 * NANOS

_STEP = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)?")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def asked_window(start: str | None, end: str | None, step: str | None, now: int) -> Window:
    """Read a window; by default the last hour in minutes.

    Raises:
        QuestionError: naming the parameter.
    """
    last = instant("end", end) if end is not None else now
    first = instant("start", start) if start is not None else last - DEFAULT_SPAN
    return window(first, last, span("step", step) if step is not None else DEFAULT_STEP)


def instant(field: str, text: str) -> int:
    """Read an RFC 3339 time as nanoseconds since 1970.

    Raises:
        QuestionError: if it is not one, has no time zone or is before 1970.
    """
    # A plus in a query string arrives as a space.
    fixed = text.replace(" ", "+") if "T" in text else text
    try:
        at = to_ns(msgspec.convert(fixed, dt.datetime))
    except (msgspec.ValidationError, ValueError) as error:
        raise QuestionError(field, f"{text!r} is not an RFC 3339 time such as 2026-01-31T12:00:00Z") from error
    if at < 0:
        raise QuestionError(field, f"{text!r} is before 1970")
    return at


def gpu_key(text: str) -> str:
    """Return the key of a GPU's view: by a PCI address if it is one, or else by UUID."""
    with contextlib.suppress(ValueError):
        return f"{ViewKind.GPU}/pci/{normalise_pci_address(text)}"
    return f"{ViewKind.GPU}/{text}"


def span(field: str, text: str) -> int:
    """Read a span of time (`60`, `15s`, `1m`, `6h`, `1d`) as nanoseconds.

    Raises:
        QuestionError: if it is not one.
    """
    found = _STEP.fullmatch(text)
    if found is None:
        raise QuestionError(field, f"{text!r} is not a span of time such as 60, 15s, 1m or 6h")
    return int(float(found[1]) * _SECONDS[found[2]] * NANOS)


FORMAT = "format"
"""Every route takes it."""


def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse a query string of which a part would not be heeded.

    Raises:
        QuestionError: naming the parameter.
    """
    query = connection.scope["query_string"].decode("latin-1")
    if not query or not connection.scope["path"].startswith("/v1/"):
        return
    taken = {FORMAT: False, **_parameters(handler)}
    met: set[str] = set()
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name not in taken:
            words = f"there is no such parameter: {connection.url.path} takes {', '.join(sorted(taken))}"
            raise QuestionError(name[:100], words)
        if name in met and not taken[name]:
            raise QuestionError(name, "is given more than once, and one is meant")
        met.add(name)


def _parameters(handler: BaseRouteHandler) -> dict[str, bool]:
    """Return the query parameters of a route, and whether each can be repeated."""
    return {
        said.name or name: field.is_non_string_sequence
        for name, field in handler.parsed_fn_signature.parameters.items()
        if isinstance(said := field.kwarg_definition, QueryParameter)
    }
