"""Which machines are meant: by a name, by an id, by what an allocation is of. Everything here blocks.

Asking what blocks, off the event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from gpufleet.fleet.attribution import contract, guests, passthrough, slices
from gpufleet.fleet.attribution.contract import Claims, share
from gpufleet.model.allocation import Allocation, AllocationSpec, Target
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.errors import ConflictError, NotFoundError
from gpufleet.model.machine import MachineKind
from gpufleet.model.view import ViewKind, normalise_uuid
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store


class AmbiguousError(ConflictError):
    """More than one thing is meant; `candidates` are their ids."""

    def __init__(self, words: str, candidates: Sequence[str]) -> None:
        self.candidates = tuple(candidates)
        super().__init__(words)


class Whereabouts:
    """Finds machines, and who else was given them."""

    def __init__(self, *, registry: Registry, store: Store, claims: Claims) -> None:
        self._registry = registry
        self._store = store
        self._claims = claims

    def called(self, cluster: str | None, word: str) -> tuple[MachineRecord, ...]:
        """Return the machine of this id, or those of this name, of one cluster or of all."""
        clusters = [cluster] if cluster is not None else [one.id for one in self._registry.clusters()]
        return tuple(one for name in clusters for one in self._registry.machines_called(name, word))

    def one_called(self, word: str) -> MachineRecord:
        """Return the machine of this id, or the only one of this name.

        Raises:
            NotFoundError: if there is no such machine.
            AmbiguousError: if several machines have the name.
        """
        found = self.called(None, word)
        if not found:
            raise NotFoundError(f"there is no machine {word!r}")
        if len(found) > 1:
            ids = [one.id for one in found]
            raise AmbiguousError(f"{word!r} is the name of {', '.join(ids)}: ask for one of them", ids)
        return found[0]

    def with_ids(self, cluster: str, ids: Iterable[str]) -> list[MachineRecord]:
        """Return the machines of these ids; a store may know some that the registry, put back from a copy, does not."""
        return [one for id_ in sorted(ids) for one in self.called(cluster, id_) if one.id == id_]

    def meant(self, target: Target) -> tuple[MachineRecord, ...]:
        """Return every machine that the target may mean, and all that share a name with them."""
        found = self.called(target.cluster, target.machine or "")
        for name in {one.machine.name for one in found}:
            found = (*found, *self.called(target.cluster, name))
        return tuple({one.id: one for one in found}.values())

    def hosts(self, spec: AllocationSpec) -> list[slices.Host]:
        """Return the nodes that tell of a vGPU instance which the virtual machine may have."""
        cluster, wanted = spec.target.cluster, normalise_uuid(spec.target.vm_uuid or "")
        ids = set(self._store.tellers_of_text(cluster, slices.VM_ID, wanted) if wanted else ())
        for name in spec.devices or ():
            ids.update(self._store.tellers_of_view(cluster, f"{ViewKind.VGPU}/{normalise_uuid(name) or name}"))
        return [
            slices.Host(
                machine=one, stored=self._store.latest(cluster, one.id), readers=self._store.readers(cluster, one.id)
            )
            for one in self.with_ids(cluster, ids)
            if one.machine.kind is MachineKind.NODE
        ]

    def guests(self, target: Target) -> list[guests.Told]:
        """Return the machines that are read from inside under the target's UUID."""
        wanted = normalise_uuid(target.vm_uuid or "")
        found = self._registry.machines_with_uuid(target.cluster, wanted) if wanted else ()
        return [
            guests.Told(
                machine=one,
                stored=self._store.latest(target.cluster, one.id),
                readers=self._store.readers(target.cluster, one.id),
            )
            for one in found
            if one.machine.kind is MachineKind.GUEST
        ]

    def in_guests(self, host: MachineRecord, uuids: Iterable[str]) -> list[str]:
        """Return the ids under which guests of a host show GPUs of these UUIDs now."""
        cluster = host.cluster
        tellers = [
            (one, uuid)
            for uuid in sorted(uuids)
            for one in self.with_ids(cluster, self._store.tellers_of_view(cluster, f"{ViewKind.GPU}/{uuid}"))
        ]
        found = [passthrough.inside(host, one, self._store.latest(cluster, one.id), uuid) for one, uuid in tellers]
        return [id_ for id_ in found if id_ is not None]

    def contested(
        self, allocation: Allocation, machines: Sequence[MachineRecord], start: int, end: int, *, name: bool
    ) -> str:
        """Say that another tenant has the same devices within a span of time; empty where none has.

        Two allocations can turn out to mean one machine after they were made: neither is shown anything then. Only
        who may see both is told the name of the other.
        """
        rivals = self._claims.rivals(allocation, machines, start, end)
        machine = contract.locate(allocation, machines).machine if rivals else None
        if allocation.spec.kind in slices.KINDS:
            shared = [one.id for one in rivals]
        elif machine is not None:
            stored = self._store.latest(machine.cluster, machine.id)
            own = contract.listed_ids(allocation, machine, stored)
            shared = [one.id for one in rivals if share(own, contract.listed_ids(one, machine, stored))]
        else:
            shared = []
        if not shared:
            return ""
        others = f" (with {', '.join(sorted(shared))})" if name else ""
        return f"the machine is allocated more than once at this time{others}: its operator must close what is wrong"


T = TypeVar("T")
U = TypeVar("U")


class Asking:
    """Asks on the readers' threads: store and registry block."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads

    async def ask(self, question: Callable[[], T]) -> T:
        """Return what a question comes to."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)

    async def ask_both(self, one: Callable[[], T], other: Callable[[], U]) -> tuple[T, U]:
        """Return what two questions come to, each on a thread of its own where one is free."""
        answers = await asyncio.gather(self.ask(one), self.ask(other))
        return answers[0], answers[1]
