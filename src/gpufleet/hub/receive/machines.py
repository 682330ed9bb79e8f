"""Admission of new machines: a batch that would exceed a limit on machines is rejected before it is acknowledged.

Machines are registered when a batch is flushed. From the admission of the batch until then, they are pending, and count
as well. If the batch cannot be written to the log, its machines are no longer pending.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

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


_Key = tuple[str, Machine]
"""Sender and evidence."""


class _PendingMachine(msgspec.Struct):
    """A machine that is not registered yet.

    Attributes:
        claims: number of batches and requests with the machine that are being received.
        is_flushed: of its newest logged batch, returns whether the batch is flushed; None if no batch is logged.
    """

    claims: int = 0
    is_flushed: Callable[[], bool] | None = None


class MachineAdmission:
    """New machines of the batches that are not flushed yet. Use it from the event loop."""

    def __init__(self, registry: AdmissionRegistry, make_drain_check: Callable[[], Callable[[], bool]]) -> None:
        """Take the registry, and the function of the log; see `Wal.make_drain_check`."""
        self._registry = registry
        self._make_drain_check = make_drain_check
        self._pending: dict[str, dict[_Key, _PendingMachine]] = {}  # by cluster, in the order of `finish`
        self._by_sender: Counter[tuple[str, str]] = Counter()
        self._scanned: dict[str, int] = {}  # by cluster, room in the registry at the last scan

    def admit(self, batch: WireBatch, at: int) -> tuple[Machine, ...]:
        """Make the new machines of a batch pending.

        Args:
            batch: about to be acknowledged.
            at: the hub's clock on receipt.

        Returns:
            The machines of the batch that are not registered: pass them to `finish` once the batch is written to the
            log, or could not be.

        Raises:
            TooManyMachinesError: if they exceed the limit; nothing is changed then.
        """
        cluster, sender = batch.cluster, batch.sender
        unregistered = self._unregistered(cluster, sender, batch.machines, at)
        if unregistered:
            new, room = self._fit(cluster, sender, unregistered, at)
            if new and len(new) > min(room.cluster, room.sender):  # the backlog at the start may exceed the limit
                raise _too_many(len(new), cluster, sender, room)
            self._claim(cluster, sender, unregistered)
        return unregistered

    def finish(self, cluster: str, sender: str, machines: Iterable[Machine], *, is_logged: bool) -> None:
        """End the reception of a batch; `machines` is the result of `admit`."""
        if is_logged:
            self._log(cluster, sender, machines)
        self._release(cluster, sender, machines)

    def restore(self, batch: WireBatch, at: int) -> None:
        """Make the new machines of a batch pending that an earlier process acknowledged, whatever the limit."""
        machines = self._unregistered(batch.cluster, batch.sender, batch.machines, at)
        self._claim(batch.cluster, batch.sender, machines)
        self.finish(batch.cluster, batch.sender, machines, is_logged=True)

    @contextlib.contextmanager
    def reserve(self, cluster: str, sender: str, machines: Iterable[Machine], at: int) -> Iterator[tuple[Machine, ...]]:
        """Reserve room for new machines, in order, while the context is open. `admit` the batches inside it.

        Args:
            cluster: of the sender.
            sender: name of the sender.
            machines: of a request that becomes several batches.
            at: the hub's clock on receipt.

        Yields:
            The machines without room; the sender's batches must not contain them.

        Raises:
            TooManyMachinesError: if no machine is known and there is no room for any.
        """
        machines = tuple(machines)
        reserved = self._unregistered(cluster, sender, machines, at)
        excess: tuple[Machine, ...] = ()
        if reserved:
            new, room = self._fit(cluster, sender, reserved, at)
            count = max(0, min(room.cluster, room.sender))
            if not count and len(new) == len(machines):
                raise _too_many(len(new), cluster, sender, room)
            excess = new[count:]
            dropped = set(excess)
            reserved = tuple(one for one in reserved if one not in dropped)
        self._claim(cluster, sender, reserved)
        try:
            yield excess
        finally:
            self._release(cluster, sender, reserved)

    def _unregistered(self, cluster: str, sender: str, machines: Iterable[Machine], at: int) -> tuple[Machine, ...]:
        knows = self._registry.knows_machine
        return tuple(dict.fromkeys(one for one in machines if not knows(cluster, sender, one, at)))

    def _fit(
        self, cluster: str, sender: str, machines: Sequence[Machine], at: int
    ) -> tuple[tuple[Machine, ...], MachineRoom]:
        """Return the machines that are not pending, and the room beside pending machines."""
        self._remove_flushed(cluster, at)
        new, room = self._measure(cluster, sender, machines, at)
        if len(new) > min(room.cluster, room.sender):
            registered = self._registry.machine_room(cluster, sender).cluster
            if self._scanned.get(cluster) != registered:  # a scan costs time, and finds nothing new otherwise
                self._scanned[cluster] = registered
                self._remove_flushed(cluster, at, every=True)
                new, room = self._measure(cluster, sender, machines, at)
        return new, room

    def _measure(
        self, cluster: str, sender: str, machines: Sequence[Machine], at: int
    ) -> tuple[tuple[Machine, ...], MachineRoom]:
        pending = self._pending.get(cluster, {})
        room = self._registry.machine_room(cluster, sender)
        room = MachineRoom(cluster=room.cluster - len(pending), sender=room.sender - self._by_sender[cluster, sender])
        # A thread may have registered a machine since the caller looked it up.
        return self._unregistered(cluster, sender, (one for one in machines if (sender, one) not in pending), at), room

    def _remove_flushed(self, cluster: str, at: int, *, every: bool = False) -> None:
        """Remove machines that were registered since, and those of flushed batches, such as quarantined ones.

        Batches are flushed in the order of their receipt, so the first machine that is neither ends the search.
        A machine registered by an unfinished flush, behind one that is not, is found only with `every`.
        """
        pending = self._pending.get(cluster, {})
        is_flushed, gone = True, []
        for key, one in pending.items():
            if not one.claims:
                is_flushed = is_flushed and one.is_flushed is not None and one.is_flushed()
            if (is_flushed and not one.claims) or self._registry.knows_machine(cluster, key[0], key[1], at):
                gone.append(key)
            elif not every:
                break
        for key in gone:
            self._remove(cluster, key)

    def _claim(self, cluster: str, sender: str, machines: Iterable[Machine]) -> None:
        for machine in machines:
            self._pending_machine(cluster, (sender, machine)).claims += 1

    def _release(self, cluster: str, sender: str, machines: Iterable[Machine]) -> None:
        pending = self._pending.get(cluster, {})
        for machine in machines:
            one = pending.get((sender, machine))
            if one is None:
                continue  # registered since
            one.claims -= 1
            if not one.claims and one.is_flushed is None:
                self._remove(cluster, (sender, machine))

    def _log(self, cluster: str, sender: str, machines: Iterable[Machine]) -> None:
        """Record that a batch with these machines is in the log."""
        pending = self._pending.get(cluster, {})
        for machine in machines:
            one = pending.pop((sender, machine), None)
            if one is not None:  # not registered since
                one.is_flushed = self._make_drain_check()
                pending[sender, machine] = one  # at the end

    def _pending_machine(self, cluster: str, key: _Key) -> _PendingMachine:
        pending = self._pending.setdefault(cluster, {})
        one = pending.get(key)
        if one is None:
            one = pending[key] = _PendingMachine()
            self._by_sender[cluster, key[0]] += 1
        return one

    def _remove(self, cluster: str, key: _Key) -> None:
        del self._pending[cluster][key]
        who = cluster, key[0]
        self._by_sender[who] -= 1
        if not self._by_sender[who]:
            del self._by_sender[who]


def _too_many(count: int, cluster: str, sender: str, room: MachineRoom) -> TooManyMachinesError:
    if count > room.cluster:
        return TooManyMachinesError(
            f"{count} new machines exceed the limit of cluster {cluster!r} (ingest.max_machines): check its senders "
            "for made-up host names, and retire machines that are gone. With retired ones, the limit is four times as "
            "high"
        )
    return TooManyMachinesError(
        f"{count} new machines exceed the limit of sender {sender!r} of cluster {cluster!r} (half of "
        "ingest.max_machines): check it for made-up host names, and retire machines that are gone"
    )
