"""Who writes to a database on a server: one hub. A folder has the kernel's lock for that, a server a row with an end.

Machines are known by the ids of one hub's registry, and an hour is made when its one writer says that it is over: two
hubs in one database would leave rows out of each other's hours.
"""

import socket
from collections.abc import Callable

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.statements import render_create
from gpufleet.stores.clickhouse.schema.tables import INSTANT, TEXT, Column, Engine, Table

LEASE_SECONDS = 180
"""A hub that was silent for so long is gone: another may have the database."""

RENEWED_EVERY_SECONDS = 45.0

LEASES = Table(
    name="writers",
    columns=(
        Column("hub", TEXT),
        Column("host", TEXT),
        Column("told_at", INSTANT),
        Column("until", INSTANT),
    ),
    key=("hub",),
    version="told_at",
)

_TAKE = """
INSERT INTO writers (hub, host, told_at, until)
SELECT {hub:String}, {host:String}, now64(9), now64(9) + toIntervalSecond({seconds:Int64})
"""

_OTHERS = """
SELECT hub, host, dateDiff('second', told_at, now64(9)), dateDiff('second', now64(9), until)
FROM writers FINAL WHERE hub != {hub:String} AND until > now64(9) ORDER BY told_at
"""


class Lease:
    """One hub's right to write. All times are the server's."""

    def __init__(self, hub: str, shown: str, monotonic: Callable[[], float]) -> None:
        """Take the hub's name (the same after a restart), the database's for messages, and a clock of seconds."""
        self._hub = hub
        self._monotonic = monotonic
        self._shown = shown
        self._renewed_at: float | None = None

    def take(self, handle: Handle, engine: Engine) -> None:
        """Take it, or take it again.

        Raises:
            StoreError: if another hub has it; it ends when that one is stopped, or silent for `LEASE_SECONDS`.
        """
        handle.command(render_create(LEASES, engine))
        self._refuse_others(handle)
        self._write(handle, LEASE_SECONDS)
        try:
            self._refuse_others(handle)  # of two that came at once
        except StoreError:
            self.release(handle)
            raise

    def renew(self, handle: Handle) -> None:
        """Keep it, where that is due.

        Raises:
            StoreError: if another hub took it meanwhile.
        """
        if self._renewed_at is None or self._monotonic() - self._renewed_at < RENEWED_EVERY_SECONDS:
            return
        self._refuse_others(handle)
        self._write(handle, LEASE_SECONDS)

    def release(self, handle: Handle) -> None:
        """Give it back, where it was taken."""
        if self._renewed_at is not None:
            self._write(handle, 0)
            self._renewed_at = None

    def _refuse_others(self, handle: Handle) -> None:
        for hub, host, ago, left in handle.query(_OTHERS, parameters={"hub": self._hub}).result_rows:
            raise StoreError(
                f"{self._shown}: the hub {hub} on {host} writes to this database ({ago} s ago it said so), and one hub "
                "at a time can. Give this one a database of its own; or stop the other, which frees it at once, or in "
                f"{left} s if it was killed"
            )

    def _write(self, handle: Handle, seconds: int) -> None:
        parameters = {"hub": self._hub, "host": socket.gethostname(), "seconds": seconds}
        handle.command(_TAKE, parameters=parameters)
        self._renewed_at = self._monotonic()
