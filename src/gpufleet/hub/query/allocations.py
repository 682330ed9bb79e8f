"""Allocation queries: creation and validation of allocations, their current metrics and their history."""

import asyncio
import datetime as dt
import itertools
import logging
import re
from collections.abc import Container, Iterable, Sequence

import msgspec

from gpufleet.fleet.attribution import bindings, contract, passthrough, slices, workloads
from gpufleet.fleet.attribution.bindings import bound_intervals
from gpufleet.fleet.attribution.claims import Claims
from gpufleet.fleet.identity import MachineIds
from gpufleet.hub.query import history
from gpufleet.hub.query.guest_turns import AMBIGUOUS, GuestTurns
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.holding_reads import TooManyHoldingsError
from gpufleet.hub.query.names import without_machine_ids
from gpufleet.hub.query.series_sources import fetch_host_parts
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.hub.query.workloads import WorkloadQueries, own_xids
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import (
    REQUIRED_TARGET_FIELD,
    VM_KINDS,
    WORKLOAD_KINDS,
    Allocation,
    AllocationKind,
    AllocationSpec,
    Binding,
)
from gpufleet.model.api.answer import AllocationAnswer, MachineRecord, SeriesAnswer
from gpufleet.model.errors import ConflictError, GpufleetError, NotFoundError
from gpufleet.model.reading import Provenance
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.ledger import SucceededMachine
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import normalise_pci_address, normalise_uuid
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import AllocationRegistry
from gpufleet.ports.store import Store

BIND_SECONDS = 5.0
"""Pause between two rounds of binding, so that a machine is bound before it can be renamed."""

DEVICE_ROUNDS = 12
"""Rounds after which devices are bound, too: that reads the newest samples of each machine in question."""

MAX_DEVICES = 100_000
"""Maximum number of devices in an allocation."""

TOO_MANY_HOLDINGS = "its machines report too many holdings to exclude another holder of its devices"
"""Detail of an answer if not all holdings can be read."""

log = logging.getLogger(__name__)

_GPU_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_STATIC_POD_UID = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TARGET_FIELDS = tuple(dict.fromkeys(REQUIRED_TARGET_FIELD.values()))

_SUBJECTS = {"machine": "machine", "vm_uuid": "virtual machine", "pod_uid": "pod", "job_id": "job"}


def check_id(id: str) -> None:  # noqa: A002 - the API's name
    """Reject an id that cannot be used in a path and a table.

    Raises:
        InvalidQueryError: if the id is malformed.
    """
    if not _ID.fullmatch(id):
        raise InvalidQueryError(
            "id", "must be 1 to 128 letters, digits, '.', '_', ':' or '-', and start with a letter or digit"
        )


def normalise_spec(spec: AllocationSpec) -> AllocationSpec:
    """Normalise times to UTC, and identities to the readers' notation.

    UUIDs and PCI addresses are in lower case, with the prefix `GPU-` or `MIG-`.

    Raises:
        InvalidQueryError: if the UUID of a virtual machine or pod is malformed.
    """
    target = msgspec.structs.replace(
        spec.target, vm_uuid=_machine_uuid(spec.target.vm_uuid), pod_uid=_pod_uid(spec.target.pod_uid)
    )
    devices = None if spec.devices is None else tuple(dict.fromkeys(map(_device, spec.devices)))
    return msgspec.structs.replace(
        spec, target=target, devices=devices, valid_from=_utc(spec.valid_from), valid_to=_utc(spec.valid_to)
    )


def _utc(at: dt.datetime | None) -> dt.datetime | None:
    return None if at is None else at.astimezone(dt.UTC)


def _machine_uuid(text: str | None) -> str | None:
    if text is None:
        return None
    found = normalise_uuid(text)
    if found is None:
        raise InvalidQueryError("target.vm_uuid", f"{text!r} is not a UUID: 32 hexadecimal digits, as 8-4-4-4-12")
    return found


def _pod_uid(text: str | None) -> str | None:
    """Normalise a pod's UID: a UUID, or the bare hash that a kubelet gives a static pod."""
    if text is None or _STATIC_POD_UID.fullmatch(text.lower()):
        return text and text.lower()
    found = normalise_uuid(text)
    if found is None:
        raise InvalidQueryError("target.pod_uid", f"{text!r} is not a UUID: 32 hexadecimal digits, as 8-4-4-4-12")
    return found


def _device(name: str) -> str:
    if _GPU_UUID.fullmatch(name):
        return name[:4].upper() + name[4:].lower()
    try:
        return normalise_pci_address(name)
    except ValueError:
        return name


def check_spec(spec: AllocationSpec, clusters: Container[str]) -> None:
    """Reject a spec that contradicts itself or this hub.

    Raises:
        InvalidQueryError: for the field that is wrong.
    """
    target = spec.target
    if target.cluster not in clusters:
        raise InvalidQueryError("target.cluster", f"cluster {target.cluster!r} is not registered: register it first")
    required = REQUIRED_TARGET_FIELD[spec.kind]
    for field in _TARGET_FIELDS:
        given = getattr(target, field) is not None
        if field == required and not given:
            raise InvalidQueryError(f"target.{field}", f"is required for a {spec.kind} allocation")
        if field != required and given:
            raise InvalidQueryError(f"target.{field}", f"must not be set: target.{required} identifies a {spec.kind}")
    for field in ("valid_from", "valid_to"):
        at = getattr(spec, field)
        if at is not None and at.tzinfo is None:
            raise InvalidQueryError(field, "has no time zone: add Z or an offset")
    if spec.valid_from and spec.valid_to and to_ns(spec.valid_to) <= to_ns(spec.valid_from):
        raise InvalidQueryError("valid_to", "must be after valid_from")
    if spec.devices is not None and len(spec.devices) > MAX_DEVICES:
        raise InvalidQueryError("devices", f"has more than {MAX_DEVICES} entries")


class _ResolvedTarget(msgspec.Struct, frozen=True):
    """Allocation, its candidate machines, the machine that answers for it, and the time of the lookup."""

    allocation: Allocation
    machines: Sequence[MachineRecord]
    machine: MachineRecord
    at: int


class AllocationQueries:
    """Queries for allocations, and changes of them."""

    def __init__(
        self,
        *,
        registry: AllocationRegistry,
        store: Store,
        claims: Claims,
        lookup: MachineLookup,
        turns: GuestTurns,
        executor: QueryExecutor,
        clock: Clock,
        clusters: Container[str],
        stale_after_seconds: float,
    ) -> None:
        self._registry = registry
        self._store = store
        self._claims = claims
        self._lookup = lookup
        self._turns = turns
        self._executor = executor
        self._clock = clock
        self._clusters = clusters
        self._stale_after = stale_after_seconds
        self._workloads = WorkloadQueries(
            store=store, lookup=lookup, clock=clock, stale_after_seconds=stale_after_seconds
        )
        self._changes = asyncio.Lock()  # conflicts must not arise between the check of an allocation and its storage

    async def put(
        self,
        id: str,  # noqa: A002
        spec: AllocationSpec,
        *,
        rebind: bool = False,
    ) -> tuple[Allocation, bool]:
        """Store an allocation; return it and whether it is new.

        Its target is bound to the machine and devices that it names now. A later PUT binds it again only if it changes
        target or devices, or with `rebind`. The earlier binding stays valid up to that time.

        Raises:
            InvalidQueryError: if the spec is invalid.
            ConflictError: if it is closed, if two of its devices are one, or if another tenant has the machine at an
                overlapping time.
        """
        check_id(id)
        check_spec(spec, self._clusters)
        spec = normalise_spec(spec)
        async with self._changes:
            at = to_datetime(self._clock.now_ns())
            allocation, is_new = await self._executor.run(lambda: self._put(id, spec, at, rebind=rebind))
            self._claims.update(allocation)
        return allocation, is_new

    async def close(self, id: str) -> Allocation:  # noqa: A002
        """Close an allocation. Raises NotFoundError."""
        async with self._changes:
            at = to_datetime(self._clock.now_ns())
            allocation = await self._executor.run(lambda: self._registry.close_allocation(id, at))
            self._claims.update(allocation)
        return allocation

    async def bind_pending(self, id: str | None = None, *, devices: bool = False) -> None:  # noqa: A002
        """Bind allocations (or only this one) whose machine, or GPU in a bound slot, was not known before.

        With `devices`, bind also GPUs at listed addresses at which nothing was seen.
        """
        if not self._pending(id, devices=devices) and not self._succeeded(id):
            return
        async with self._changes:
            await self._executor.run(lambda: self._bind_successors(id))
            await self._executor.run(lambda: self._bind_pending(self._pending(id, devices=devices), devices=devices))

    async def run_binding(self) -> None:
        """Bind pending allocations at intervals, until cancelled."""
        for number in itertools.count():
            try:
                await self.bind_pending(devices=number % DEVICE_ROUNDS == 0)
            except GpufleetError as error:  # the loop's one catch point: the next round retries
                log.warning("allocations could not be bound, will retry: %s", error)
            await asyncio.sleep(BIND_SECONDS)

    async def get(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
        """Return an allocation. Raises NotFoundError, also if it is not the given tenant's."""
        return await self._executor.run(lambda: self._registry.allocation(id, tenant))

    async def list_all(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        """Return all allocations, or those of a tenant."""
        return await self._executor.run(lambda: self._registry.allocations(tenant))

    async def metrics(self, id: str, tenant: str | None = None) -> AllocationAnswer:  # noqa: A002
        """Return the current metrics of an allocation. Raises NotFoundError as `get`."""
        await self.bind_pending(id)
        return await self._executor.run(lambda: self._metrics(id, tenant))

    async def machines(self, id: str, tenant: str | None = None) -> frozenset[str]:  # noqa: A002
        """Return the hub's ids of the machines whose readings the current answer has. Raises NotFoundError as `get`."""
        answer = await self._executor.run(lambda: self._metrics(id, tenant))
        found = {one.machine for one in answer.devices}
        return frozenset(found if answer.machine is None else {answer.machine, *found})

    async def series(
        self,
        id: str,  # noqa: A002
        metrics: Sequence[str],
        requested: history.SeriesWindow,
        tenant: str | None = None,
    ) -> SeriesAnswer:
        """Return metrics of an allocation over time.

        Raises:
            NotFoundError: as `get`.
            InvalidQueryError: if a metric has no values over time.
        """
        history.check_metrics(metrics)
        await self.bind_pending(id)
        found = await self._executor.run(lambda: self._series(id, metrics, requested, tenant))
        return found if tenant is None else msgspec.structs.replace(found, detail=without_machine_ids(found.detail))

    def _put(
        self,
        id: str,  # noqa: A002
        spec: AllocationSpec,
        at: dt.datetime,
        *,
        rebind: bool,
    ) -> tuple[Allocation, bool]:
        if spec.kind is AllocationKind.BARE_METAL:
            self._bind_successors()
            self._bind_named(spec)
        before = self._find(id)
        spec = msgspec.structs.replace(
            spec, valid_from=spec.valid_from or (before.spec.valid_from if before is not None else None) or at
        )
        one = Allocation(id=id, generation=1, spec=spec, created_at=at, bindings=before.bindings if before else ())
        if spec.kind is AllocationKind.BARE_METAL:
            one = msgspec.structs.replace(one, bindings=self._bindings(before, one, at, rebind=rebind))
        for other in (*self._claims.rivals(one), *self._new_rivals(before, one)):
            field = REQUIRED_TARGET_FIELD[spec.kind]
            subject = f"{_SUBJECTS[field]} {getattr(spec.target, field)!r}"
            if spec.kind in VM_KINDS and other.spec.target != spec.target:
                subject = "one of the devices"
            raise ConflictError(
                f"{subject} is allocated to another tenant at that time: "
                f"close allocation {other.id!r} first, or choose times that do not overlap"
            )
        return self._registry.put_allocation(id, spec, at, one.bindings)

    def _new_rivals(self, before: Allocation | None, one: Allocation) -> list[Allocation]:
        """Return other tenants' allocations of a machine under another id of it, without those before the change.

        A tenant that had the machine when it proved to be another tenant's keeps it.
        """
        known = () if before is None else self._claims.rivals(self._under_every_id(before))
        return [other for other in self._claims.rivals(self._under_every_id(one)) if other not in known]

    def _under_every_id(self, allocation: Allocation) -> Allocation:
        return bindings.under_every_id(allocation, MachineIds(self._registry.succeeded_machines()))

    def _bindings(
        self, before: Allocation | None, one: Allocation, at: dt.datetime, *, rebind: bool
    ) -> tuple[Binding, ...]:
        if (
            before is not None
            and not rebind
            and (before.spec.target, before.spec.devices) == (one.spec.target, one.spec.devices)
        ):
            return before.bindings
        found = self._lookup.bind(one.spec)
        if found is not None and (names := bindings.names_of_one_device(found)):
            raise ConflictError(f"devices: {' and '.join(names)} are one device now: list it once")
        if before is None:
            return () if found is None else (found,)
        return bindings.rebind(one, found, to_ns(at))

    def _pending(self, id: str | None, *, devices: bool) -> list[Allocation]:  # noqa: A002
        return [one for one in self._claims.pending(self._clock.now_ns(), devices=devices) if id in (None, one.id)]

    def _succeeded(self, id: str | None) -> list[tuple[Allocation, SucceededMachine]]:  # noqa: A002
        """Return the allocations (or only this one) whose machine proved to be another one."""
        now = self._clock.now_ns()
        return [
            (one, found)
            for found in self._registry.succeeded_machines()
            for one in self._claims.bound_to(found.cluster, found.machine, now)
            if id in (None, one.id)
        ]

    def _bind_successors(self, id: str | None = None) -> None:  # noqa: A002
        """Bind allocations, or this one, to the machine that theirs proved to be, unless another tenant has it."""
        for one, known in self._succeeded(id):
            target = msgspec.structs.replace(one.spec.target, machine=known.successor)
            found = self._lookup.bind(msgspec.structs.replace(one.spec, target=target))
            if found is None:
                continue
            own = bindings.with_bound_gpus(found, one.bindings[-1])
            before = bindings.without_machine(one, known.last_seen, was_reported=known.was_reported)
            ended = msgspec.structs.replace(one, bindings=before)
            since = self._free_since(one, bindings.with_machine(ended, own))
            if since is not None:
                if not before or before[-1].machine != known.machine:  # else it was measured under the name until then
                    since = max(since, self._lookup.succeeded_since(known))
                self._bind_devices(self._bind(one, bindings.with_machine(ended, own, since)), found)

    def _bind_named(self, spec: AllocationSpec) -> None:
        """Bind allocations that wait for the machine of a spec, or for a device of it: they named it first."""
        machines = self._lookup.candidates(spec.target)
        names = {spec.target.machine or "", *(one.machine.name for one in machines), *(one.id for one in machines)}
        waiting = self._claims.waiting(spec.target.cluster, names, self._clock.now_ns())
        self._bind_pending(waiting, devices=True)

    def _bind_pending(self, pending: Iterable[Allocation], *, devices: bool) -> None:
        """Bind what can be bound; an allocation stays pending while another tenant has its machine or device."""
        for one in pending:
            for name in bindings.bound_slots(one):
                one = self._end_slot(one, name)
            if not devices and not bindings.lacks_machine(one):
                continue
            found = self._lookup.bind(one.spec)
            if found is not None and bindings.lacks_machine(one):
                self._bind_machine(one, found)
            elif found is not None and found.machine == one.bindings[-1].machine:
                self._bind_devices(one, found)

    def _bind_machine(self, allocation: Allocation, found: Binding) -> None:
        """Bind an allocation to its machine, unless another tenant has it.

        If another tenant had the machine until a time in the past, the allocation has it since then. It has no time in
        which the machine had another name.
        """
        since = self._free_since(allocation, bindings.with_machine(allocation, found))
        if since is not None:
            since = max(since, self._lookup.named_since(allocation.spec.target.machine, found.machine))
            own = bindings.without_addresses(found)
            self._bind_devices(self._bind(allocation, bindings.with_machine(allocation, own, since)), found)

    def _bind_devices(self, allocation: Allocation, found: Binding) -> None:
        """Bind the GPUs of listed MIG devices, and what came to listed addresses at which nothing was seen."""
        with_parents = bindings.with_parents(allocation.bindings, found)
        if with_parents != allocation.bindings:  # also if that shows a conflict: it then has no data
            allocation = self._bind(allocation, with_parents)
        arrivals: list[tuple[int, str, str]] = []
        for name in bindings.vacant_addresses(allocation):
            for key in (found.devices or {}).get(name, ()):
                came_at = self._came_at(allocation.spec.target.cluster, found.machine, key, name)
                if came_at is None:
                    continue
                since = self._free_since(allocation, bindings.with_device(allocation, name, came_at, key))
                if since is not None:
                    arrivals.append((max(came_at, since), name, key))
        for at, name, key in sorted(arrivals):  # in order of time: a binding has what the earlier one has
            allocation = self._bind(allocation, bindings.with_device(allocation, name, at, key))

    def _came_at(self, cluster: str, machine: str, key: str, address: str) -> int | None:
        """Return since when a GPU is at a PCI address, nanoseconds since 1970.

        0 if its machine never reported it elsewhere; None if the report that shows the time is not in the store yet.
        """
        here: list[int] = []
        elsewhere: list[int] = []
        for slot in self._store.slots(cluster, [machine], view=key):
            (here if slot.address == address else elsewhere).extend(slot.begun)
        if not elsewhere:
            return 0
        return min((at for at in here if at > max(elsewhere)), default=None)

    def _end_slot(self, allocation: Allocation, name: str) -> Allocation:
        """Bind a listed PCI address to the first GPU that was read in its slot, unless another tenant has the GPU."""
        cluster, machine = allocation.spec.target.cluster, allocation.bindings[-1].machine
        slots = self._store.slots(cluster, [machine], address=name)
        occupant = bindings.first_occupant(slots, bindings.binding_start(allocation))
        if occupant is None:
            return allocation
        at, key = occupant
        bound = bindings.with_device(allocation, name, at, key)
        if self._free_since(allocation, bound) != 0:
            bound = bindings.with_device(allocation, name, at, None)
        return self._bind(allocation, bound)

    def _free_since(self, allocation: Allocation, bound: tuple[Binding, ...]) -> int | None:
        """Return since when an allocation can have bindings; see `Claims.free_since`."""
        complete = self._under_every_id(msgspec.structs.replace(allocation, bindings=bound))
        return self._claims.free_since(complete, self._clock.now_ns())

    def _bind(self, allocation: Allocation, bound: tuple[Binding, ...]) -> Allocation:
        """Store bindings. The claims have them at once, so that the next allocation does not take the same machine."""
        allocation = self._registry.bind_allocation(allocation.id, bound)
        self._claims.update(allocation)
        return allocation

    def _find(self, id: str) -> Allocation | None:  # noqa: A002
        try:
            return self._registry.allocation(id)
        except NotFoundError:
            return None

    def _metrics(self, id: str, tenant: str | None) -> AllocationAnswer:  # noqa: A002
        found = self.answer(self._registry.allocation(id, tenant), name=tenant is None)
        return found if tenant is None else msgspec.structs.replace(found, detail=without_machine_ids(found.detail))

    def answer(self, allocation: Allocation, *, name: bool = True) -> AllocationAnswer:
        """Return the current metrics of an allocation. Blocks.

        `name` adds the ids of other allocations to the explanation of a conflict, which only an operator may see.
        """
        target = self._resolve(allocation, name=name)
        if isinstance(target, AllocationAnswer):
            return target
        binding = bindings.binding_at(allocation, target.at)
        found = self._lookup.samples_of(target.machine, None if binding is None else bindings.bound_devices(binding))
        return self._answer(target, found.stored, found.readers, name=name)

    def _resolve(self, allocation: Allocation, *, name: bool) -> AllocationAnswer | _ResolvedTarget:
        """Return the machine that answers for an allocation, or the answer if no single host gives it."""
        try:
            return self._resolve_allocation(allocation, name=name)
        except TooManyHoldingsError:
            return contract.unavailable(allocation, Reason.AMBIGUOUS_TARGET, TOO_MANY_HOLDINGS)

    def _resolve_allocation(self, allocation: Allocation, *, name: bool) -> AllocationAnswer | _ResolvedTarget:
        now = self._clock.now_ns()
        conflict = self._lookup.conflict_detail(allocation, now, now + 1, name=name)
        if conflict:
            return contract.unavailable(allocation, Reason.AMBIGUOUS_TARGET, conflict)
        if allocation.spec.kind in VM_KINDS:
            return self._vm_answer(allocation, now)
        if allocation.spec.kind in WORKLOAD_KINDS:
            return self._workloads.answer(allocation, now)
        machines = self._lookup.machines_of(allocation)
        machine = contract.current_machine(allocation, machines, now).machine
        if machine is None:
            return contract.answer(allocation, machines, (), (), now, stale_after_seconds=self._stale_after)
        return _ResolvedTarget(allocation, machines, machine, now)

    def _vm_answer(self, allocation: Allocation, now: int) -> AllocationAnswer:
        """Answer for a virtual machine. If no number of GPUs is declared, its hypervisor's holdings give it."""
        cluster, spec = allocation.spec.target.cluster, allocation.spec
        held = self._lookup.holdings(allocation, now, now + 1).intervals
        expecting = allocation
        if held and spec.devices is None and not spec.expected:
            with_number = msgspec.structs.replace(spec, expected={"gpu": len(held)})
            expecting = msgspec.structs.replace(allocation, spec=with_number)
        on_hosts = self._lookup.hosts(spec)
        found = slices.answer(
            expecting,
            on_hosts,
            now,
            stale_after_seconds=self._stale_after,
            inside=self._lookup.guests(spec.target),
            texts=self._store.texts_of_views(cluster, slices.VM_ID, spec.target.vm_uuid or "") if on_hosts else (),
        )
        hosts = self._lookup.with_ids(cluster, {one.machine for one in held})
        return workloads.with_held_devices(msgspec.structs.replace(found, allocation=allocation), held, hosts, now)

    def _answer(
        self, target: _ResolvedTarget, stored: Sequence[StoredSample], readers: Sequence[ReaderStatus], *, name: bool
    ) -> AllocationAnswer:
        since = max((one.since for one in bound_intervals(target.allocation, target.at, target.at + 1)), default=0)
        found = contract.answer(
            target.allocation,
            target.machines,
            stored,
            readers,
            target.at,
            stale_after_seconds=self._stale_after,
            own_xids=own_xids(self._store, target.machine, stored, since),
        )
        views = {
            id_: self._lookup.guest_views(target.machine, uuids)
            for id_, uuids in passthrough.passed_through(found.devices, stored).items()
        }
        return passthrough.add_guest_views(found, views, name=name) if views else found

    def _series(
        self,
        id: str,  # noqa: A002
        metrics: Sequence[str],
        requested: history.SeriesWindow,
        tenant: str | None,
    ) -> SeriesAnswer:
        allocation = self._registry.allocation(id, tenant)
        own = history.clip_window(allocation, requested)
        if own is None:
            inactive = contract.inactive_reason(allocation, requested.end)
            reason, detail = inactive or (Reason.NO_DATA, "the allocation was not in force at that time")
            return history.empty_series(allocation, reason, detail, requested)
        conflict = self._lookup.conflict_detail(allocation, own.start, own.end, name=tenant is None)
        if conflict:
            return history.empty_series(allocation, Reason.AMBIGUOUS_TARGET, conflict, own)
        if allocation.spec.kind in VM_KINDS:
            return self._guest_series(allocation, metrics, own)
        if allocation.spec.kind in WORKLOAD_KINDS:
            return self._workloads.series(allocation, metrics, own)
        intervals = self._lookup.intervals_of(allocation, own.start, own.end)
        if not intervals:
            machines = self._lookup.machines_of(allocation)
            located = bindings.locate_unbound(allocation, machines, self._clock.now_ns())
            return history.empty_series(allocation, located.reason or Reason.NO_DATA, located.detail, own)
        cluster = allocation.spec.target.cluster
        parts = fetch_host_parts(self._store, cluster, intervals, metrics, own.step, self._stale_after)
        return history.series_answer(allocation, parts, own)

    def _guest_series(self, allocation: Allocation, metrics: Sequence[str], own: history.SeriesWindow) -> SeriesAnswer:
        guests = self._lookup.guests(allocation.spec.target)
        found = self._turns.of(allocation, guests).within(own.start, own.end)
        if not found.turns and not found.ambiguous:
            return history.empty_series(allocation, *contract.NO_ANSWERER[allocation.spec.kind], own)
        if not found.turns:
            return history.empty_series(allocation, Reason.AMBIGUOUS_TARGET, AMBIGUOUS, own)
        inside, cluster = Provenance.SLICE_GUEST, allocation.spec.target.cluster
        since = bindings.validity(allocation)[0]
        turns = sorted((start, end, id_) for id_, intervals in found.turns.items() for start, end in intervals)
        parts = [
            history.SeriesPart(
                f"{cluster}/{id_}",
                None,
                history.SeriesWindow(start, end, own.step),
                self._store.series(cluster, id_, metrics, start, end, own.step, inside, xids_since=since),
                inside,
            )
            for start, end, id_ in turns
        ]
        answer = history.series_answer(allocation, parts, own)
        return msgspec.structs.replace(answer, detail=AMBIGUOUS) if found.ambiguous else answer
