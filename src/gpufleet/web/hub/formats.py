"""Response formats of all routes, JSON and for lists also CSV and Arrow, and their entity tags.

`?format=json|csv|arrow` selects the format, otherwise `Accept` does. An unknown `format=` returns 400. An unsupported
`Accept` header falls back to JSON. Each response to a GET has an `ETag` computed from its bytes (blake2b takes 1.2 ms
per megabyte). A response that contains ages has a new tag each time.
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

from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.paging import ResultPage
from gpufleet.model.api.answer import EventsAnswer, GpuPage, MachinePage, NodeGpusPage, NodePage
from gpufleet.model.api.findings import FindingPage
from gpufleet.model.api.holders import HolderPage
from gpufleet.model.api.inventory import GpuChangePage
from gpufleet.model.api.sql import SqlAnswer
from gpufleet.model.api.usage import UsageAnswer
from gpufleet.web.hub.http import Receive, Scope, Send
from gpufleet.web.hub.tables import TableColumn, columns_of, encode_arrow, encode_csv, sql_columns

T = TypeVar("T")

JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"

FORMATS = {"json": JSON, "csv": CSV, "arrow": ARROW}
"""Media type by value of `?format=`."""

_ENCODE = {CSV: encode_csv, ARROW: encode_arrow}

LISTS: dict[type[msgspec.Struct], str] = {
    NodePage: "items",
    NodeGpusPage: "items",
    MachinePage: "items",
    GpuPage: "items",
    GpuChangePage: "items",
    FindingPage: "items",
    HolderPage: "items",
    EventsAnswer: "events",
    UsageAnswer: "rows",
}
"""Field that contains the list, by type of answer."""

THREAD_BYTES = 1 << 20
"""The entity tag of a larger body is computed on a thread."""

PIECE_RECORDS = 50
"""Records encoded as JSON at once: 50 GPUs take 1 ms, during which no other thread runs."""

_NO_STORE = {"cache-control": "private, no-cache", "vary": "Accept, Authorization"}


class FormattedResponse(Response[T], Generic[T]):
    """Response in the requested format."""

    def to_asgi_response(  # type: ignore[override]  # returns an ASGI application, as the framework expects
        self, app: Litestar | None, request: Request[Any, Any, Any], **more: Any
    ) -> "ASGIResponse | _TaggedResponse":
        """Return the ASGI application that sends the response."""
        list_response = _records_of(request, self.content)
        media_type = requested_media_type(request, is_list=list_response is not None)
        following = _next_of(self.content)
        self.headers = {**self.headers, **_NO_STORE, **(_link(request, following) if following else {})}
        if list_response is not None and media_type != JSON:
            write = functools.partial(_write, media_type, *list_response)
            return _TaggedResponse(lambda: asyncio.to_thread(write), self.headers, media_type, request)
        if isinstance(self.content, SqlAnswer) or (list_response is not None and len(list_response[1]) > PIECE_RECORDS):
            encode = functools.partial(encode_json, self.content)
            return _TaggedResponse(lambda: asyncio.to_thread(encode), self.headers, JSON, request)
        response = super().to_asgi_response(app, request, **more)
        return (
            _TaggedResponse(response, dict(response.headers), media_type, request)
            if request.method == "GET"
            else response
        )


def encode_json(content: object) -> bytes:
    """Encode a list, or an answer that contains one, as JSON in pieces.

    Each piece holds the interpreter lock; other threads run between pieces.
    """
    if isinstance(content, tuple):
        return _in_pieces(content)
    assert isinstance(content, msgspec.Struct)
    field = "rows" if isinstance(content, SqlAnswer) else LISTS[type(content)]
    rows = msgspec.Raw(_in_pieces(getattr(content, field)))
    return msgspec.json.encode(msgspec.structs.replace(content, **{field: rows}))


def _in_pieces(records: Sequence[object]) -> bytes:
    pieces = (
        msgspec.json.encode(records[at : at + PIECE_RECORDS])[1:-1] for at in range(0, len(records), PIECE_RECORDS)
    )
    return b"[" + b",".join(pieces) + b"]"


class _TaggedResponse:
    """Response with an entity tag; its body may be built on a thread. Sends 304 if the client's tag matches."""

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
            is_large = len(made.body) > THREAD_BYTES
            made.headers["etag"] = tag = await asyncio.to_thread(_tag, made.body) if is_large else _tag(made.body)
            if _matches_tag(self._request.headers.get("if-none-match", ""), tag):
                made = ASGIResponse(status_code=304, headers={**_NO_STORE, "etag": tag})
        await made(scope, receive, send)  # type: ignore[arg-type]  # the framework's names for the same ASGI types


def _tag(body: bytes) -> str:
    return f'"{blake2b(body, digest_size=16).hexdigest()}"'


def requested_media_type(request: Request[Any, Any, Any], *, is_list: bool) -> str:
    """Return the media type of a response.

    Raises:
        InvalidQueryError: if `format` is unknown or does not apply to this answer.
    """
    name = request.query_params.get("format")
    if name is not None:
        if name not in FORMATS:
            raise InvalidQueryError("format", f"must be one of {', '.join(FORMATS)}")
        if not is_list and name != "json":
            raise InvalidQueryError("format", "must be json: this answer is not a list")
        return FORMATS[name]
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


def list_response(request: Request[Any, Any, Any], page: ResultPage[T]) -> FormattedResponse[tuple[T, ...]]:
    """Return a page as a plain list, with the next page in the `Link` header."""
    headers = _link(request, page.next) if page.next is not None else {}
    return FormattedResponse(page.items, headers=headers)


def _records_of(request: Request[Any, Any, Any], content: object) -> tuple[type | None, Sequence[Any]] | None:
    """Return the record type of an answer and its records; None if the answer is not a list."""
    if isinstance(content, tuple):
        return _record_of(request), content
    if isinstance(content, SqlAnswer):
        return None, [content]
    for kind, field in LISTS.items():
        if isinstance(content, kind):
            list_type = next(one.type for one in msgspec.structs.fields(kind) if one.name == field)
            return get_args(list_type)[0], getattr(content, field)
    return None


def _record_of(request: Request[Any, Any, Any]) -> type:
    """Return the type of the records that a route lists, from the return annotation of its handler."""
    annotation = request.route_handler.parsed_fn_signature.return_type.annotation
    while get_origin(annotation) is not tuple:
        annotation = get_args(annotation)[0]
    record: type = get_args(annotation)[0]
    return record


def _write(media_type: str, record: type | None, rows: Sequence[Any]) -> bytes:
    columns: list[TableColumn]
    if record is None:
        answer: SqlAnswer = rows[0]
        columns, rows = sql_columns(answer.columns, answer.types), answer.rows
    else:
        columns = columns_of(record, rows)
    return _ENCODE[media_type](columns, rows)


def _next_of(content: object) -> str | None:
    found = getattr(content, "next", None) if isinstance(content, msgspec.Struct) else None
    return found if isinstance(found, str) else None


def _link(request: Request[Any, Any, Any], cursor: str) -> dict[str, str]:
    query = [(name, value) for name, value in parse_qsl(request.url.query, keep_blank_values=True) if name != "cursor"]
    return {"link": f'<{request.url.path}?{urlencode([*query, ("cursor", cursor)])}>; rel="next"'}


def _matches_tag(if_none_match: str, tag: str) -> bool:
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in if_none_match.split(",")[:100])
