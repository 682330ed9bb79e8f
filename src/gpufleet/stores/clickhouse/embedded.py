"""A handle of the embedded engine on which a statement that failed leaves nothing behind.

What a statement had written when it failed (for its time, its memory, its many rows) stays in its connection, and
stands before the next answer there: seen in chDB 4.4. With the same columns it is read as rows of that answer: what one
asked for would be told to another. So the statement after a failure has a connection of its own, which takes 15 ms.
"""

import threading
from collections.abc import Callable
from typing import Any

from gpufleet.model.errors import StoreError

Client = Any
"""A client of clickhouse-connect, which has no types."""


class EmbeddedHandle:
    """What the store asks of a client; as there, one statement at a time."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        """Open it; `connect` opens one more connection."""
        self._connect = connect
        self._client = connect()
        self._has_failed = False
        self._is_closed = False
        self._changing = threading.Lock()

    def query(self, *said: Any, **more: Any) -> Any:
        """Answer a question."""
        return self._ask("query", said, more)

    def query_arrow(self, *said: Any, **more: Any) -> Any:
        """Answer a question as an Arrow table."""
        return self._ask("query_arrow", said, more)

    def command(self, *said: Any, **more: Any) -> Any:
        """Do what a statement says."""
        return self._ask("command", said, more)

    def insert_arrow(self, *said: Any, **more: Any) -> Any:
        """Insert an Arrow table."""
        return self._ask("insert_arrow", said, more)

    def close(self) -> None:
        """Close the connection; nothing is asked afterwards."""
        with self._changing:
            self._is_closed = True
            self._client.close()

    def _ask(self, what: str, said: tuple[Any, ...], more: dict[str, Any]) -> Any:
        if self._has_failed:
            self._begin_anew()
        try:
            return getattr(self._client, what)(*said, **more)
        except BaseException:
            self._has_failed = True
            raise

    def _begin_anew(self) -> None:
        with self._changing:
            if self._is_closed:
                raise StoreError("the store is closed")
            before, self._client = self._client, self._connect()  # first: the last connection takes the engine with it
            before.close()
            self._has_failed = False
