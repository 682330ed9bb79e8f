"""Complete lists in pages, and events of watches, decoded object by object."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from gpufleet.holders.kubernetes.connection import (
    FULL,
    MAX_PAGE_BYTES,
    METADATA,
    METADATA_LIST,
    TOO_LARGE,
    ApiConnection,
)
from gpufleet.holders.kubernetes.parse.nesting import decode_json, without_deep_values
from gpufleet.holders.kubernetes.resources import ApiResource
from gpufleet.model.errors import KubernetesApiError, WireError
from gpufleet.model.text import bounded

T = TypeVar("T")
Convert = Callable[[bytes | msgspec.Raw], T | None]
"""Turns the JSON of an object into a record, or None if the object is not needed.

It raises `WireError` or `msgspec.DecodeError` for an object that is not valid.
"""

PAGE_OBJECTS = 500
MAX_RESTARTS = 3
"""Number of times that a list begins again because its pages expired."""

MAX_PAGES = 20_000
"""Maximum number of pages of a list."""

SMALLER = 8
"""Divisor of the number of objects of a page after a page that was too large."""

MAX_DETAIL = 200
GONE = 410


class Decoded(msgspec.Struct, Generic[T], frozen=True):
    """An object of a list or an event.

    Attributes:
        key: its UID; for an object without a valid UID, `namespace/name`.
        version: its resource version, or empty.
        record: the record, or None if the object is not needed or not valid.
        problem: why it is not valid, or empty.
    """

    key: str
    version: str
    record: T | None = None
    problem: str = ""


class Listed(msgspec.Struct, Generic[T], frozen=True):
    """A complete list.

    Attributes:
        records: records by UID.
        problems: keys of invalid objects, with the reason.
        version: resource version from which a watch continues.
        is_complete: false if objects beyond the limit were left out.
    """

    records: dict[str, T]
    problems: dict[str, str]
    version: str
    is_complete: bool


class WatchEvent(msgspec.Struct, frozen=True):
    """Event of a watch: `kind` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    kind: str = msgspec.field(name="type")
    object: msgspec.Raw


class _HeadMetadata(msgspec.Struct):
    uid: str = ""
    namespace: str = ""
    name: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")


class _ObjectHead(msgspec.Struct):
    metadata: _HeadMetadata


class _ListMetadata(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")
    more: str = msgspec.field(name="continue", default="")


class _ListPage(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _EventStatus(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


_HEADS = msgspec.json.Decoder(_ObjectHead)
_PAGES = msgspec.json.Decoder(_ListPage)
_EVENTS = msgspec.json.Decoder(WatchEvent)


def decode_object(data: bytes | msgspec.Raw, convert: Convert[T]) -> Decoded[T]:
    """Decode an object; one that is not valid costs only itself."""
    try:
        return _decode_object(data, convert)
    except RecursionError:
        return _decode_object(without_deep_values(data), convert)


def _decode_object(data: bytes | msgspec.Raw, convert: Convert[T]) -> Decoded[T]:
    try:
        metadata = _HEADS.decode(data).metadata
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Decoded("", "", problem=bounded(f"metadata: {error}", MAX_DETAIL))
    name = bounded(f"{metadata.namespace}/{metadata.name}", 2 * MAX_DETAIL)
    if not metadata.uid or len(metadata.uid) > MAX_DETAIL:
        return Decoded(name, metadata.version, problem=f"{name}: no valid UID")
    try:
        return Decoded(metadata.uid, metadata.version, convert(data))
    except (msgspec.DecodeError, UnicodeDecodeError, WireError) as error:
        return Decoded(metadata.uid, metadata.version, problem=bounded(f"{name}: {error}", MAX_DETAIL))


def decode_event(line: bytes) -> WatchEvent:
    """Decode a line of a watch.

    Raises:
        KubernetesApiError: if the line is not an event.
    """
    try:
        return decode_json(_EVENTS, line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KubernetesApiError(f"a line of the watch is not an event: {error}") from None


async def list_objects(
    connection: ApiConnection,
    resource: ApiResource,
    convert: Convert[T],
    *,
    query: Mapping[str, str] | None = None,
    namespace: str = "",
    metadata_only: bool = False,
    max_objects: int,
    page_objects: int = PAGE_OBJECTS,
    page_bytes: int = MAX_PAGE_BYTES,
) -> Listed[T]:
    """Return the objects of a resource, read in pages. If the pages expire (410), the list begins again.

    After a page of more than `page_bytes`, the pages have fewer objects.

    Args:
        connection: to the API server.
        resource: the resource.
        convert: turns an object into a record.
        query: selectors.
        namespace: only this namespace.
        metadata_only: whether only the metadata of the objects is transferred.
        max_objects: further records are left out.
        page_objects: number of objects of a page.
        page_bytes: maximum size of a page.

    Raises:
        KubernetesApiError: if a page cannot be read; status 410 if the pages expired `MAX_RESTARTS` times.
    """
    path = resource.path(namespace)
    accept = METADATA_LIST if metadata_only else FULL
    restarts, more = 0, ""
    listed: Listed[T] = Listed({}, {}, "", is_complete=True)
    for _ in range(MAX_PAGES):
        parameters = {**(query or {}), "limit": str(page_objects)}
        if more:
            parameters["continue"] = more
        try:
            data = await connection.get(path, parameters, accept=accept, max_bytes=page_bytes)
        except KubernetesApiError as error:
            if error.code == TOO_LARGE and page_objects > 1:
                page_objects = max(1, page_objects // SMALLER)
                continue
            if error.status != GONE or not more or restarts >= MAX_RESTARTS:
                raise
            restarts, more, listed = restarts + 1, "", Listed({}, {}, "", is_complete=True)
            continue
        try:
            page = decode_json(_PAGES, data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise KubernetesApiError(f"{path}: the response is not a list: {error}") from None
        is_complete = _add(listed, page, convert, max_objects) and listed.is_complete
        listed = Listed(listed.records, listed.problems, page.metadata.version, is_complete)
        more = page.metadata.more
        if not more:
            if not listed.version:
                raise KubernetesApiError(f"{path}: the list has no resource version")
            return listed
    raise KubernetesApiError(f"{path}: the list has more than {MAX_PAGES} pages")


def _add(listed: Listed[T], page: _ListPage, convert: Convert[T], max_objects: int) -> bool:
    """Add the objects of a page; return whether all are within the limit."""
    fits = True
    for raw in page.items or ():
        found: Decoded[T] = decode_object(raw, convert)
        if len(listed.records) + len(listed.problems) >= max_objects:
            fits = fits and found.record is None and not found.problem
        elif found.problem:
            listed.problems[found.key] = found.problem
        elif found.record is not None:
            listed.records[found.key] = found.record
    return fits


def error_of_event(data: msgspec.Raw, resource: str) -> KubernetesApiError:
    """Return the error of an ERROR event. Its status is 410 in each case, because the watch cannot continue."""
    try:
        status = msgspec.json.decode(data, type=_EventStatus)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = _EventStatus()
    detail = bounded(status.message, MAX_DETAIL)
    return KubernetesApiError(f"{resource}: watch ended: {status.code} {detail}", status=GONE, code=status.reason[:64])


def watch_accept(*, metadata_only: bool) -> str:
    """Return the `Accept` header of a watch."""
    return METADATA if metadata_only else FULL
