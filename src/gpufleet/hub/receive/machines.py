"""Admission of new machines: a batch that would exceed a limit on machines is rejected before it is acknowledged.

Machines are registered when a batch is flushed. Until then, those of acknowledged batches are pending and count too.
"""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from gpufleet.model.errors import GpufleetError
from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import MachineRoom
from gpufleet.model.wire.batch import WireBatch


class TooManyMachinesError(GpufleetError):
    """The batch has new machines beyond the limit of its cluster or sender."""


class MachineRooms(Protocol):
    """The part of the registry that admission needs; see `ports.LedgerRegistry`."""

    def knows_machine(self, cluster: str, sender: str, machine: Machine, at: int) -> bool:
        """Return whether a machine is registered."""
        ...

    def machine_room(self, cluster: str, sender: str) -> MachineRoom:
        """Return how many new machines a sender may still report."""
        ...


_Pending = tuple[str, Machine]
"""Sender and evidence."""


class MachineAdmission:
    """New machines of the batches that are not flushed yet. Use it from the event loop."""

    def __init__(self, registry: MachineRooms, is_drained: Callable[[], bool]) -> None:
        """Take the registry, and a function that returns whether every acknowledged batch is flushed."""
        self._registry = registry
        self._is_drained = is_drained
        self._pending: dict[str, dict[_Pending, None]] = {}  # by cluster, oldest first
        self._by_sender: Counter[tuple[str, str]] = Counter()

    def admit(self, batch: WireBatch, at: int) -> None:
        """Make the new machines of a batch pending.

        Args:
            batch: about to be acknowledged. If that fails, its machines stay pending until the backlog is empty.
            at: the hub's clock on receipt.

        Raises:
            TooManyMachinesError: if they exceed the limit; nothing is changed then.
        """
        cluster, sender = batch.cluster, batch.sender
        pending = self._pending.setdefault(cluster, {})
        new = {
            (sender, machine): None
            for machine in batch.machines
            if (sender, machine) not in pending and not self._registry.knows_machine(cluster, sender, machine, at)
        }
        if not new:
            return
        self._remove_registered(cluster, at)
        room = self._registry.machine_room(cluster, sender)
        if len(new) > room.cluster - len(pending):
            raise TooManyMachinesError(
                f"{len(new)} new machines exceed the limit of cluster {cluster!r} (ingest.max_machines): check its "
                "senders for made-up host names, and retire machines that are gone"
            )
        if len(new) > room.sender - self._by_sender[cluster, sender]:
            raise TooManyMachinesError(
                f"{len(new)} new machines exceed the limit of sender {sender!r} of cluster {cluster!r} (half of "
                "ingest.max_machines): check it for made-up host names, and retire machines that are gone"
            )
        pending.update(new)
        self._by_sender[cluster, sender] += len(new)

    def _remove_registered(self, cluster: str, at: int) -> None:
        """Remove machines that were registered since: batches are flushed in the order of their receipt."""
        pending = self._pending[cluster]
        drained = self._is_drained()
        while pending:
            sender, machine = oldest = next(iter(pending))
            if not drained and not self._registry.knows_machine(cluster, sender, machine, at):
                return
            del pending[oldest]
            self._by_sender[cluster, sender] -= 1
            if not self._by_sender[cluster, sender]:
                del self._by_sender[cluster, sender]
