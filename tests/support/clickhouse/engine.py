"""Embedded engine used as a server uses it: many connections, each with its own database and settings."""

import contextlib
import importlib
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

_CHDB: Any = importlib.import_module("chdb")  # it has no types

IDLE = 24
"""Maximum number of idle connections kept for requests with the same settings."""

_BOUNDS = {"max_server_memory_usage": 4_000_000_000, "mark_cache_size": 268_435_456}
_WITH_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_ANSWERS = re.compile(r"\s*\(*\s*(SELECT|WITH|SHOW|DESCRIBE|DESC|EXISTS|EXPLAIN)\b", re.IGNORECASE)
_CODE = re.compile(r"Code: (\d+)\.")


class EngineError(Exception):
    """Error of the engine, with its code."""

    def __init__(self, message: str, code: int = 0) -> None:
        place = message.find("Code: ")
        found = _CODE.search(message)
        super().__init__(message[place:] if place > 0 else message)
        self.code = code or (int(found[1]) if found else 1002)  # UNKNOWN_EXCEPTION


class Engine:
    """Engine of one folder, usable from any number of threads."""

    def __init__(self, folder: Path) -> None:
        self._address = f"{folder}?{urlencode(_BOUNDS)}"
        self._first = _CHDB.connect(self._address)  # keeps the engine open
        self._idle: list[tuple[object, Any]] = []
        self._lock = threading.Lock()

    def query(
        self, statement: str, database: str, settings: Mapping[str, str], parameters: Mapping[str, str]
    ) -> tuple[str | None, bytes]:
        """Return the format and bytes of the result; the format is None for a statement without a result.

        Raises:
            EngineError: with the message of the engine.
        """
        named = _WITH_FORMAT.search(statement)
        with self._connection(database, settings) as connection:
            if named is None:
                # The header line distinguishes an empty result from none.
                result = connection.query(statement, "TabSeparatedWithNames", params=dict(parameters)).bytes()
                return ("TabSeparated", result.partition(b"\n")[2]) if result else (None, b"")
            answer = connection.query(statement, named[1], params=dict(parameters)).bytes()
            if not answer and named[1] == "Native" and _ANSWERS.match(statement):
                answer = _without_rows(connection, statement[: named.start()], parameters)
            return named[1], answer

    def insert(self, statement: str, format_: str, rows: bytes, database: str, settings: Mapping[str, str]) -> int:
        """Insert rows of a format and return their number. The statement ends before `FORMAT`."""
        token = settings.get("insert_deduplication_token")
        lasting = {name: value for name, value in settings.items() if name != "insert_deduplication_token"}
        clause = f" SETTINGS insert_deduplication_token = {_quoted(token)}" if token else ""
        with (
            self._connection(database, lasting) as connection,
            connection.send_insert(statement + clause, format_) as to,
        ):
            to.append(rows)
            return int(to.finish().rows_written)

    def close(self) -> None:
        """Close all connections."""
        for _, connection in self._idle:
            connection.close()
        self._first.close()

    @contextlib.contextmanager
    def _connection(self, database: str, settings: Mapping[str, str]) -> Iterator[Any]:
        """Yield a connection with these settings. A failed connection is not reused: see `EmbeddedHandle`."""
        key = database, frozenset(settings.items())
        connection = self._take(key)
        try:
            if connection is None:
                connection = _CHDB.connect(self._address)
                _prepare(connection, database, settings)
            yield connection
        except Exception as error:
            if connection is not None:
                connection.close()
            raise EngineError(str(error)) from error
        with self._lock:
            self._idle.append((key, connection))
            late = self._idle.pop(0)[1] if len(self._idle) > IDLE else None
        if late is not None:
            late.close()

    def _take(self, key: object) -> Any:
        with self._lock:
            for place, (found, idle) in enumerate(self._idle):
                if found == key:
                    del self._idle[place]
                    return idle
        return None


def _prepare(connection: Any, database: str, settings: Mapping[str, str]) -> None:
    if database:
        connection.query(f"USE `{database}`", "TabSeparated")
    for name in sorted(settings, key=lambda name: name == "readonly"):  # readonly forbids later changes
        if not name.isidentifier():
            raise EngineError(f"Code: 115. DB::Exception: Unknown setting '{name}'. (UNKNOWN_SETTING)")
        connection.query(f"SET {name} = {_quoted(settings[name])}", "TabSeparated")


def _without_rows(connection: Any, statement: str, parameters: Mapping[str, str]) -> bytes:
    """Return the leading block of a result: columns and their types, without rows."""
    try:
        described = connection.query(f"DESCRIBE ({statement})", "TabSeparatedRaw", params=dict(parameters)).bytes()
    except Exception:  # noqa: BLE001 - SHOW and EXISTS always have rows
        return b""
    columns = [line.split("\t")[:2] for line in described.decode().splitlines()]
    return _number(len(columns)) + _number(0) + b"".join(_text(name) + _text(kind) for name, kind in columns)


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _text(text: str) -> bytes:
    return _number(len(text.encode())) + text.encode()


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
