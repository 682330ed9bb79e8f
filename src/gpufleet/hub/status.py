"""How the hub itself is doing, at an instant."""

from gpufleet.hub.counters import Counters
from gpufleet.hub.flusher import Flusher
from gpufleet.hub.forward.forwarder import Forwarder
from gpufleet.hub.ledger import Ledger
from gpufleet.hub.pressure import Pressure
from gpufleet.hub.pulled.standing import Standings
from gpufleet.hub.wal import Wal
from gpufleet.ports import Clock


class HubStatus:
    """Numbers of a running hub, read when asked."""

    def __init__(
        self,
        *,
        counters: Counters,
        wal: Wal,
        ledger: Ledger,
        flusher: Flusher,
        pressure: Pressure,
        clock: Clock,
        standings: Standings,
        forwarder: Forwarder | None = None,
    ) -> None:
        self.counters = counters
        self.standings = standings
        self.forwarder = forwarder
        self._wal = wal
        self._ledger = ledger
        self._flusher = flusher
        self._pressure = pressure
        self._clock = clock

    @property
    def wal_records(self) -> int:
        """Acknowledged batches that the store does not have yet."""
        return self._wal.waiting_records

    @property
    def wal_bytes(self) -> int:
        """Bytes of those batches."""
        return self._wal.waiting_bytes

    @property
    def wal_lost(self) -> int:
        """Acknowledged batches that the disk gave back damaged."""
        return self._wal.lost

    @property
    def missing_batches(self) -> int:
        """Batches lost or still on the way, over all senders."""
        return self._ledger.missing

    @property
    def flush_failures_in_a_row(self) -> int:
        """0 while flushing works."""
        return self._flusher.failures

    @property
    def unflushed_since(self) -> int | None:
        """When the oldest acknowledged batch that the store does not have was received; None when it has all."""
        return self._wal.oldest_received_at

    @property
    def flush_lag_seconds(self) -> float:
        """Age of the oldest acknowledged batch that the store does not have, 0 when it has all."""
        oldest = self.unflushed_since
        return 0.0 if oldest is None else max(0, self._clock.now_ns() - oldest) / 1e9

    @property
    def pending_bytes(self) -> int:
        """Bytes of bodies that are being received or made durable."""
        return self._pressure.held
