"""Usage by holder: every second of every GPU belongs to a holder, to several, or to none that is known. Pure.

- Holders share a device as in `fleet.usage.shares`. A group has the activity of a device if it has all of its holders.
- Holders that contradict each other count together. If they are in different groups, the holder is not known.
- A MIG device counts as its share of the GPU. The rest of the GPU, and MIG devices with an unknown share, have no known
  holder.
- A virtual machine, and a pod or job that a machine inside it reports on the same GPU, are one holder: the inner one.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter

import msgspec

from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.fleet.usage.prices import PriceTable
from gpufleet.fleet.usage.segments import UnitInterval, UnitKey, unit_changes
from gpufleet.fleet.usage.shares import HolderKey, HolderShare, ShareInterval, holder_key
from gpufleet.fleet.usage.totals import (
    WHOLE_FRACTION,
    Group,
    GroupShare,
    MeasuredSegment,
    UsageTotal,
    add_usage,
    group_order,
    usage_row,
)
from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit
from gpufleet.model.absence import Reason
from gpufleet.model.api.usage import UsageDimension, UsageRow
from gpufleet.model.holdings import Holder, HolderKind, Holding
from gpufleet.model.stored.holdings import StoredHolding

HolderPlace = tuple[str, HolderKey]
"""Cluster and key of a holder."""

_TEXTS = ("user", "account", "queue", "array_job", "array_task")
"""Fields of a holder that its id does not determine: they can change, and a later job can have the same id."""

_Texts = tuple[str, ...]
"""Values of the fields `_TEXTS`."""


class HolderHistory(msgspec.Struct, frozen=True):
    """Holders as last reported, with their texts over time.

    Attributes:
        newest: each holder as last reported.
        texts: times since which a holder had the values of `_TEXTS`, nanoseconds since 1970 and ascending.
    """

    newest: Mapping[HolderPlace, Holder]
    texts: Mapping[HolderPlace, Sequence[tuple[int, _Texts]]] = {}

    def at(self, place: HolderPlace, at: int) -> Holder:
        """Return a holder with its texts at an instant, nanoseconds since 1970."""
        newest, texts = self.newest[place], self.texts.get(place, ())
        number = bisect_right(texts, at, key=itemgetter(0))
        known = dict(zip(_TEXTS, texts[number - 1][1], strict=True)) if number else {}
        return msgspec.structs.replace(newest, **known)

    def changes(self, places: Iterable[HolderPlace]) -> list[int]:
        """Return the instants at which the texts of holders change."""
        return [at for place in places for at, _ in self.texts.get(place, ())[1:]]


def holder_history(stored: Iterable[StoredHolding]) -> HolderHistory:
    """Return the holders of holdings over time. A holding whose holder has other texts is another holding.

    A text that a holding lacks is that of the holdings around it. Those after its end can be of a later job.
    """
    by_place: dict[HolderPlace, list[StoredHolding]] = defaultdict(list)
    for one in stored:
        by_place[one.cluster, holder_key(one.holding.holder)].append(one)
    newest: dict[HolderPlace, Holder] = {}
    texts: dict[HolderPlace, list[tuple[int, _Texts]]] = defaultdict(list)
    for place, own in by_place.items():
        own.sort(key=lambda one: (one.holding.since, one.reported_at))
        newest[place] = max(own, key=lambda one: one.reported_at).holding.holder
        for run in _runs(own):
            texts[place] += _filled([(one.since, _texts_of(one.holder)) for one in run])
    return HolderHistory(newest, texts)


def _runs(stored: Iterable[StoredHolding]) -> Iterator[list[Holding]]:
    """Yield holdings that adjoin or overlap together. They are in order of their start."""
    run: list[Holding] = []
    end = 0
    for one in stored:
        since, until = one.holding.since, one.holding.until
        if run and since > end:
            yield run
            run = []
        run.append(one.holding)
        end = max(end, one.reported_at + HOLDING_TTL_NS if until is None else until)
    if run:
        yield run


def _texts_of(holder: Holder) -> _Texts:
    return tuple(getattr(holder, field) for field in _TEXTS)


def _filled(texts: Sequence[tuple[int, _Texts]]) -> list[tuple[int, _Texts]]:
    """Return the changes of texts. An unknown text is the one before, or the first known one."""
    text = tuple(next((one[field] for _, one in texts if one[field]), "") for field in range(len(_TEXTS)))
    found: list[tuple[int, _Texts]] = []
    for since, later in texts:
        text = tuple(new or old for new, old in zip(later, text, strict=True))
        if not found or found[-1][1] != text:
            found.append((since, text))
    return found


class PlacedShares(msgspec.Struct, frozen=True):
    """Holders of a part of a unit in an interval, as one machine reports them."""

    unit: UnitKey
    part: str
    held: ShareInterval


class UnitPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a unit in a segment, with its holders.

    Attributes:
        part: name of the part; None for the rest of a unit beside its held MIG devices.
        ratio: share of the unit.
        shares: holder to its share of the part.
        disputed: holders that contradict each other.
        is_confirmed: whether the sources of the holdings confirm them.
        absent: why no holder is known.
    """

    part: str | None
    ratio: float
    shares: Mapping[HolderKey, HolderShare] = {}
    disputed: frozenset[HolderKey] = frozenset()
    is_confirmed: bool = True
    absent: Reason | None = None


class HolderSegment(UnitInterval, frozen=True):
    """Interval of a unit with constant holders; the ratios of its pieces add up to 1."""

    pieces: tuple[UnitPiece, ...]


def cut_holder_segments(
    presence: Iterable[UnitInterval],
    placed: Iterable[PlacedShares],
    units: Mapping[UnitKey, PhysicalUnit],
    holders: HolderHistory,
    cuts: Sequence[int] = (),
) -> list[HolderSegment]:
    """Cut the time of units into segments with constant holders, and at the instants `cuts` and changes of units.

    Changes of a holder's texts cut its units, too.

    Args:
        presence: intervals in which the units are known to exist; time in which a unit is held is added.
        placed: holders of their parts.
        units: by key.
        holders: over time.
        cuts: nanoseconds since 1970, such as price changes.
    """
    spans: dict[UnitKey, list[UnitInterval]] = defaultdict(list)
    held: dict[UnitKey, list[PlacedShares]] = defaultdict(list)
    for span in presence:
        spans[span.unit].append(span)
    for one in placed:
        held[one.unit].append(one)
        spans[one.unit].append(UnitInterval(one.unit, one.held.start, one.held.end))
    found: list[HolderSegment] = []
    for unit in spans:
        of_unit = {(unit[0], key) for one in held[unit] for key in (*one.held.shares, *one.held.disputed)}
        changes = [*cuts, *unit_changes(units[unit]), *holders.changes(of_unit)]
        found += _unit_segments(unit, spans[unit], held[unit], units[unit], changes)
    return found


def holder_rows(
    known: Iterable[MeasuredSegment[HolderSegment]],
    holders: HolderHistory,
    by: Sequence[UsageDimension],
    prices: PriceTable,
) -> tuple[tuple[UsageRow, ...], UsageRow]:
    """Return a row per group and per reason why no holder is known, and the total over all of them."""
    sums: dict[tuple[Group, Reason | None], UsageTotal] = {}
    total = UsageTotal()
    several = _with_several_slurm_clusters(holders.newest)
    for one in known:
        cluster, model = one.segment.unit[0], one.unit.model_at(one.segment.start)
        groups: dict[tuple[Group, Reason | None], GroupShare] = {}
        for piece in one.segment.pieces:
            values: dict[HolderKey, Group] = {}
            for key in (*piece.shares, *piece.disputed):
                holder, qualified = holders.at((cluster, key), one.segment.start), cluster in several
                values[key] = tuple(_value(dimension, cluster, model, holder, qualified=qualified) for dimension in by)
            _add_piece(groups, piece, values, tuple(_value(dimension, cluster, model, None) for dimension in by))
        every = GroupShare({WHOLE})
        for place, share in groups.items():
            into = sums.setdefault(place, UsageTotal())
            before = into.held
            add_usage(into, one, share, prices)
            every.replicas += share.replicas
            if place[1] is not None:
                into.unattributed += into.held - before
                total.unattributed += into.held - before
        add_usage(total, one, every, prices)
    ordered = sorted(sums.items(), key=lambda item: (item[0][1] or "", group_order(item[0][0])))
    rows = tuple(usage_row(dict(zip(by, group, strict=True)), one, prices, absent) for (group, absent), one in ordered)
    return rows, usage_row({}, total, prices)


def _add_piece(
    groups: dict[tuple[Group, Reason | None], GroupShare],
    piece: UnitPiece,
    values: Mapping[HolderKey, Group],
    unattributed: Group,
) -> None:
    """Add a piece to the groups of its holders, or to the group without a known holder."""
    of_group: dict[Group, float] = defaultdict(float)
    for key, share in piece.shares.items():
        of_group[values[key]] += share.fraction
        groups.setdefault((values[key], None), GroupShare()).replicas += share.replicas
    disputing = {values[key] for key in piece.disputed}
    absent = Reason.AMBIGUOUS_TARGET if len(disputing) > 1 else piece.absent
    if len(disputing) == 1:
        of_group[disputing.pop()] = 1.0
    if absent is not None:
        own = groups.setdefault((unattributed, absent), GroupShare())
        if piece.part is None:
            own.unconfirmed += piece.ratio
        else:
            own.parts.add(piece.part)
    for group, fraction in of_group.items():
        own = groups.setdefault((group, None), GroupShare())
        if fraction < WHOLE_FRACTION:
            own.shared += piece.ratio * fraction
        elif piece.is_confirmed and piece.part is not None:
            own.parts.add(piece.part)
        else:
            own.unconfirmed += piece.ratio


def _with_several_slurm_clusters(holders: Mapping[HolderPlace, Holder]) -> frozenset[str]:
    """Return the clusters that have jobs of several SLURM clusters: their job ids are not unique."""
    found: dict[str, set[str]] = defaultdict(set)
    for (cluster, _), holder in holders.items():
        if holder.slurm_cluster:
            found[cluster].add(holder.slurm_cluster)
    return frozenset(cluster for cluster, names in found.items() if len(names) > 1)


def holder_value(dimension: UsageDimension, holder: Holder, *, qualified: bool = False) -> str | None:
    """Return the value of a dimension of a holder, or None if it has none or it is unknown.

    `qualified` puts the SLURM cluster before the id of a job.
    """
    is_pod, is_job = holder.kind is HolderKind.POD, holder.kind is HolderKind.JOB
    text = ""
    match dimension:
        case UsageDimension.NAMESPACE:
            text = holder.namespace
        case UsageDimension.OWNER:
            text = f"{holder.owners[-1].kind}/{holder.owners[-1].name}" if holder.owners else ""
        case UsageDimension.POD if is_pod:
            text = f"{holder.namespace}/{holder.name}" if holder.namespace and holder.name else holder.id
        case UsageDimension.JOB if is_job:
            text = f"{holder.array_job}_{holder.array_task}" if holder.array_job and holder.array_task else holder.id
            text = f"{holder.slurm_cluster}/{text}" if qualified and holder.slurm_cluster else text
        case UsageDimension.USER:
            text = holder.user
        case UsageDimension.ACCOUNT:
            text = holder.account
        case UsageDimension.QUEUE:
            text = holder.queue
        case _:
            text = ""
    return text or None


def _value(
    dimension: UsageDimension, cluster: str, model: str | None, holder: Holder | None, *, qualified: bool = False
) -> str | None:
    if dimension is UsageDimension.CLUSTER:
        return cluster
    if dimension is UsageDimension.MODEL:
        return model
    return None if holder is None else holder_value(dimension, holder, qualified=qualified)


def _unit_segments(
    key: UnitKey,
    spans: Iterable[UnitInterval],
    placed: Sequence[PlacedShares],
    unit: PhysicalUnit,
    cuts: Sequence[int],
) -> Iterator[HolderSegment]:
    """Yield the segments of a unit, in order of time."""
    begins: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(placed):
        begins[one.held.start].append(number)
        ends[one.held.end].append(number)
    depth: dict[int, int] = defaultdict(int)
    for span in spans:
        depth[span.start] += 1
        depth[span.end] -= 1
    if not depth:
        return
    inner = [at for at in cuts if min(depth) < at < max(depth)]
    present: set[int] = set()
    there = 0
    for start, end in pairwise(sorted({*depth, *begins, *ends, *inner})):
        there += depth.get(start, 0)
        present.difference_update(ends.get(start, ()))
        present.update(begins.get(start, ()))
        if there > 0:
            yield HolderSegment(
                key, start, end, tuple(_pieces([placed[number] for number in sorted(present)], unit, start))
            )


def _pieces(placed: Sequence[PlacedShares], unit: PhysicalUnit, at: int) -> list[UnitPiece]:
    """Return the parts of a unit at an instant with their holders; the ratios add up to 1."""
    by_part: dict[str, list[ShareInterval]] = defaultdict(list)
    for one in placed:
        by_part[one.part].append(one.held)
    found = {name: _joined(name, intervals, unit, at) for name, intervals in by_part.items()}
    held = {name: one for name, one in found.items() if one.absent is None}
    of_parts = {name: one for name, one in held.items() if name != WHOLE}
    whole = held.get(WHOLE)
    inside = set().union(*(_keys(one) for one in of_parts.values()))
    total = sum(one.ratio for one in of_parts.values())
    if whole is not None and inside <= _keys(whole):
        return [whole]
    if whole is not None or total > 1 / WHOLE_FRACTION:
        every = inside if whole is None else inside | _keys(whole)
        return [UnitPiece(part=WHOLE, ratio=1.0, disputed=frozenset(every))]
    absent = min((one.absent for one in found.values() if one.absent is not None), default=Reason.NOT_REPORTED)
    if not of_parts or total <= 0:
        return [UnitPiece(part=WHOLE, ratio=1.0, absent=Reason.NOT_REPORTED if of_parts else absent)]
    pieces = [one for one in of_parts.values() if one.ratio > 0]
    rest = max(0.0, 1.0 - total)
    return [*pieces, UnitPiece(part=None, ratio=rest, absent=absent)] if rest > 1 - WHOLE_FRACTION else pieces


def _joined(part: str, intervals: Sequence[ShareInterval], unit: PhysicalUnit, at: int) -> UnitPiece:
    """Return the holders of a part of a unit, joined over all machines that report the part."""
    ratio = 1.0 if part == WHOLE else unit.parts[part].ratio_at(at) or 0.0
    held = [one for one in intervals if one.shares or one.disputed]
    inner = [one for one in held if any(kind is not HolderKind.VM for kind, _ in (*one.shares, *one.disputed))]
    held = [one for one in inner or held if one.is_confirmed] or inner or held
    if not held:
        return UnitPiece(part=part, ratio=ratio, absent=min(one.absent or Reason.NOT_ATTRIBUTED for one in intervals))
    first, keys = held[0], [frozenset((*one.shares, *one.disputed)) for one in held]
    if len(set(keys)) > 1:
        return UnitPiece(part=part, ratio=ratio, disputed=frozenset().union(*keys), is_confirmed=first.is_confirmed)
    return UnitPiece(
        part=part, ratio=ratio, shares=first.shares, disputed=first.disputed, is_confirmed=first.is_confirmed
    )


def _keys(piece: UnitPiece) -> frozenset[HolderKey]:
    return frozenset((*piece.shares, *piece.disputed))
