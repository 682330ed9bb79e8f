"""Questions about allocations: what was given to whom, what it is doing, what it did."""

import asyncio
import datetime as dt
from collections.abc import Container, Sequence

import msgspec

from gpufleet.hub import answers, guests, handed, history, slices
from gpufleet.hub.claims import Claims, share
from gpufleet.hub.freshness import Freshness
from gpufleet.hub.putting import canonical, check_id, check_spec
from gpufleet.hub.queries.asking import Asking
from gpufleet.hub.queries.whereabouts import Whereabouts
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.answer import AllocationAnswer, MachineRecord, SeriesAnswer
from gpufleet.model.errors import ConflictError, NotFoundError
from gpufleet.model.provenance import Provenance
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored import StoredSample
from gpufleet.model.time import to_datetime
from gpufleet.ports import Clock, Registry, Store


class _Meant(msgspec.Struct, frozen=True):
    """An allocation, every machine that it may mean, the one that answers for it, and when that was found."""

    allocation: Allocation
    machines: Sequence[MachineRecord]
    machine: MachineRecord
    at: int


class AllocationQueries:
    """Keeps allocations, and answers for them."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        claims: Claims,
        whereabouts: Whereabouts,
        asking: Asking,
        clock: Clock,
        clusters: Container[str],
        stale_after_seconds: float,
    ) -> None:
        self._registry = registry
        self._store = store
        self._claims = claims
        self._whereabouts = whereabouts
        self._asking = asking
        self._clock = clock
        self._clusters = clusters
        self._stale_after = stale_after_seconds
        self._putting = asyncio.Lock()  # what is looked at before an allocation is kept stays so until it is

    async def put(self, id: str, spec: AllocationSpec) -> tuple[Allocation, bool]:  # noqa: A002
        """Keep an allocation and return it, and whether it is new.

        Raises:
            QuestionError: if the spec cannot be meant.
            ConflictError: if it is closed, or another tenant has the machine at some time of it.
        """
        check_id(id)
        check_spec(spec, self._clusters)
        spec = canonical(spec)
        async with self._putting:
            at = to_datetime(self._clock.now_ns())
            allocation, is_new = await self._asking.ask(lambda: self._put(id, spec, at))
            self._claims.keep(allocation)
        return allocation, is_new

    async def close(self, id: str) -> Allocation:  # noqa: A002
        """Close an allocation. Raises NotFoundError."""
        async with self._putting:
            at = to_datetime(self._clock.now_ns())
            allocation = await self._asking.ask(lambda: self._registry.close_allocation(id, at))
            self._claims.keep(allocation)
        return allocation

    async def get(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
        """Return an allocation. Raises NotFoundError, also if it is not the tenant's, where one is given."""
        return await self._asking.ask(lambda: self._registry.allocation(id, tenant))

    async def list_all(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        """Return every allocation, or those of one tenant."""
        return await self._asking.ask(lambda: self._registry.allocations(tenant))

    async def metrics(self, id: str, tenant: str | None = None) -> AllocationAnswer:  # noqa: A002
        """Answer what an allocation is doing. Raises NotFoundError as `get`."""
        meant = await self._asking.ask(lambda: self._meant(id, tenant))
        if isinstance(meant, AllocationAnswer):
            return meant
        one = meant.machine
        stored, readers = await self._asking.ask_both(
            lambda: self._store.latest(one.cluster, one.id), lambda: self._store.readers(one.cluster, one.id)
        )
        return await self._asking.ask(lambda: self._answer(meant, stored, readers, name=tenant is None))

    async def series(
        self,
        id: str,  # noqa: A002
        metrics: Sequence[str],
        asked: history.Window,
        tenant: str | None = None,
    ) -> SeriesAnswer:
        """Answer what an allocation did.

        Raises:
            NotFoundError: as `get`.
            QuestionError: if a metric has no values over time.
        """
        history.check_metrics(metrics)
        return await self._asking.ask(lambda: self._series(id, metrics, asked, tenant))

    def _put(self, id: str, spec: AllocationSpec, at: dt.datetime) -> tuple[Allocation, bool]:  # noqa: A002
        meant = msgspec.structs.replace(spec, valid_from=spec.valid_from or self._valid_from(id) or at)
        one = Allocation(id=id, generation=1, spec=meant, created_at=at)
        machines = self._whereabouts.meant(spec.target)
        devices = None if spec.devices is None else frozenset(spec.devices)
        for other in self._claims.rivals(one, machines, 0, history.LATEST):
            theirs = other.spec.devices
            of_vm = spec.kind in slices.KINDS  # all of it is one tenant's, whichever devices are listed
            if of_vm or share(devices, None if theirs is None else frozenset(theirs)):
                called = f"virtual machine {spec.target.vm_uuid}" if of_vm else f"machine {spec.target.machine!r}"
                raise ConflictError(
                    f"{called} is another tenant's at that time: "
                    f"close allocation {other.id!r} first, or let them follow one another"
                )
        return self._registry.put_allocation(id, spec, at)

    def _valid_from(self, id: str) -> dt.datetime | None:  # noqa: A002
        try:
            return self._registry.allocation(id).spec.valid_from
        except NotFoundError:
            return None

    def _meant(self, id: str, tenant: str | None) -> AllocationAnswer | _Meant:  # noqa: A002
        """Return which machine answers for an allocation, or the answer where it is not one host's."""
        allocation = self._registry.allocation(id, tenant)
        if allocation.spec.kind in slices.KINDS:
            at = self._clock.now_ns()
            contested = self._whereabouts.contested(allocation, (), at, at + 1, name=tenant is None)
            if contested:
                return answers.unavailable(allocation, Reason.AMBIGUOUS_TARGET, contested)
            return slices.answer(
                allocation,
                self._whereabouts.hosts(allocation.spec),
                self._clock.now_ns(),
                stale_after_seconds=self._stale_after,
                inside=self._whereabouts.guests(allocation.spec.target),
            )
        machines = self._whereabouts.meant(allocation.spec.target)
        now = self._clock.now_ns()
        contested = self._whereabouts.contested(allocation, machines, now, now + 1, name=tenant is None)
        if contested:
            return answers.unavailable(allocation, Reason.AMBIGUOUS_TARGET, contested)
        machine = answers.locate(allocation, machines).machine
        if machine is None:
            return answers.answer(allocation, machines, (), (), now, stale_after_seconds=self._stale_after)
        return _Meant(allocation, machines, machine, now)

    def _answer(
        self, meant: _Meant, stored: Sequence[StoredSample], readers: Sequence[ReaderStatus], *, name: bool
    ) -> AllocationAnswer:
        found = answers.answer(
            meant.allocation, meant.machines, stored, readers, meant.at, stale_after_seconds=self._stale_after
        )
        views = {
            id_: self._whereabouts.in_guests(meant.machine, uuids)
            for id_, uuids in handed.handed(found, stored).items()
        }
        return handed.with_guests(found, views, name=name) if views else found

    def _series(
        self,
        id: str,  # noqa: A002
        metrics: Sequence[str],
        asked: history.Window,
        tenant: str | None,
    ) -> SeriesAnswer:
        allocation = self._registry.allocation(id, tenant)
        own = history.within(allocation, asked)
        if own is None:
            over = answers.standing(allocation, asked.end)
            reason, detail = over or (Reason.NO_DATA, "the allocation was not in force at that time")
            return history.no_series(allocation, reason, detail, asked)
        machines = self._whereabouts.meant(allocation.spec.target)
        contested = self._whereabouts.contested(allocation, machines, own.start, own.end, name=tenant is None)
        if contested:
            return history.no_series(allocation, Reason.AMBIGUOUS_TARGET, contested, own)
        if allocation.spec.kind in slices.KINDS:
            return self._guest_series(allocation, metrics, own)
        located = answers.locate(allocation, machines)
        machine = located.machine
        if machine is None:
            assert located.reason is not None
            return history.no_series(allocation, located.reason, located.detail, own)
        stored = self._store.latest(machine.cluster, machine.id)
        listed = answers.listed_ids(allocation, machine, stored)
        _, source = answers.host_side(stored, Freshness(self._clock.now_ns(), self._stale_after, ()))
        if source is Provenance.UNAVAILABLE:
            source = Provenance.HOST_LOCAL_PROBE
        found = self._store.series(machine.cluster, machine.id, metrics, own.start, own.end, own.step, source)
        return history.series_answer(allocation, machine, found, own, listed=listed, source=source)

    def _guest_series(self, allocation: Allocation, metrics: Sequence[str], own: history.Window) -> SeriesAnswer:
        home = guests.home(allocation, self._whereabouts.guests(allocation.spec.target))
        if home is None:
            return history.no_series(allocation, *answers.NOBODY_ANSWERS[allocation.spec.kind], own)
        inside = Provenance.SLICE_GUEST
        found = self._store.series(home.cluster, home.id, metrics, own.start, own.end, own.step, inside)
        return history.series_answer(allocation, home, found, own, listed=None, source=inside)
