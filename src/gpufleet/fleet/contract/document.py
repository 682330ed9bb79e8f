"""YAML documents with the line of each value: texts, lists and tables only. Pure.

Hostile documents are rejected before their values are built: size, depth and number of values are bounded, and aliases,
anchors, tags, repeated keys and further documents are errors. Scalars stay texts: `1.10` is not a number.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from gpufleet.model.errors import WireError

MAX_BYTES = 512 << 10
"""Maximum size of a document; the contract has 30 KB."""

MAX_DEPTH = 8
"""Maximum nesting; the contract has four levels."""

MAX_VALUES = 20_000
MAX_TEXT_LENGTH = 4000

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class DocumentError(WireError):
    """Invalid document; `line` is the place, counted from 1."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        super().__init__(f"line {line}", reason)


class DocumentValue(msgspec.Struct, frozen=True):
    """Value of a document.

    Attributes:
        line: line of its first character, counted from 1.
        content: a text, None for an empty value, a list, or a table.
    """

    line: int
    content: str | list["DocumentValue"] | dict[str, "DocumentValue"] | None

    def plain(self) -> Any:
        """Return the value as Python's texts, lists and tables, without lines."""
        if isinstance(self.content, list):
            return [one.plain() for one in self.content]
        if isinstance(self.content, dict):
            return {key: one.plain() for key, one in self.content.items()}
        return self.content

    @property
    def kind(self) -> str:
        """Return the kind of the value for messages."""
        if isinstance(self.content, list):
            return "a list" if self.content else "an empty list"
        if isinstance(self.content, dict):
            return "a table"
        return "no value" if self.content is None else "a text"


def read_document(content: bytes) -> DocumentValue:
    """Return the value of a YAML document.

    Raises:
        DocumentError: if it is not a document of texts, lists and tables, or exceeds a limit.
        ModuleNotFoundError: if PyYAML is not installed.
    """
    if len(content) > MAX_BYTES:
        raise DocumentError(1, f"the document has more than {MAX_BYTES >> 10} KiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DocumentError(line, "the text is not UTF-8") from None
    found = _DocumentBuilder(_events(text)).build()
    if found is None:
        raise DocumentError(1, "the document is empty")
    return found


def _events(text: str) -> Iterator[Any]:
    """Yield the parsing events; a syntax error is a DocumentError with its line."""
    import yaml  # from the extras `hub` and `kubernetes`

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.parse(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        raise DocumentError(mark.line + 1 if mark else 1, f"not YAML: {reason}") from None
    except yaml.YAMLError as error:
        raise DocumentError(_error_line(text, error), f"not YAML: {' '.join(str(error).split())[:200]}") from None


def _error_line(text: str, error: Any) -> int:
    position = getattr(error, "position", None)
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else 1


class _DocumentBuilder:
    """Builds values from parsing events."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._values = 0

    def build(self) -> DocumentValue | None:
        """Return the value of the only document; None if there is no document.

        Raises:
            DocumentError: if there are several documents, or the document is invalid.
        """
        found: DocumentValue | None = None
        for event in self._events:
            name = type(event).__name__
            if name == "DocumentStartEvent":
                if found is not None:
                    raise DocumentError(_line(event), "there is a second document: write one")
                found = self._value(next(self._events), 0)
        return found

    def _value(self, event: Any, depth: int) -> DocumentValue:
        name, line = type(event).__name__, _line(event)
        self._values += 1
        if self._values > MAX_VALUES:
            raise DocumentError(line, f"the document has more than {MAX_VALUES} values")
        if name == "AliasEvent" or event.anchor is not None:
            raise DocumentError(line, "anchors (&name) and aliases (*name) are not supported: write the value out")
        if event.tag is not None:
            raise DocumentError(line, "tags (!name) are not supported: write the value without it")
        if name == "ScalarEvent":
            return DocumentValue(line, _text(event, line))
        if depth >= MAX_DEPTH:
            raise DocumentError(line, f"the document is nested more than {MAX_DEPTH} levels deep")
        if name == "SequenceStartEvent":
            return DocumentValue(line, self._list(depth + 1))
        return DocumentValue(line, self._table(depth + 1))

    def _list(self, depth: int) -> list[DocumentValue]:
        found = []
        while type(event := next(self._events)).__name__ != "SequenceEndEvent":
            found.append(self._value(event, depth))
        return found

    def _table(self, depth: int) -> dict[str, DocumentValue]:
        found: dict[str, DocumentValue] = {}
        while type(event := next(self._events)).__name__ != "MappingEndEvent":
            key = self._value(event, depth)
            if not isinstance(key.content, str):
                raise DocumentError(key.line, f"a key is {key.kind}: use a text")
            if key.content in found:
                raise DocumentError(key.line, f"the key {key.content[:60]!r} is repeated: remove one")
            found[key.content] = self._value(next(self._events), depth)
        return found


def _text(event: Any, line: int) -> str | None:
    """Return the text of a scalar with single spaces for line breaks; None for an empty one."""
    text: str = event.value
    if event.implicit[0] and text in _NULLS:
        return None
    if len(text) > MAX_TEXT_LENGTH:
        raise DocumentError(line, f"a text has more than {MAX_TEXT_LENGTH} characters")
    text = " ".join(text.split())
    if not text.isprintable():
        raise DocumentError(line, "a text has control or invisible characters: remove them")
    return text


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
