"""Admission of new machines: a batch that would exceed a limit on machines is rejected before it is acknowledged.

Machines are registered when a batch is flushed. Until then, those of acknowledged batches are pending and count too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gpufleet.model.errors import GpufleetError
from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import MachineRoom
from gpufleet.model.wire.batch import WireBatch


class TooManyMachinesError(GpufleetError):
    """The batch has new machines beyond the limit of its cluster or sender."""


class AdmissionRegistry(Protocol):
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

    def __init__(self, registry: AdmissionRegistry, is_drained: Callable[[], bool]) -> None:
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
        new = self._new_machines(cluster, sender, batch.machines, at)
        if new:
            room = self._room(cluster, sender, at)
            if len(new) > min(room.cluster, room.sender):
                raise _too_many(len(new), cluster, sender, room)
            self._add(cluster, sender, new)

    def reserve(self, cluster: str, sender: str, machines: Iterable[Machine], at: int) -> tuple[Machine, ...]:
        """Make new machines pending, in order, while there is room for them.

        Args:
            cluster: of the sender.
            sender: name of the sender.
            machines: of a request that becomes several batches.
            at: the hub's clock on receipt.

        Returns:
            The machines without room; the sender's batches must not contain them.

        Raises:
            TooManyMachinesError: if no machine is known and there is no room for any.
        """
        machines = tuple(machines)
        new = self._new_machines(cluster, sender, machines, at)
        if not new:
            return ()
        room = self._room(cluster, sender, at)
        count = max(0, min(room.cluster, room.sender))
        if not count and len(new) == len(machines):
            raise _too_many(len(new), cluster, sender, room)
        self._add(cluster, sender, new[:count])
        return tuple(new[count:])

    def _new_machines(self, cluster: str, sender: str, machines: Iterable[Machine], at: int) -> list[Machine]:
        """Return the machines that are neither registered nor pending."""
        pending = self._pending.setdefault(cluster, {})
        return [
            machine
            for machine in dict.fromkeys(machines)
            if (sender, machine) not in pending and not self._registry.knows_machine(cluster, sender, machine, at)
        ]

    def _room(self, cluster: str, sender: str, at: int) -> MachineRoom:
        """Return the room beside pending machines."""
        self._remove_registered(cluster, at)
        room = self._registry.machine_room(cluster, sender)
        return MachineRoom(
            cluster=room.cluster - len(self._pending[cluster]), sender=room.sender - self._by_sender[cluster, sender]
        )

    def _add(self, cluster: str, sender: str, machines: Sequence[Machine]) -> None:
        self._pending[cluster].update(dict.fromkeys((sender, one) for one in machines))
        self._by_sender[cluster, sender] += len(machines)

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


def _too_many(count: int, cluster: str, sender: str, room: MachineRoom) -> TooManyMachinesError:
    if count > room.cluster:
        return TooManyMachinesError(
            f"{count} new machines exceed the limit of cluster {cluster!r} (ingest.max_machines): check its senders "
            "for made-up host names, and retire machines that are gone"
        )
    return TooManyMachinesError(
        f"{count} new machines exceed the limit of sender {sender!r} of cluster {cluster!r} (half of "
        "ingest.max_machines): check it for made-up host names, and retire machines that are gone"
    )
