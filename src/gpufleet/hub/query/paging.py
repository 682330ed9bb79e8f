"""Lists in pages: how many, after what, and of which question. Pure.

A cursor is the place of the last entry in the list's order, so nothing comes twice whatever changes between two pages,
and a mark of the question that it is of: with another one it is refused.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from gpufleet.hub.query.history import QuestionError

T = TypeVar("T")

MOST = 1000
"""Entries of one page, unless fewer are asked for."""

Key = tuple[Any, ...]
"""Place of an entry in the order of a list: of a machine, its cluster, name and id."""

MAX_CURSOR = 4096


class Asked(msgspec.Struct, frozen=True):
    """The page that is asked for: at most so many entries (about, for devices), after that place; of which question."""

    limit: int = MOST
    after: Any = None
    question: bytes = b""

    def cursor(self, place: Key) -> str:
        """Return what to ask for the page after a place with."""
        return base64.urlsafe_b64encode(msgspec.msgpack.encode((self.question, place))).decode().rstrip("=")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list that is answered plainly; `next` is the cursor of the page after it, None on the last."""

    items: tuple[T, ...]
    next: str | None


def asked(limit: int | None, cursor: str | None, *question: object, place: Any = tuple[str, str, str]) -> Asked:
    """Read what was asked for.

    Args:
        limit, cursor: as they were given.
        question: everything else that says which list it is, and of whom.
        place: type of a place in its order.

    Raises:
        QuestionError: naming the parameter.
    """
    if limit is not None and not 1 <= limit <= MOST:
        raise QuestionError("limit", f"must be from 1 to {MOST}")
    mark = blake2b(repr(question).encode("utf-8", "replace"), digest_size=8).digest()
    after = None if cursor is None else _place(cursor, mark, place)
    return Asked(MOST if limit is None else limit, after, mark)


def page_of(entries: Sequence[T], key: Callable[[T], Key], asked: Asked) -> Page[T]:
    """Cut a page out of a whole list, in the order of its keys."""
    rest = sorted((one for one in entries if asked.after is None or key(one) > asked.after), key=key)
    items = tuple(rest[: asked.limit])
    return Page(items, asked.cursor(key(items[-1])) if len(rest) > len(items) else None)


def _place(cursor: str, mark: bytes, place: Any) -> Any:
    try:
        if len(cursor) > MAX_CURSOR or not cursor.isascii():
            raise ValueError
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        question, after = msgspec.msgpack.decode(raw, type=tuple[bytes, msgspec.Raw])
        if question != mark:
            raise QuestionError("cursor", "is of another question: ask that one, or begin without a cursor")
        return msgspec.msgpack.decode(after, type=place)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise QuestionError("cursor", "is not the `next` of a page of this list") from error
