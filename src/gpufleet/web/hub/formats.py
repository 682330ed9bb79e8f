"""How an answer is written, in one place for every route: JSON, or a list as CSV or Arrow; and what version it is.

`?format=json|csv|arrow` says which, or else `Accept`. What is asked for and cannot be had is JSON where `Accept` asks,
and 400 where `format` does. Every answer to a GET has an `ETag`, made of its bytes (blake2b takes 1.2 ms a
megabyte); an answer with ages in it is another one each time.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl, urlencode

import msgspec
from litestar import Litestar, Request, Response
from litestar.response.base import ASGIResponse

from gpufleet.hub.query.history import QuestionError
from gpufleet.hub.query.paging import Page
from gpufleet.model.api.answer import EventsAnswer, GpuPage, MachinePage, NodePage
from gpufleet.model.api.inventory import GpuChangePage
from gpufleet.model.api.sql import SqlAnswer
from gpufleet.model.api.usage import UsageAnswer
from gpufleet.web.hub.http import Receive, Scope, Send
from gpufleet.web.hub.tables import Column, answered_columns, columns_of, encode_arrow, encode_csv

T = TypeVar("T")

JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"

FORMATS = {"json": JSON, "csv": CSV, "arrow": ARROW}
"""Word in `?format=` to media type."""

_ENCODE = {CSV: encode_csv, ARROW: encode_arrow}

LISTS: dict[type[msgspec.Struct], str] = {
    NodePage: "items",
    MachinePage: "items",
    GpuPage: "items",
    GpuChangePage: "items",
    EventsAnswer: "events",
    UsageAnswer: "rows",
}
"""Answer to the field that the list is in."""

ON_A_THREAD_BYTES = 1 << 20
"""A larger body has its version made on a thread."""

PIECE = 50
"""Records of a longer list that are written as JSON at once: 50 GPUs take 1 ms, in which no other thread runs."""

_NO_STORE = {"cache-control": "private, no-cache", "vary": "Accept, Authorization"}


class Answered(Response[T], Generic[T]):
    """An answer in the format that was asked for."""

    def to_asgi_response(  # type: ignore[override]  # what it returns is an ASGI application, as the framework wants it
        self, app: Litestar | None, request: Request[Any, Any, Any], **more: Any
    ) -> "ASGIResponse | _Tagged":
        """Return what sends it."""
        listed = _listed(request, self.content)
        media_type = asked_for(request, is_list=listed is not None)
        following = _next_of(self.content)
        self.headers = {**self.headers, **_NO_STORE, **(_link(request, following) if following else {})}
        if listed is not None and media_type != JSON:
            write = functools.partial(_write, media_type, *listed)
            return _Tagged(lambda: asyncio.to_thread(write), self.headers, media_type, request)
        if isinstance(self.content, SqlAnswer) or (listed is not None and len(listed[1]) > PIECE):
            encode = functools.partial(encode_json, self.content)
            return _Tagged(lambda: asyncio.to_thread(encode), self.headers, JSON, request)
        response = super().to_asgi_response(app, request, **more)
        return _Tagged(response, dict(response.headers), media_type, request) if request.method == "GET" else response


def encode_json(content: object) -> bytes:
    """Return the JSON of a list, or of an answer with one; in pieces, between which other threads have a turn.

    Encoding holds the interpreter from begin to end, on whatever thread it is.
    """
    if isinstance(content, tuple):
        return _in_pieces(content)
    assert isinstance(content, msgspec.Struct)
    field = "rows" if isinstance(content, SqlAnswer) else LISTS[type(content)]
    rows = msgspec.Raw(_in_pieces(getattr(content, field)))
    return msgspec.json.encode(msgspec.structs.replace(content, **{field: rows}))


def _in_pieces(records: Sequence[object]) -> bytes:
    pieces = (msgspec.json.encode(records[at : at + PIECE])[1:-1] for at in range(0, len(records), PIECE))
    return b"[" + b",".join(pieces) + b"]"


class _Tagged:
    """Sends what is made already, or is made on a thread; or 304 where the client has it."""

    def __init__(
        self,
        made: ASGIResponse | Callable[[], Awaitable[bytes]],
        headers: dict[str, Any],
        media_type: str,
        request: Request[Any, Any, Any],
    ) -> None:
        self._made = made
        self._headers = headers
        self._media_type = media_type
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = self._made
        if not isinstance(made, ASGIResponse):
            made = ASGIResponse(body=await made(), media_type=self._media_type, headers=self._headers, status_code=200)
        if self._request.method == "GET":
            is_large = len(made.body) > ON_A_THREAD_BYTES
            made.headers["etag"] = tag = await asyncio.to_thread(_tag, made.body) if is_large else _tag(made.body)
            if _has(self._request.headers.get("if-none-match", ""), tag):
                made = ASGIResponse(status_code=304, headers={**_NO_STORE, "etag": tag})
        await made(scope, receive, send)  # type: ignore[arg-type]  # the framework's names for the same ASGI types


def _tag(body: bytes) -> str:
    return f'"{blake2b(body, digest_size=16).hexdigest()}"'


def asked_for(request: Request[Any, Any, Any], *, is_list: bool) -> str:
    """Return the media type of an answer.

    Raises:
        QuestionError: if `format` is not one, or not one of this answer.
    """
    word = request.query_params.get("format")
    if word is not None:
        if word not in FORMATS:
            raise QuestionError("format", f"must be one of {', '.join(FORMATS)}")
        if not is_list and word != "json":
            raise QuestionError("format", "this answer is no list: it is JSON alone")
        return FORMATS[word]
    if not is_list:
        return JSON
    best, chosen = 0.0, JSON
    for part in request.headers.get("accept", "").split(",")[:20]:
        kind, *parameters = (one.strip().lower() for one in part.split(";"))
        weight = next((_weight(one[2:]) for one in parameters if one.startswith("q=")), 1.0)
        offered = JSON if kind in ("*/*", "application/*") else kind
        if offered in FORMATS.values() and weight > best:
            best, chosen = weight, offered
    return chosen


def _weight(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


def listed(request: Request[Any, Any, Any], page: Page[T]) -> Answered[tuple[T, ...]]:
    """Answer with a page as a plain list; where the next one is says the header `Link`."""
    headers = _link(request, page.next) if page.next is not None else {}
    return Answered(page.items, headers=headers)


def _listed(request: Request[Any, Any, Any], content: object) -> tuple[type | None, Sequence[Any]] | None:
    """Return what the records of an answer are, and the records; None where it is no list."""
    if isinstance(content, tuple):
        return _record_of(request), content
    if isinstance(content, SqlAnswer):
        return None, [content]
    for kind, field in LISTS.items():
        if isinstance(content, kind):
            said = next(one.type for one in msgspec.structs.fields(kind) if one.name == field)
            return get_args(said)[0], getattr(content, field)
    return None


def _record_of(request: Request[Any, Any, Any]) -> type:
    """Return the type of the records that a route lists, from what its function says that it returns."""
    said = request.route_handler.parsed_fn_signature.return_type.annotation
    while get_origin(said) is not tuple:
        said = get_args(said)[0]
    record: type = get_args(said)[0]
    return record


def _write(media_type: str, record: type | None, rows: Sequence[Any]) -> bytes:
    columns: list[Column]
    if record is None:
        answer: SqlAnswer = rows[0]
        columns, rows = answered_columns(answer.columns, answer.types), answer.rows
    else:
        columns = columns_of(record, rows)
    return _ENCODE[media_type](columns, rows)


def _next_of(content: object) -> str | None:
    found = getattr(content, "next", None) if isinstance(content, msgspec.Struct) else None
    return found if isinstance(found, str) else None


def _link(request: Request[Any, Any, Any], cursor: str) -> dict[str, str]:
    asked = [(name, value) for name, value in parse_qsl(request.url.query, keep_blank_values=True) if name != "cursor"]
    return {"link": f'<{request.url.path}?{urlencode([*asked, ("cursor", cursor)])}>; rel="next"'}


def _has(asked: str, tag: str) -> bool:
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in asked.split(",")[:100])
