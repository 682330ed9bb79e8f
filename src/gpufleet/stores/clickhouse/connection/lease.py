"""Lease that restricts a database on a server to one writing hub: a row with an expiry. A folder has a kernel lock.

Machine ids belong to one hub's registry, and rollups rely on a single writer that knows when an hour is complete. Two
hubs in one database would miss each other's rows in rollups.
"""

import socket
from collections.abc import Callable

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.statements import render_create
from gpufleet.stores.clickhouse.schema.tables import INSTANT, TEXT, Column, Engine, TableDefinition

LEASE_SECONDS = 180
"""Lifetime of a lease without renewal; then another hub may take it."""

RENEWAL_SECONDS = 45.0

LEASES = TableDefinition(
    name="writers",
    columns=(
        Column("hub", TEXT),
        Column("host", TEXT),
        Column("renewed_at", INSTANT),
        Column("until", INSTANT),
    ),
    key=("hub",),
    version="renewed_at",
)

_TAKE = """
INSERT INTO writers (hub, host, renewed_at, until)
SELECT {hub:String}, {host:String}, now64(9), now64(9) + toIntervalSecond({seconds:Int64})
"""

_OTHERS = """
SELECT hub, host, dateDiff('second', renewed_at, now64(9)), dateDiff('second', now64(9), until)
FROM writers FINAL WHERE hub != {hub:String} AND until > now64(9) ORDER BY renewed_at
"""


class Lease:
    """Right of one hub to write. All times are of the server's clock."""

    def __init__(self, hub: str, shown: str, monotonic: Callable[[], float]) -> None:
        """Create a lease that is not taken yet.

        Args:
            hub: identifies the hub, the same after a restart.
            shown: the database in messages.
            monotonic: a clock of seconds.
        """
        self._hub = hub
        self._monotonic = monotonic
        self._shown = shown
        self._renewed_at: float | None = None

    def take(self, handle: Handle, engine: Engine) -> None:
        """Take the lease, also a second time.

        Raises:
            StoreError: if another hub has the lease. It ends when that hub stops, or `LEASE_SECONDS` after it crashes.
        """
        handle.command(render_create(LEASES, engine))
        self._refuse_others(handle)
        self._write(handle, LEASE_SECONDS)
        try:
            self._refuse_others(handle)  # another hub may have taken it at the same time
        except StoreError:
            self.release(handle)
            raise

    def renew(self, handle: Handle, *, always: bool = False) -> None:
        """Renew the lease if due, or `always`.

        Raises:
            StoreError: if another hub has taken the lease, or the lease ended before: another hub may have written.
        """
        if self._renewed_at is None:
            return
        passed = self._monotonic() - self._renewed_at
        if passed < RENEWAL_SECONDS and not always:
            return
        self._refuse_others(handle)
        self._write(handle, LEASE_SECONDS)
        if passed >= LEASE_SECONDS:
            raise StoreError(f"{self._shown}: the lease of this hub had ended {passed - LEASE_SECONDS:.0f} s ago")

    def release(self, handle: Handle) -> None:
        """Release the lease if it was taken."""
        if self._renewed_at is not None:
            self._write(handle, 0)
            self._renewed_at = None

    def _refuse_others(self, handle: Handle) -> None:
        for hub, host, ago, left in handle.query(_OTHERS, parameters={"hub": self._hub}).result_rows:
            raise StoreError(
                f"{self._shown}: the hub {hub} on {host} writes to this database (lease renewed {ago} s ago), and "
                "only one hub can. Configure another database for this hub, or stop the other hub: its lease ends "
                f"at once, or in {left} s if it was killed"
            )

    def _write(self, handle: Handle, seconds: int) -> None:
        parameters = {"hub": self._hub, "host": socket.gethostname(), "seconds": seconds}
        began = self._monotonic()
        handle.command(_TAKE, parameters=parameters)
        self._renewed_at = began
