"""Usage by holder, compared with a second-by-second count: every second of every unit is in one row, or is divided."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.usage.holders import (
    HolderSegment,
    PlacedShares,
    cut_holder_segments,
    holder_history,
    holder_rows,
    holder_value,
)
from gpufleet.fleet.usage.prices import PriceTable
from gpufleet.fleet.usage.segments import UnitInterval, part_intervals
from gpufleet.fleet.usage.shares import by_place, holder_key, share_intervals
from gpufleet.fleet.usage.totals import MeasuredSegment
from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit, UnitPart
from gpufleet.model.absence import Reason
from gpufleet.model.api.usage import HOLDER_DIMENSIONS, DeviceUsage, Price, UsageDimension, UsageRow
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict, Owner, Share
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.time import NANOS, to_datetime

SECONDS = 12
NOW = SECONDS * NANOS
PARTS = {"MIG-1": 0.25, "MIG-2": 0.5, "MIG-3": None}
UNITS = {
    ("c", "u0"): PhysicalUnit(
        "c", "u0", (("m", "gpu/0"),), "H200", {n: UnitPart(r, (("m", f"mig/{n}"),)) for n, r in PARTS.items()}
    ),
    ("c", "u1"): PhysicalUnit(
        "c", "u1", (("m", "gpu/1"), ("guest", "gpu/1")), None, {}, models=((4 * NANOS, "A"), (8 * NANOS, "B"))
    ),
}
AT = {
    ("m", "gpu/0"): ("u0", WHOLE),
    **{("m", f"mig/{name}"): ("u0", name) for name in PARTS},
    ("m", "gpu/1"): ("u1", WHOLE),
    ("guest", "gpu/1"): ("u1", WHOLE),
}
HOLDERS = [
    Holder(kind=HolderKind.POD, id="p1", name="one", namespace="x", owners=(Owner(kind="Job", name="train"),)),
    Holder(kind=HolderKind.POD, id="p2", name="two", namespace="x"),
    Holder(kind=HolderKind.POD, id="p3", name="three", namespace="y"),
    Holder(kind=HolderKind.JOB, id="7", user="ada", account="lab", queue="gpu"),
    Holder(kind=HolderKind.VM, id="vm", namespace="y"),
]
P1, P2, P3, JOB, MACHINE = HOLDERS


def stored(
    holder: Holder,
    since: int = 0,
    until: int = SECONDS,
    *,
    place: tuple[str, str] = ("m", "gpu/1"),
    share: Share = Share.EXCLUSIVE,
    replicas: int = 0,
    verdict: HoldingVerdict = HoldingVerdict.AGREED,
) -> StoredHolding:
    holding = Holding(
        view=place[1],
        holder=holder,
        share=share,
        replicas=replicas,
        since=since * NANOS,
        until=until * NANOS,
        methods=("kubelet",),
        verdict=verdict,
    )
    return StoredHolding(cluster="c", machine=place[0], holding=holding, reported_at=NOW)


@st.composite
def random_holdings(draw: st.DrawFn) -> StoredHolding:
    since = draw(st.integers(0, SECONDS - 1))
    return stored(
        draw(st.sampled_from(HOLDERS)),
        since,
        draw(st.integers(since + 1, SECONDS)),
        place=draw(st.sampled_from(sorted(AT))),
        share=draw(st.sampled_from([Share.EXCLUSIVE, Share.TIMESLICE, Share.DRA])),
        replicas=draw(st.integers(0, 3)),
        verdict=draw(st.sampled_from([HoldingVerdict.AGREED, HoldingVerdict.UNKNOWN, HoldingVerdict.CONFLICT])),
    )


@st.composite
def presences(draw: st.DrawFn) -> UnitInterval:
    start = draw(st.integers(0, SECONDS - 1))
    return UnitInterval(
        draw(st.sampled_from(sorted(UNITS))), start * NANOS, draw(st.integers(start + 1, SECONDS)) * NANOS
    )


def segments(
    held: Sequence[StoredHolding], presence: Sequence[UnitInterval] = (), cuts: Sequence[int] = ()
) -> list[HolderSegment]:
    placed = [
        PlacedShares(("c", AT[place][0]), AT[place][1], one)
        for place, own in by_place(held).items()
        for one in share_intervals(own, NOW, 0, NOW)
    ]
    return cut_holder_segments(presence, placed, UNITS, holder_history(held), cuts)


def rows(
    held: Sequence[StoredHolding],
    by: Sequence[UsageDimension] = (UsageDimension.NAMESPACE,),
    presence: Sequence[UnitInterval] = (),
    prices: Sequence[Price] = (),
) -> tuple[tuple[UsageRow, ...], UsageRow]:
    """Return the rows for devices that are used throughout."""
    known = []
    for one in segments(held, presence):
        unit = UNITS[one.unit]
        usage = {
            name: DeviceUsage(used_seconds=one.seconds, power_joules=one.seconds, power_seconds=one.seconds)
            for name, _ in part_intervals(unit, {WHOLE}, one.start, one.end)
        }
        known.append(MeasuredSegment(one, unit, usage))
    return holder_rows(known, holder_history(held), by, PriceTable(prices))


def held_seconds(found: Sequence[UsageRow]) -> dict[tuple[str | None, ...], float]:
    return {(*one.group.values(), one.holder_absent): round(one.held_gpu_hours * 3600, 6) for one in found}


dimensions = st.lists(st.sampled_from(sorted(HOLDER_DIMENSIONS | {UsageDimension.MODEL})), unique=True, max_size=3)


@given(st.lists(random_holdings(), max_size=8), st.lists(presences(), max_size=3), dimensions)
def test_rows_add_up_to_the_total(
    held: list[StoredHolding], presence: list[UnitInterval], by: list[UsageDimension]
) -> None:
    groups, total = rows(held, by, presence)
    there = {(one.unit, second) for one in presence for second in range(one.start // NANOS, one.end // NANOS)}
    for one in held:
        unit = "c", AT[one.machine, one.holding.view][0]
        there |= {(unit, second) for second in range(one.holding.since // NANOS, (one.holding.until or 0) // NANOS)}
    assert total.held_gpu_hours * 3600 == pytest.approx(len(there))
    assert total.used_gpu_hours == pytest.approx(total.held_gpu_hours)
    for name in ("held_gpu_hours", "unattributed_gpu_hours", "replica_hours"):
        assert sum(getattr(one, name) for one in groups) == pytest.approx(getattr(total, name))
    for row in (*groups, total):
        parts = row.used_gpu_hours + row.idle_gpu_hours + row.unknown_gpu_hours
        assert parts == pytest.approx(row.held_gpu_hours)
        assert row.shared_gpu_hours <= row.unknown_gpu_hours + 1e-9
        assert min(row.used_gpu_hours, row.idle_gpu_hours, row.shared_gpu_hours) >= 0
    assert sum(one.used_gpu_hours for one in groups) <= total.used_gpu_hours + 1e-9
    assert len({(*one.group.values(), one.holder_absent) for one in groups}) == len(groups)


@given(st.lists(random_holdings(), max_size=8), st.sampled_from(sorted(HOLDER_DIMENSIONS)))
def test_no_group_has_time_outside_of_its_holdings(held: list[StoredHolding], by: UsageDimension) -> None:
    groups, _ = rows(held, [by])
    for one in groups:
        if one.holder_absent is None:
            own = {
                (AT[other.machine, other.holding.view][0], second)
                for other in held
                if holder_value(by, other.holding.holder) == one.group[by]
                for second in range(other.holding.since // NANOS, (other.holding.until or 0) // NANOS)
            }
            assert one.held_gpu_hours * 3600 <= len(own) + 1e-9


@given(st.lists(random_holdings(), max_size=8))
def test_ratios_of_a_segment_add_up_to_one(held: list[StoredHolding]) -> None:
    seen: set[tuple[object, int]] = set()
    for one in segments(held):
        assert sum(piece.ratio for piece in one.pieces) == pytest.approx(1.0)
        for piece in one.pieces:
            assert sum(bool(cause) for cause in (piece.shares, piece.disputed, piece.absent)) == 1
        for second in range(one.start // NANOS, one.end // NANOS):
            assert (one.unit, second) not in seen
            seen.add((one.unit, second))


def test_group_with_all_holders_has_the_activity_of_a_shared_device() -> None:
    sliced = [stored(one, share=Share.TIMESLICE, replicas=n) for one, n in ((P1, 1), (P2, 2), (P3, 1))]
    groups, total = rows(sliced)
    assert held_seconds(groups) == {("x", None): 9.0, ("y", None): 3.0}
    assert [(one.used_gpu_hours, one.shared_gpu_hours * 3600) for one in groups] == [(0.0, 9.0), (0.0, 3.0)]
    assert (total.used_gpu_hours * 3600, total.shared_gpu_hours, total.replica_hours * 3600) == (12.0, 0.0, 48.0)
    (alone,), _ = rows(sliced[:2])
    assert (alone.used_gpu_hours * 3600, alone.shared_gpu_hours, alone.replica_hours * 3600) == (12.0, 0.0, 36.0)


def test_time_without_holder_is_a_row_of_its_own() -> None:
    presence = [UnitInterval(("c", "u1"), 0, NOW)]
    held = [
        stored(P1, 0, 4),
        stored(P2, 4, 6, verdict=HoldingVerdict.CONFLICT),
        stored(P3, 6, 7, verdict=HoldingVerdict.UNKNOWN),
        stored(JOB, 7, 8),
    ]
    groups, total = rows(held, presence=presence)
    assert held_seconds(groups) == {
        ("x", None): 4.0,
        ("y", None): 1.0,
        (None, None): 1.0,
        (None, Reason.AMBIGUOUS_TARGET): 2.0,
        (None, Reason.NOT_REPORTED): 4.0,
    }
    of_y = next(one for one in groups if one.group[UsageDimension.NAMESPACE] == "y")
    assert (of_y.unknown_gpu_hours * 3600, of_y.shared_gpu_hours) == (1.0, 0.0)
    assert total.unattributed_gpu_hours * 3600 == 6.0


def test_contradicting_holders_of_one_group_hold_the_device_together() -> None:
    assert held_seconds(rows([stored(P1), stored(P2)])[0]) == {("x", None): 12.0}
    assert held_seconds(rows([stored(P1), stored(P3)])[0]) == {(None, Reason.AMBIGUOUS_TARGET): 12.0}


def test_mig_device_counts_as_its_share() -> None:
    held = [
        stored(P1, place=("m", "mig/MIG-1")),
        stored(P2, 0, 6, place=("m", "mig/MIG-2")),
        stored(P3, place=("m", "mig/MIG-3")),
    ]
    groups, total = rows(held, [UsageDimension.POD])
    assert held_seconds(groups) == {
        ("x/one", None): 3.0,
        ("x/two", None): 3.0,
        (None, Reason.NOT_REPORTED): 6.0,
    }
    assert [one.used_gpu_hours * 3600 for one in groups] == [3.0, 3.0, 0.0]
    assert (total.gpus, total.used_gpu_hours * 3600) == (1, 12.0)
    assert total.energy_kwh == pytest.approx(12 / 3.6e6)


def test_pod_inside_a_virtual_machine_is_the_holder() -> None:
    held = [stored(MACHINE), stored(P1, 3, 6, place=("guest", "gpu/1"))]
    assert held_seconds(rows(held)[0]) == {("x", None): 3.0, ("y", None): 9.0}


def test_gpu_and_its_mig_device_cannot_have_different_holders() -> None:
    held = [stored(P1, place=("m", "gpu/0")), stored(P3, 0, 6, place=("m", "mig/MIG-1"))]
    assert held_seconds(rows(held)[0]) == {("x", None): 6.0, (None, Reason.AMBIGUOUS_TARGET): 6.0}


def test_cost_is_divided_like_the_time() -> None:
    held = [stored(one, place=("m", "gpu/0"), share=Share.TIMESLICE, replicas=1) for one in (P1, P3)]
    price = Price(model="H200", per_gpu_hour=3600.0, valid_from=to_datetime(0))
    groups, total = rows(held, prices=[price])
    assert ([one.cost for one in groups], total.cost) == ([6.0, 6.0], 12.0)


@pytest.mark.parametrize(
    ("dimension", "holder", "value"),
    [
        ("namespace", P1, "x"),
        ("pod", P1, "x/one"),
        ("pod", JOB, None),
        ("job", JOB, "7"),
        ("job", Holder(kind=HolderKind.JOB, id="9", array_job="7", array_task="2"), "7_2"),
        ("user", JOB, "ada"),
        ("account", JOB, "lab"),
        ("queue", JOB, "gpu"),
        ("queue", P1, None),
        ("owner", P1, "Job/train"),
        ("owner", P2, None),
        ("pod", Holder(kind=HolderKind.POD, id="uid"), "uid"),
    ],
)
def test_dimensions_are_fields_of_the_holder(dimension: str, holder: Holder, value: str | None) -> None:
    assert holder_value(UsageDimension(dimension), holder) == value


def test_account_of_a_job_is_that_of_the_time() -> None:
    """A machine that does not know the account changes nothing."""
    moved = msgspec.structs.replace(JOB, account="other")
    unknown = msgspec.structs.replace(JOB, account="", user="", queue="")
    held = [
        stored(unknown, 0, 2),
        stored(JOB, 2, 5),
        stored(moved, 5, 8),
        stored(unknown, 6, 9, place=("m", "gpu/0")),
    ]
    groups, _ = rows(held, (UsageDimension.ACCOUNT, UsageDimension.USER))
    assert held_seconds(groups) == {("lab", "ada", None): 5, ("other", "ada", None): 6}
    (past,) = rows(held[:2], (UsageDimension.ACCOUNT,))[0]
    assert past.group == {UsageDimension.ACCOUNT: "lab"}


@given(
    st.lists(st.tuples(st.integers(0, SECONDS - 1), st.sampled_from("ab")), min_size=1, max_size=6),
    st.integers(0, SECONDS),
)
def test_later_account_leaves_the_past(changes: list[tuple[int, str]], now: int) -> None:
    begun = dict(changes)
    held = [stored(msgspec.structs.replace(JOB, account=account), since) for since, account in begun.items()]
    place = "c", holder_key(JOB)
    later, earlier = (
        holder_history([one for one in held if one.holding.since <= end * NANOS]) for end in (SECONDS, now)
    )
    for second in range(min(begun), now + 1):
        account = begun[max(since for since in begun if since <= second)]
        assert later.at(place, second * NANOS).account == earlier.at(place, second * NANOS).account == account


def test_owner_is_the_last_of_its_chain() -> None:
    chain = (Owner(kind="ReplicaSet", name="web-1"), Owner(kind="Deployment", name="web"))
    assert holder_value(UsageDimension.OWNER, Holder(kind=HolderKind.POD, id="p", owners=chain)) == "Deployment/web"
