"""Questions about allocations: what was given to whom, what it is doing, what it did.

Whether an allocation can be meant. Pure.
"""

import asyncio
import datetime as dt
import re
from collections.abc import Container, Sequence

import msgspec

from gpufleet.fleet.attribution import contract, guests, passthrough, slices
from gpufleet.fleet.attribution.contract import Claims, share
from gpufleet.fleet.readings import Freshness
from gpufleet.hub.query import history
from gpufleet.hub.query.history import QuestionError
from gpufleet.hub.query.targets import Asking, Whereabouts
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, Allocation, AllocationSpec
from gpufleet.model.api.answer import AllocationAnswer, MachineRecord, SeriesAnswer
from gpufleet.model.errors import ConflictError, NotFoundError
from gpufleet.model.reading import Provenance
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import normalise_pci_address, normalise_uuid
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

MAX_DEVICES = 100_000
"""Devices that one allocation may list."""

_GPU_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_STATIC_POD_UID = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TARGET_FIELDS = tuple(dict.fromkeys(REQUIRED_TARGET_FIELD.values()))


def check_id(id: str) -> None:  # noqa: A002 - the word of the domain
    """Refuse an id that could not be written in a path and a table.

    Raises:
        QuestionError: saying what an id is.
    """
    if not _ID.fullmatch(id):
        raise QuestionError(
            "id", "must be 1 to 128 letters, digits, '.', '_', ':' or '-', and start with a letter or digit"
        )


def canonical(spec: AllocationSpec) -> AllocationSpec:
    """Write identities as readers tell them: UUIDs and PCI addresses in lower case, `GPU-` and `MIG-` before them.

    Raises:
        QuestionError: if the UUID of a virtual machine or pod is none.
    """
    target = msgspec.structs.replace(
        spec.target, vm_uuid=_machine_uuid(spec.target.vm_uuid), pod_uid=_pod_uid(spec.target.pod_uid)
    )
    devices = None if spec.devices is None else tuple(dict.fromkeys(map(_device, spec.devices)))
    return msgspec.structs.replace(spec, target=target, devices=devices)


def _machine_uuid(text: str | None) -> str | None:
    if text is None:
        return None
    found = normalise_uuid(text)
    if found is None:
        raise QuestionError("target.vm_uuid", f"{text!r} is not a UUID: 32 hexadecimal digits, as 8-4-4-4-12")
    return found


def _pod_uid(text: str | None) -> str | None:
    """A pod's UID is a UUID; the one that a kubelet gives a static pod is a bare hash."""
    if text is None or _STATIC_POD_UID.fullmatch(text.lower()):
        return text and text.lower()
    found = normalise_uuid(text)
    if found is None:
        raise QuestionError("target.pod_uid", f"{text!r} is not a UUID: 32 hexadecimal digits, as 8-4-4-4-12")
    return found


def _device(name: str) -> str:
    if _GPU_UUID.fullmatch(name):
        return name[:4].upper() + name[4:].lower()
    try:
        return normalise_pci_address(name)
    except ValueError:
        return name


def check_spec(spec: AllocationSpec, clusters: Container[str]) -> None:
    """Refuse a spec that contradicts itself or this hub.

    Raises:
        QuestionError: naming the field.
    """
    target = spec.target
    if target.cluster not in clusters:
        raise QuestionError("target.cluster", f"{target.cluster!r} is not served here: register it")
    required = REQUIRED_TARGET_FIELD[spec.kind]
    for field in _TARGET_FIELDS:
        given = getattr(target, field) is not None
        if field == required and not given:
            raise QuestionError(f"target.{field}", f"a {spec.kind} allocation needs it")
        if field != required and given:
            raise QuestionError(f"target.{field}", f"a {spec.kind} allocation is told by target.{required} alone")
    for field in ("valid_from", "valid_to"):
        at = getattr(spec, field)
        if at is not None and at.tzinfo is None:
            raise QuestionError(field, "has no time zone: write it with Z or an offset")
    if spec.valid_from and spec.valid_to and to_ns(spec.valid_to) <= to_ns(spec.valid_from):
        raise QuestionError("valid_to", "must be after valid_from")
    if spec.devices is not None and len(spec.devices) > MAX_DEVICES:
        raise QuestionError("devices", f"lists more than {MAX_DEVICES}")


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
                return contract.unavailable(allocation, Reason.AMBIGUOUS_TARGET, contested)
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
            return contract.unavailable(allocation, Reason.AMBIGUOUS_TARGET, contested)
        machine = contract.locate(allocation, machines).machine
        if machine is None:
            return contract.answer(allocation, machines, (), (), now, stale_after_seconds=self._stale_after)
        return _Meant(allocation, machines, machine, now)

    def _answer(
        self, meant: _Meant, stored: Sequence[StoredSample], readers: Sequence[ReaderStatus], *, name: bool
    ) -> AllocationAnswer:
        found = contract.answer(
            meant.allocation, meant.machines, stored, readers, meant.at, stale_after_seconds=self._stale_after
        )
        views = {
            id_: self._whereabouts.in_guests(meant.machine, uuids)
            for id_, uuids in passthrough.handed(found, stored).items()
        }
        return passthrough.with_guests(found, views, name=name) if views else found

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
            over = contract.standing(allocation, asked.end)
            reason, detail = over or (Reason.NO_DATA, "the allocation was not in force at that time")
            return history.no_series(allocation, reason, detail, asked)
        machines = self._whereabouts.meant(allocation.spec.target)
        contested = self._whereabouts.contested(allocation, machines, own.start, own.end, name=tenant is None)
        if contested:
            return history.no_series(allocation, Reason.AMBIGUOUS_TARGET, contested, own)
        if allocation.spec.kind in slices.KINDS:
            return self._guest_series(allocation, metrics, own)
        located = contract.locate(allocation, machines)
        machine = located.machine
        if machine is None:
            assert located.reason is not None
            return history.no_series(allocation, located.reason, located.detail, own)
        stored = self._store.latest(machine.cluster, machine.id)
        listed = contract.listed_ids(allocation, machine, stored)
        _, source = contract.host_side(stored, Freshness(self._clock.now_ns(), self._stale_after, ()))
        if source is Provenance.UNAVAILABLE:
            source = Provenance.HOST_LOCAL_PROBE
        found = self._store.series(machine.cluster, machine.id, metrics, own.start, own.end, own.step, source)
        return history.series_answer(allocation, machine, found, own, listed=listed, source=source)

    def _guest_series(self, allocation: Allocation, metrics: Sequence[str], own: history.Window) -> SeriesAnswer:
        home = guests.home(allocation, self._whereabouts.guests(allocation.spec.target))
        if home is None:
            return history.no_series(allocation, *contract.NOBODY_ANSWERS[allocation.spec.kind], own)
        inside = Provenance.SLICE_GUEST
        found = self._store.series(home.cluster, home.id, metrics, own.start, own.end, own.step, inside)
        return history.series_answer(allocation, home, found, own, listed=None, source=inside)
