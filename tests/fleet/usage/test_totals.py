"""GPU-hours, compared with a second-by-second count: every unit counts once."""

import datetime as dt
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.usage.prices import PriceTable
from gpufleet.fleet.usage.segments import HeldPart, Segment, UnitHolding, cut_segments, device_intervals
from gpufleet.fleet.usage.totals import MeasuredSegment, usage_rows
from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit, UnitPart
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.api.usage import DeviceUsage, EnergySource, Price, UsageDimension, UsageRow
from gpufleet.model.time import NANOS, to_ns

T0 = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
START = to_ns(T0)
PARTS = {"MIG-1": 0.25, "MIG-2": 0.5}
SECONDS = 12
UNITS = {
    ("c", "u0"): PhysicalUnit(
        "c", "u0", (("m", "gpu/0"),), "H200", {n: UnitPart(r, (("m", n),)) for n, r in PARTS.items()}
    ),
    ("c", "u1"): PhysicalUnit(
        "c", "u1", (("m", "gpu/1"),), "C", {}, models=((START + 4 * NANOS, "A"), (START + 8 * NANOS, "B"))
    ),
    ("c", "u2"): PhysicalUnit("c", "u2", (), None, {}),
}


def allocation(id_: str, tenant: str | None = None, team: str | None = None) -> Allocation:
    target = Target(cluster="c", machine="m")
    spec = AllocationSpec(kind=AllocationKind.BARE_METAL, target=target, tenant=tenant, team=team, valid_from=T0)
    return Allocation(id=id_, generation=1, spec=spec, created_at=T0)


ALLOCATIONS = {
    one.id: one
    for one in (allocation("a", "t1", "x"), allocation("b", "t1", "y"), allocation("c", "t2"), allocation("d"))
}


def ns(second: int) -> int:
    return START + second * NANOS


@st.composite
def holdings(draw: st.DrawFn) -> UnitHolding:
    unit, part = draw(st.sampled_from([("u0", WHOLE), ("u0", "MIG-1"), ("u0", "MIG-2"), ("u1", WHOLE)]))
    start, end = draw(st.integers(0, SECONDS)), draw(st.integers(0, SECONDS))
    return UnitHolding(("c", unit), HeldPart(part), draw(st.sampled_from(sorted(ALLOCATIONS))), ns(start), ns(end))


states = st.lists(st.sampled_from(["used", "idle", None]), min_size=SECONDS, max_size=SECONDS)
worlds = st.fixed_dictionaries(
    {("u0", WHOLE): states, ("u0", "MIG-1"): states, ("u0", "MIG-2"): states, ("u1", WHOLE): states}
)
World = dict[tuple[str, str], list[str | None]]


def seen(segment: Segment, part: str, world: World) -> DeviceUsage:
    first, last = ((at - START) // NANOS for at in (segment.start, segment.end))
    states_seen = world.get((segment.unit[1], part), [])[first:last]
    return DeviceUsage(used_seconds=states_seen.count("used"), idle_seconds=states_seen.count("idle"))


def summed(
    held: Sequence[UnitHolding], world: World, by: Sequence[UsageDimension], prices: Sequence[Price] = ()
) -> tuple[tuple[UsageRow, ...], UsageRow]:
    known = []
    for segment in cut_segments(held, ALLOCATIONS, [to_ns(one.valid_from) for one in prices], UNITS):
        unit = UNITS[segment.unit]
        names = [name for name, _ in device_intervals(segment, unit)]
        known.append(MeasuredSegment(segment, unit, {name: seen(segment, name, world) for name in names}))
    return usage_rows(known, ALLOCATIONS, frozenset(ALLOCATIONS), by, PriceTable(prices))


def brute(held: Sequence[UnitHolding], world: World, key: str | None) -> dict[str | None, list[float]]:
    """Return held, used and idle seconds of each group, counted by second and unit."""
    found: dict[str | None, list[float]] = {}
    for second in range(SECONDS):
        for unit in ("u0", "u1"):
            now = [one for one in held if one.unit[1] == unit and one.start <= ns(second) < one.end]
            tenants = {(one.part.name, ALLOCATIONS[one.allocation].spec.tenant) for one in now}
            claims = {(part, who) for part, who in tenants if who is not None}
            contested = any(
                one[1] != other[1] and (one[0] == other[0] or WHOLE in (one[0], other[0]))
                for one in claims
                for other in claims
            )
            groups: dict[str | None, set[str]] = {}
            for one in now:
                spec = ALLOCATIONS[one.allocation].spec
                model = "H200" if unit == "u0" else "A" if second < 8 else "B"
                names = {"allocation": one.allocation, "tenant": spec.tenant, "model": model, "total": "total"}
                name = names[key or "total"]
                groups.setdefault(name, set()).add(one.part.name)
            for name, parts in groups.items():
                ratio = 1.0 if WHOLE in parts else sum(PARTS[part] for part in parts)
                sums = found.setdefault(name, [0.0, 0.0, 0.0])
                sums[0] += ratio
                if contested:
                    continue
                for part in {WHOLE} if WHOLE in parts else parts:
                    state = world[unit, part][second]
                    sums[1] += PARTS.get(part, 1.0) * (state == "used")
                    sums[2] += PARTS.get(part, 1.0) * (state == "idle")
    return found


@given(held=st.lists(holdings(), max_size=8), world=worlds, by=st.sampled_from(["allocation", "tenant", "model"]))
def test_every_second_of_every_unit_counts_once(held: list[UnitHolding], world: World, by: str) -> None:
    groups, total = summed(held, world, (UsageDimension(by),))
    expected = brute(held, world, by)
    assert {one.group[UsageDimension(by)]: one.held_gpu_hours * 3600 for one in groups} == {
        name: pytest.approx(sums[0]) for name, sums in expected.items()
    }
    (whole,) = brute(held, world, None).values() or ([0.0, 0.0, 0.0],)
    assert total.held_gpu_hours * 3600 == pytest.approx(whole[0])
    for row in (*groups, total):
        parts = row.used_gpu_hours + row.idle_gpu_hours + row.unknown_gpu_hours
        assert parts == pytest.approx(row.held_gpu_hours)
        assert min(row.used_gpu_hours, row.idle_gpu_hours, row.unknown_gpu_hours) >= 0


parts_and_plain = holdings().filter(lambda one: (one.unit[1], one.part.name) != ("u0", WHOLE))


@given(held=st.lists(parts_and_plain, max_size=8), world=worlds)
def test_usage_of_a_unit_or_part_equals_its_measured_states(held: list[UnitHolding], world: World) -> None:
    groups, _ = summed(held, world, (UsageDimension.ALLOCATION,))
    expected = brute(held, world, "allocation")
    assert len(groups) == len(expected)
    for one in groups:
        did = (one.used_gpu_hours * 3600, one.idle_gpu_hours * 3600)
        assert did == pytest.approx(expected[one.group[UsageDimension.ALLOCATION]][1:])


def world_of(**states_by_part: str | None) -> World:
    world: World = {("u0", WHOLE): [], ("u0", "MIG-1"): [], ("u0", "MIG-2"): [], ("u1", WHOLE): []}
    for (unit, part), states_ in world.items():
        states_ += [states_by_part.get(part.replace("-", "_") or unit)] * SECONDS
    return world


def test_gpu_in_mig_mode_has_the_usage_of_its_devices() -> None:
    (row,), _ = summed(
        [UnitHolding(("c", "u0"), HeldPart(WHOLE), "a", ns(0), ns(12))],
        world_of(MIG_1="used", MIG_2="idle"),
        (UsageDimension.MODEL,),
    )
    assert row.group == {"model": "H200"}
    hours = (row.held_gpu_hours, row.used_gpu_hours, row.idle_gpu_hours, row.unknown_gpu_hours)
    assert [one * 3600 for one in hours] == pytest.approx([12, 3, 6, 3])


def test_unit_held_by_two_tenants_counts_for_both_as_unknown() -> None:
    held = [
        UnitHolding(("c", "u1"), HeldPart(WHOLE), "a", ns(0), ns(12)),
        UnitHolding(("c", "u1"), HeldPart(WHOLE), "c", ns(6), ns(12)),
    ]
    groups, total = summed(held, world_of(u1="used"), (UsageDimension.TENANT,))
    hours = {one.group[UsageDimension.TENANT]: (one.held_gpu_hours * 3600, one.used_gpu_hours * 3600) for one in groups}
    assert hours == {"t1": (12, 6), "t2": (6, 0)}
    assert (total.held_gpu_hours * 3600, total.unknown_gpu_hours * 3600, total.gpus) == (12, 6, 1)


def test_cost_uses_the_price_in_force() -> None:
    later = T0 + dt.timedelta(seconds=4)
    prices = [
        Price(model="h200", per_gpu_hour=3600.0, valid_from=T0),
        Price(model="H200", per_gpu_hour=7200.0, valid_from=later),
    ]
    held = [
        UnitHolding(("c", "u0"), HeldPart(WHOLE), "a", ns(0), ns(10)),
        UnitHolding(("c", "u0"), HeldPart("MIG-1"), "b", ns(0), ns(10)),
    ]
    groups, total = summed(held, world_of(), (UsageDimension.ALLOCATION,), prices)
    assert [one.cost for one in groups] == [pytest.approx(4 + 12), pytest.approx((4 + 12) / 4)]
    assert total.cost == pytest.approx(16)
    unpriced, _ = summed([UnitHolding(("c", "u2"), HeldPart(WHOLE), "a", ns(0), ns(1))], world_of(), (), prices)
    assert (unpriced[0].cost, unpriced[0].cost_absent) == (None, Reason.NO_DATA)
    assert "unknown model" in unpriced[0].cost_detail
    (bare,), _ = summed(held[:1], world_of(), ())
    assert (bare.cost, bare.cost_absent) == (None, Reason.NOT_ENABLED)
    _, nothing = summed([], world_of(), ())
    assert (nothing.cost, nothing.cost_absent) == (None, Reason.NOT_ENABLED)
    _, nothing = summed([], world_of(), (), prices)
    assert (nothing.cost, nothing.cost_absent) == (0.0, None)


def test_energy_names_its_source() -> None:
    segment = Segment(("c", "u1"), ns(0), ns(10), {"a": frozenset({HeldPart(WHOLE)})}, contested=False)
    counter = DeviceUsage(power_joules=900, power_seconds=10, energy_joules=1000, energy_seconds=9.5)
    power = DeviceUsage(power_joules=900, power_seconds=10, energy_joules=1000, energy_seconds=2)
    for worked, joules, source in ((counter, 1000, EnergySource.COUNTER), (power, 900, EnergySource.POWER)):
        known = [MeasuredSegment(segment, UNITS["c", "u1"], {WHOLE: worked})]
        _, total = usage_rows(known, ALLOCATIONS, frozenset("a"), (), PriceTable())
        assert total.energy_kwh == pytest.approx(joules / 3.6e6)
        assert total.energy_source is source
    both = [
        MeasuredSegment(segment, UNITS["c", "u1"], {WHOLE: counter}),
        MeasuredSegment(segment, UNITS["c", "u1"], {WHOLE: power}),
    ]
    assert usage_rows(both, ALLOCATIONS, frozenset("a"), (), PriceTable())[1].energy_source is EnergySource.MIXED
    (_, nothing) = usage_rows(
        [MeasuredSegment(segment, UNITS["c", "u1"], {})], ALLOCATIONS, frozenset("a"), (), PriceTable()
    )
    assert (nothing.energy_kwh, nothing.energy_source, nothing.unknown_gpu_hours * 3600) == (None, None, 10)


@st.composite
def divided_devices(draw: st.DrawFn) -> list[UnitHolding]:
    """Return the holders of a device in some intervals; each is named by several allocations."""
    found = []
    for second in range(0, SECONDS, 3):
        replicas = draw(st.dictionaries(st.sampled_from(["p", "q", "r"]), st.integers(1, 3), max_size=3))
        for holder, number in replicas.items():
            share = HeldPart(WHOLE, ("pod", holder), number / sum(replicas.values()), number)
            for id_ in draw(st.sets(st.sampled_from(OF_HOLDER[holder]), max_size=2)):
                found.append(UnitHolding(("c", "u1"), share, id_, ns(second), ns(second + 3)))
    return found


OF_HOLDER = {"p": ["a", "b"], "q": ["c"], "r": ["d"]}
"""Allocations that name a holder; `a` and `b` are of one tenant."""


@given(held=divided_devices())
def test_tenants_never_have_more_than_a_shared_device(held: list[UnitHolding]) -> None:
    groups, total = summed(held, world_of(u1="used"), (UsageDimension.TENANT,))
    assert sum(row.held_gpu_hours for row in groups) == pytest.approx(total.held_gpu_hours)
    assert sum(row.replica_hours for row in groups) == pytest.approx(total.replica_hours)
    for row in (*groups, total):
        assert row.used_gpu_hours + row.idle_gpu_hours + row.unknown_gpu_hours == pytest.approx(row.held_gpu_hours)
        assert row.shared_gpu_hours <= row.unknown_gpu_hours + 1e-9
    for second in range(SECONDS):
        now = {one.part.holder: one.part.fraction for one in held if one.start <= ns(second) < one.end}
        assert sum(now.values()) <= 1 + 1e-9
    assert total.held_gpu_hours * 3600 <= SECONDS + 1e-9


def test_shared_device_is_used_by_the_row_with_all_holders() -> None:
    held = [
        UnitHolding(("c", "u1"), HeldPart(WHOLE, ("pod", "p"), 0.25, 1), "a", ns(0), ns(12)),
        UnitHolding(("c", "u1"), HeldPart(WHOLE, ("pod", "q"), 0.75, 3), "c", ns(0), ns(12)),
    ]
    groups, total = summed(held, world_of(u1="used"), (UsageDimension.TENANT,))
    assert [(one.held_gpu_hours * 3600, one.used_gpu_hours, one.shared_gpu_hours * 3600) for one in groups] == [
        (3, 0, 3),
        (9, 0, 9),
    ]
    assert (total.held_gpu_hours * 3600, total.used_gpu_hours * 3600, total.shared_gpu_hours) == (12, 12, 0)


def test_holding_that_is_not_confirmed_has_unknown_activity() -> None:
    part = HeldPart(WHOLE, ("pod", "p"), is_confirmed=False)
    (row,), _ = summed(
        [UnitHolding(("c", "u1"), part, "a", ns(0), ns(12))], world_of(u1="used"), (UsageDimension.TEAM,)
    )
    assert (row.held_gpu_hours * 3600, row.unknown_gpu_hours * 3600, row.shared_gpu_hours) == (12, 12, 0)


def test_machine_and_pod_of_two_tenants_contest_the_device() -> None:
    held = [
        UnitHolding(("c", "u1"), HeldPart(WHOLE), "a", ns(0), ns(12)),
        UnitHolding(("c", "u1"), HeldPart(WHOLE, ("pod", "q")), "c", ns(0), ns(12)),
    ]
    groups, _ = summed(held, world_of(u1="used"), (UsageDimension.TENANT,))
    assert [(one.held_gpu_hours * 3600, one.used_gpu_hours) for one in groups] == [(12, 0), (12, 0)]
