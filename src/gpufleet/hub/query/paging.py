"""Pagination with cursors. Pure.

A cursor holds the place of the last entry in the list's order, so no entry repeats whatever changes between two pages.
It also holds a hash of the query: a cursor of another query is rejected.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from gpufleet.hub.query.history import InvalidQueryError

T = TypeVar("T")

MAX_PAGE_SIZE = 1000
"""Maximum and default number of entries per page."""

Key = tuple[Any, ...]
"""Place of an entry in the order of a list; for a machine its cluster, name and id."""

MAX_CURSOR = 16_384
"""Maximum length of a cursor: a place can have several texts of 1024 characters."""


class PageRequest(msgspec.Struct, frozen=True):
    """Page request: at most `limit` entries (about, for devices) after a place; `query` is the hash of the query."""

    limit: int = MAX_PAGE_SIZE
    after: Any = None
    query: bytes = b""

    def cursor(self, place: Key) -> str:
        """Return the cursor of the page that follows a place."""
        return base64.urlsafe_b64encode(msgspec.msgpack.encode((self.query, place))).decode().rstrip("=")


class ResultPage(msgspec.Struct, Generic[T], frozen=True):
    """Page of a list without further fields; `next` is the cursor of the next page, None on the last."""

    items: tuple[T, ...]
    next: str | None


def parse_page_request(
    limit: int | None, cursor: str | None, *query: object, place: Any = tuple[str, str, str]
) -> PageRequest:
    """Parse the page parameters of a request.

    Args:
        limit, cursor: parameters as received.
        query: everything else that identifies the list and its audience.
        place: type of a place in its order.

    Raises:
        InvalidQueryError: for `limit` or `cursor`.
    """
    if limit is not None and not 1 <= limit <= MAX_PAGE_SIZE:
        raise InvalidQueryError("limit", f"must be from 1 to {MAX_PAGE_SIZE}")
    digest = blake2b(repr(query).encode("utf-8", "replace"), digest_size=8).digest()
    after = None if cursor is None else _place(cursor, digest, place)
    return PageRequest(MAX_PAGE_SIZE if limit is None else limit, after, digest)


def cut_page(entries: Sequence[T], key: Callable[[T], Key], request: PageRequest) -> ResultPage[T]:
    """Cut a page out of a whole list, in the order of its keys."""
    rest = sorted((one for one in entries if request.after is None or key(one) > request.after), key=key)
    items = tuple(rest[: request.limit])
    return ResultPage(items, request.cursor(key(items[-1])) if len(rest) > len(items) else None)


def _place(cursor: str, digest: bytes, place: Any) -> Any:
    try:
        if len(cursor) > MAX_CURSOR or not cursor.isascii():
            raise ValueError
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        query, after = msgspec.msgpack.decode(raw, type=tuple[bytes, msgspec.Raw])
        if query != digest:
            raise InvalidQueryError("cursor", "is of another query: repeat that query, or start without a cursor")
        return msgspec.msgpack.decode(after, type=place)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise InvalidQueryError("cursor", "is not the `next` of a page of this list") from error
