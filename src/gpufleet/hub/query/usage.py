"""The question of usage: it fetches what the pure parts need. Everything here blocks.

Questions about what allocations came to.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from gpufleet.fleet.attribution import contract, guests, slices
from gpufleet.fleet.usage.residence import ALWAYS, Stay, doubtful, last_told, stays_of
from gpufleet.fleet.usage.segments import Holding, Segment, UnitKey, segments, stretches
from gpufleet.fleet.usage.totals import Known, Prices, rows
from gpufleet.fleet.usage.units import WHOLE, Place, Unit, Units
from gpufleet.hub.query.events import touches
from gpufleet.hub.query.history import QuestionError
from gpufleet.hub.query.targets import Asking
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.usage import Dimension, Stretch, Unplaced, UsageAnswer
from gpufleet.model.machine import MachineKind
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import ViewKind, normalise_uuid
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

MAX_ALLOCATIONS = 10_000
"""Allocations that one question can be about."""

MAX_SPAN_NS = 1100 * 86_400 * 10**9
"""So much time one question can be about."""

SHORT = "fewer devices are known than it should have"
NONE_KNOWN = "no GPU of it is known, and nobody said how many it should have"


class _Placed(msgspec.Struct, frozen=True):
    """What an allocation has: units of a cluster with their parts, when some of them were there, and why not more."""

    units: tuple[tuple[str, str], ...]
    stays: Mapping[str, Stay] = {}
    reason: Reason = Reason.NOT_COLLECTED
    detail: str = ""


class UsageQuestions:
    """Asks the registry and the store."""

    def __init__(self, *, registry: Registry, store: Store, prices: Prices) -> None:
        self._registry = registry
        self._store = store
        self._prices = prices

    def ask(self, start: int, end: int, by: Sequence[Dimension], tenant: str | None = None) -> UsageAnswer:
        """Answer what was held within a time, nanoseconds since 1970, `end` excluded; of one tenant if given.

        Raises:
            QuestionError: if it is about too much, or nothing.
        """
        if end <= start:
            raise QuestionError("end", "must be after start, by a microsecond at least")
        if end - start > MAX_SPAN_NS:
            raise QuestionError("start", "asks for more than 1100 days: ask for less")
        every = {one.id: one for one in self._registry.allocations() if touches(one, start, end)}
        shown = frozenset(id_ for id_, one in every.items() if tenant is None or one.spec.tenant == tenant)
        if len(shown) > MAX_ALLOCATIONS:
            words = f"asks about {len(shown)} allocations, more than {MAX_ALLOCATIONS}: ask for less time"
            raise QuestionError("start", words)
        clusters = {every[id_].spec.target.cluster for id_ in shown}
        units: dict[UnitKey, Unit] = {}
        holdings: list[Holding] = []
        unplaced: list[Unplaced] = []
        for cluster in sorted(clusters):
            mine = [one for one in every.values() if one.spec.target.cluster == cluster]
            found, placed = self._place(cluster, mine)
            units.update({(cluster, id_): unit for id_, unit in found.items()})
            for one in mine:
                span = max(start, _ns(one, start)), min(end, _end(one, end))
                had = placed[one.id]
                for id_, part in had.units:
                    there = had.stays.get(id_, Stay()).within(*span)
                    holdings.append(Holding((cluster, id_), part, one.id, *there))
                short, phantoms = missing(one, had.units, units, had.stays, span)
                for unit, since, until in phantoms:
                    units[cluster, unit.id] = unit
                    holdings.append(Holding((cluster, unit.id), WHOLE, one.id, since, until))
                if one.id in shown and any(_is_unmeasured(found[id_], part) for id_, part in had.units):
                    words = "what share of its GPU a MIG device is was not told: it is in no total"
                    unplaced.append(Unplaced(allocation=one.id, devices=0, reason=Reason.NOT_REPORTED, detail=words))
                elif one.id in shown and (short or not had.units):
                    words = had.detail or (SHORT if short else NONE_KNOWN)
                    unplaced.append(Unplaced(allocation=one.id, devices=short, reason=had.reason, detail=words))
        prices = self._prices.prices
        cuts = [to_ns(price.valid_from) for price in prices]
        told = [one for one in segments(holdings, every, cuts) if not shown.isdisjoint(one.parts)]
        groups, total = rows(self._known(told, units), every, shown, by, prices)
        return UsageAnswer(
            start=to_datetime(start),
            end=to_datetime(end),
            group_by=tuple(by),
            currency=self._prices.currency if prices else None,
            rows=groups,
            total=total,
            unplaced=tuple(sorted(unplaced, key=lambda one: one.allocation)),
            words=_words(total.held_gpu_hours, total.unknown_gpu_hours, unplaced),
        )

    def _known(self, told: Sequence[Segment], units: dict[UnitKey, Unit]) -> list[Known]:
        wanted: list[Stretch] = []
        places: list[tuple[int, str]] = []
        for number, segment in enumerate(told):
            if segment.contested:
                continue
            for name, stretch in stretches(segment, units[segment.unit]):
                places.append((number, name))
                wanted.append(stretch)
        worked: dict[int, dict[str, object]] = defaultdict(dict)
        for (number, name), one in zip(places, self._store.worked(wanted), strict=True):
            worked[number][name] = one
        return [
            Known(segment, units[segment.unit], worked.get(number, {}))  # type: ignore[arg-type]
            for number, segment in enumerate(told)
        ]

    def _place(self, cluster: str, mine: Sequence[Allocation]) -> tuple[dict[str, Unit], dict[str, _Placed]]:
        """Find the devices of allocations of one cluster; machines are looked at once, however many mean them."""
        machines: dict[str, MachineRecord] = {}
        meant: dict[str, tuple[MachineRecord | None, Reason, str]] = {}
        inside: dict[str, tuple[list[MachineRecord], list[MachineRecord]]] = {}
        for one in mine:
            if one.spec.kind in slices.KINDS:
                inside[one.id] = self._of_vm(one)
                machines.update({host.id: host for hosts in inside[one.id] for host in hosts})
                continue
            word = one.spec.target.machine
            located = contract.locate(one, self._registry.machines_called(cluster, word) if word else ())
            reason = located.reason or Reason.NOT_COLLECTED
            meant[one.id] = located.machine, reason, located.detail
            if located.machine is not None:
                machines[located.machine.id] = located.machine
        stored = {id_: tuple(samples) for id_, samples in self._store.latest_of(cluster, sorted(machines)).items()}
        told = last_told(stored)
        doubted = doubtful(told)
        stays = stays_of(self._store.slots(cluster, doubted), told) if doubted else {}
        left = [place for place, stay in stays.items() if stay.end < ALWAYS]
        units = Units(cluster, stored, left, _guests(machines.values()))
        placed = {}
        for one in mine:
            if one.id in inside:
                placed[one.id] = self._in_vm(one, *inside[one.id], stored, units)
                continue
            machine, reason, detail = meant[one.id]
            if machine is None:
                placed[one.id] = _Placed((), {}, reason, detail)
                continue
            listed = contract.listed_ids(one, machine, stored.get(machine.id, ()))
            prefix = f"{cluster}/{machine.id}/"
            mine_ = (
                units.whole(machine.id)
                if listed is None
                else units.at((machine.id, name.removeprefix(prefix)) for name in sorted(listed))
            )
            there = {id_: stay for id_, _ in mine_ if (stay := _stay(units.by_id[id_], machine.id, stays)) is not None}
            placed[one.id] = _Placed(tuple(mine_), there)
        return units.by_id, placed

    def _of_vm(self, allocation: Allocation) -> tuple[list[MachineRecord], list[MachineRecord]]:
        """Return the machines that may be its inside, and the nodes that may tell of its vGPU instances."""
        cluster, uuid = allocation.spec.target.cluster, normalise_uuid(allocation.spec.target.vm_uuid or "")
        found = self._registry.machines_with_uuid(cluster, uuid) if uuid else ()
        tellers = set(self._store.tellers_of_text(cluster, slices.VM_ID, uuid) if uuid else ())
        for name in allocation.spec.devices or ():
            tellers.update(self._store.tellers_of_view(cluster, f"{ViewKind.VGPU}/{normalise_uuid(name) or name}"))
        nodes = [one for id_ in sorted(tellers) for one in self._registry.machines_called(cluster, id_)]
        return (
            [one for one in found if one.machine.kind is MachineKind.GUEST],
            [one for one in nodes if one.machine.kind is MachineKind.NODE],
        )

    def _in_vm(
        self,
        allocation: Allocation,
        inside: Sequence[MachineRecord],
        nodes: Sequence[MachineRecord],
        stored: dict[str, tuple[StoredSample, ...]],
        units: Units,
    ) -> _Placed:
        told = [guests.Told(machine=one, stored=stored.get(one.id, ()), readers=()) for one in inside]
        home = guests.home(allocation, told)
        found = units.whole(home.id) if home is not None else []
        places: list[Place] = [
            (node.id, sample.sample.view.key)
            for node in nodes
            for sample in slices.instances_of(
                allocation.spec, slices.Host(machine=node, stored=stored.get(node.id, ()), readers=())
            )
            if sample.sample.view is not None
        ]
        reason, detail = contract.NOBODY_ANSWERS[allocation.spec.kind]
        return _Placed(tuple(dict.fromkeys([*found, *units.at(places)])), {}, reason, detail)


def _guests(machines: Iterable[MachineRecord]) -> dict[str, list[str]]:
    """Return the guests of each host among machines of a cluster, as the host's own sender tells of them."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    hosts: dict[str, tuple[str, str]] = {}
    for one in machines:
        if one.machine.kind is MachineKind.NODE:
            hosts[one.id] = (one.sender, one.machine.name)
        elif one.machine.hypervisor is not None:
            found[one.sender, one.machine.hypervisor].append(one.id)
    return {id_: found[who] for id_, who in hosts.items() if who in found}


def _is_unmeasured(unit: Unit, part: str) -> bool:
    return part != WHOLE and unit.parts[part].ratio is None


def _stay(unit: Unit, machine: str, stays: Mapping[Place, Stay]) -> Stay | None:
    """Return when a GPU was in a machine, if that is bounded."""
    return next((stays[place] for place in unit.views if place[0] == machine and place in stays), None)


def missing(
    allocation: Allocation,
    had: Sequence[tuple[str, str]],
    units: dict[UnitKey, Unit],
    stays: Mapping[str, Stay],
    span: tuple[int, int],
) -> tuple[int, list[tuple[Unit, int, int]]]:
    """Return how many devices an allocation lacks at most of those that it should have within a span of time.

    And units that stand for them, each with from when to when it does: a GPU that moved away is missing from then on,
    until another one is there.
    """
    spec = allocation.spec
    listed = [name for name in spec.devices or () if not name.startswith("MIG-")]
    if any(part != WHOLE for _, part in had) and not listed:
        return 0, []  # it is given shares of GPUs, which are not counted in GPUs
    wanted = max(len(listed), sum(spec.expected.values()))
    cluster = spec.target.cluster
    there = [stays.get(id_, Stay()).within(*span) for id_, part in had if part == WHOLE and (cluster, id_) in units]
    model = _model_of(spec.expected, {units[cluster, id_].model for id_, _ in had if (cluster, id_) in units})
    most, stand_ins = 0, []
    for start, end in pairwise(sorted({*span, *(at for stay in there for at in stay)})):
        lacking = wanted - sum(first <= start and end <= last for first, last in there)
        most = max(most, lacking)
        names = (f"missing/{allocation.id}/{number}" for number in range(lacking))
        stand_ins += [(Unit(cluster, name, (), model, {}), start, end) for name in names]
    return most, stand_ins


def _model_of(expected: Collection[str], others: Iterable[str | None]) -> str | None:
    """Return the model of a missing GPU: as the driver names the others of its class, where it names them one way.

    Classes are words such as `H200`; groups and prices go by the driver's `NVIDIA H200`.
    """
    if len(expected) != 1:
        return None
    (kind,) = expected
    alike = {name for name in others if name is not None and kind.casefold() in name.casefold()}
    return alike.pop() if len(alike) == 1 else kind


def _ns(allocation: Allocation, start: int) -> int:
    return to_ns(allocation.spec.valid_from) if allocation.spec.valid_from is not None else start


def _end(allocation: Allocation, end: int) -> int:
    return min([end, *(to_ns(at) for at in (allocation.spec.valid_to, allocation.closed_at) if at is not None)])


def _words(held: float, unknown: float, unplaced: Sequence[Unplaced]) -> str:
    words = f"{held - unknown:.2f} of {held:.2f} GPU-hours held are known"
    countless = sum(one.devices == 0 for one in unplaced)
    return f"{words}; allocations of unknown devices that are in no total: {countless}" if countless else words


class UsageQueries:
    """Answers with GPU-hours, energy and cost: of all allocations, or of a tenant's."""

    def __init__(self, *, registry: Registry, store: Store, asking: Asking, prices: Prices) -> None:
        self._questions = UsageQuestions(registry=registry, store=store, prices=prices)
        self._asking = asking

    async def of(self, start: int, end: int, by: Sequence[Dimension], tenant: str | None) -> UsageAnswer:
        """Answer for a time, nanoseconds since 1970, `end` excluded.

        Raises:
            QuestionError: if the question cannot be meant, or is about too much.
        """
        return await self._asking.ask(lambda: self._questions.ask(start, end, by, tenant))
