"""Usage of a simulated fleet against a calculator that knows what was sent: a reading at a time, written apart."""

import datetime as dt
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.model.absence import Absent
from gpufleet.simulate.fleet.agents import Timing, agents_of
from gpufleet.simulate.fleet.faults import parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from tests.e2e.conftest import Way
from tests.e2e.test_simulated_fleet import simulate
from tests.support.processes import Gpufleet
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

SECOND = 10**9
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
SPEAKS = {"fast": 120, "slow": 300, "static": 1500}
FAULTS = (
    "node-reboot@+31m/2m:c1/n1,backfill@+20m/40m:c1/n2,gpu-lost@+30m/25m:c1/n3/g0,"
    "silent-node@+70m/9m:c1/n5,clock-step=200@+40m/10m:c1/n7"
)
PRICES = """
[usage]
currency = "EUR"
[[usage.price]]
model = "nvidia h200"
per_gpu_hour = 2.5
valid_from = 2020-01-01T00:00:00Z
[[usage.price]]
model = "NVIDIA H200"
per_gpu_hour = 7.0
valid_from = {later}
"""


class Said(NamedTuple):
    """What was told of a device at an instant (nanoseconds since 1970); None where it was absent."""

    at: int
    session: int
    busy: float | None
    watts: float | None
    joules: float | None


Place = tuple[str, str]
Lanes = dict[tuple[str, str], list[Said]]


class Given(NamedTuple):
    """What an allocation has: places, each with its share of a GPU; from when to when; of whom."""

    tenant: str
    places: list[tuple[Place, float]]
    start: int
    end: int


def sent(fleet: Fleet, start: int, minutes: int) -> dict[Place, Lanes]:
    """Return everything that was told of each device, by machine and key of the view."""
    found: dict[Place, Lanes] = defaultdict(lambda: defaultdict(list))
    for agent in agents_of(fleet, Timing(start=start, interval=30)):
        while agent.next_at < start + minutes * MINUTE:
            agent.look()
        for body in agent.waiting:
            for report in to_rows(decode(body.content)).reports:
                for one in report.samples:
                    if one.view is None:
                        continue
                    has = {name: value for name, value in one.values.items() if not isinstance(value, Absent)}
                    busy = has.get("gpu_utilization_ratio", has.get("gpu_graphics_activity_ratio"))
                    watts, joules = has.get("gpu_power_watts"), has.get("gpu_energy_joules_total")
                    said = Said(one.measured_at, one.driver_session, busy, watts, joules)  # type: ignore[arg-type]
                    found[report.machine.name, one.view.key][one.reader, one.lane.value].append(said)
    return found


def did(lanes: Lanes, start: int, end: int) -> tuple[float, float, float]:
    """Return seconds of use and idleness and the joules of a device within a time."""
    used = idle = drawn = drawn_for = joules = counted_for = 0.0
    for (_, lane), told in lanes.items():
        ordered = sorted(told)
        for one, after in itertools.zip_longest(ordered, ordered[1:]):
            until = min(end, one.at + SPEAKS[lane] * SECOND, after.at if after else end)
            seconds = max(0, until - max(start, one.at)) / SECOND
            if one.busy is not None:
                used, idle = (used + seconds, idle) if one.busy >= 0.01 else (used, idle + seconds)
            if one.watts is not None:
                drawn, drawn_for = drawn + one.watts * seconds, drawn_for + seconds
        counter = [(one.at, one.session, one.joules) for one in ordered if one.joules is not None]
        for (at, session, before), (then, anew, now) in itertools.pairwise(counter):
            grown = now if now < before or anew != session else now - before
            within = (min(end, then) - max(start, at)) / SECOND
            if within > 0 and then - at <= 1500 * SECOND and grown <= 4000 * (then - at) / SECOND:
                joules, counted_for = joules + grown * within / (then - at) * SECOND, counted_for + within
    return used, idle, joules if counted_for and counted_for >= 0.9 * drawn_for else drawn


def came_to(given: Iterable[Given], told: Mapping[Place, Lanes], start: int, end: int, later: int) -> list[float]:
    """Return GPU-hours held, used, idle, what is not known of them, kWh and cost; the price rises `later`."""
    held = used = idle = joules = cost = 0.0
    for one in given:
        mine = max(start, one.start), min(end, one.end)
        for first, last, price in ((mine[0], min(mine[1], later), 2.5), (max(mine[0], later), mine[1], 7.0)):
            for place, share in one.places if first < last else ():
                more = did(told[place], first, last)
                held, cost = held + share * (last - first) / HOUR, cost + share * (last - first) / HOUR * price
                used, idle = used + share * more[0] / 3600, idle + share * more[1] / 3600
                joules += more[2] if share == 1 else 0
    return [held, used, idle, held - used - idle, joules / 3.6e6, cost]


def rfc(at: int) -> str:
    return dt.datetime.fromtimestamp(at // SECOND, dt.UTC).isoformat()


def test_hours_energy_and_cost_are_what_the_simulation_says(way: Way) -> None:
    """Two tenants on one machine, MIG, a virtual machine, one that changes hands; by two roads at once, with faults."""
    start = time.time_ns() // SECOND * SECOND - 190 * MINUTE
    later, handed = start + 47 * MINUTE + 11 * SECOND, start + 52 * MINUTE + 7 * SECOND
    fleet = Fleet(FleetSpec(nodes=7, gpus=2, faults=parse_faults(FAULTS, start)))
    told = sent(fleet, start, 100)
    (way.folder / "hub.toml").write_text(PRICES.format(later=rfc(later)))
    arguments = ["hub", "--config", str(way.folder / "hub.toml"), "--state", str(way.state)]
    with Gpufleet([*arguments, "--listen", f"127.0.0.1:{way.hub_port}"], way.folder / "hub.log") as hub:
        hub.wait_for(f"{way.hub_url}/readyz")
        how = ["--clusters", "1", "--nodes", "7", "--gpus", "2", "--interval", "30", "--duration", "100m"]
        how += ["--start", rfc(start), "--speed", "1000000", "--hub", way.hub_url]
        for road in ("agents", "remote-write"):
            summary = simulate(*how, "--road", road, "--faults", FAULTS)
            assert summary["made"] == summary["acknowledged"]
        wait_until(way.drained, seconds=60, what="the hub to have flushed")
        every = allocate(way, fleet, start, handed)
        spans = [(0, 100), (13.3, 14.1), (19.5, 71.25), (46, 53), (52.2, 99.9), (-30, 5), (61, 120)]
        for first, last in ((start + int(a * 60) * SECOND, start + int(b * 60) * SECOND) for a, b in spans):
            for by in ("allocation", "tenant"):
                query = urlencode({"group_by": by, "start": rfc(first), "end": rfc(last)})
                answer = way.hub(f"/v1/usage?{query}")
                groups: dict[str, list[Given]] = defaultdict(list)
                for name, one in every.items():
                    if max(first, one.start) < min(last, one.end):
                        groups[name if by == "allocation" else one.tenant].append(one)
                assert {row["group"][by] for row in answer["rows"]} == set(groups)
                for row in [*answer["rows"], {**answer["total"], "group": {by: None}}]:
                    mine = groups[row["group"][by]] if row["group"][by] else list(itertools.chain(*groups.values()))
                    wanted = came_to(mine, told, first, last, later)
                    hours = [row[f"{what}_gpu_hours"] for what in ("held", "used", "idle", "unknown")]
                    found = [*hours, row["energy_kwh"] or 0.0, row["cost"]]
                    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5), (row["group"], first - start)


def allocate(way: Way, fleet: Fleet, start: int, handed: int) -> dict[str, Given]:
    """Put allocations to the hub, and return what each has."""
    nodes = {number: fleet.node(1, number) for number in range(1, 8)}
    cut, guest = nodes[4].gpus[0], nodes[5].guests[0]
    sevenths = {part.view.uuid or "": part.slot.profile.slices / 7 for part in cut.parts if part.slot}
    first, *others = sevenths
    whole = {n: [((nodes[n].name, gpu.view.key), 1.0) for gpu in nodes[n].gpus] for n in (1, 2, 3, 7)}
    inside: list[tuple[Place, float]] = [((guest.machine.name, gpu.view.key), 1.0) for gpu in guest.gpus]

    def parts(names: Iterable[str]) -> list[tuple[Place, float]]:
        return [((nodes[4].name, f"mig/{name}"), sevenths[name]) for name in names]

    begin, end = start - 20 * MINUTE, 2**62
    told: list[tuple[str, dict[str, str | None], Sequence[str | None] | None, Given]] = [
        ("one", {"machine": nodes[1].name}, None, Given("a", whole[1], begin, end)),
        ("before", {"machine": nodes[2].name}, None, Given("a", whole[2], begin, handed)),
        ("after", {"machine": nodes[2].name}, None, Given("b", whole[2], handed, end)),
        ("left", {"machine": nodes[3].name}, [nodes[3].gpus[0].view.uuid], Given("a", whole[3][:1], begin, end)),
        ("right", {"machine": nodes[3].name}, [nodes[3].gpus[1].view.uuid], Given("b", whole[3][1:], begin, end)),
        ("part", {"machine": nodes[4].name}, [first], Given("a", parts([first]), begin, end)),
        ("parts", {"machine": nodes[4].name}, others, Given("b", parts(others), begin, end)),
        ("guest", {"vm_uuid": guest.machine.system_uuid}, None, Given("b", inside, begin, end)),
        ("clock", {"machine": nodes[7].name}, None, Given("a", whole[7], begin, end)),
    ]
    for name, target, devices, given in told:
        spec = {
            "kind": "gpu_slice" if name == "guest" else "bare_metal",
            "target": target | {"cluster": fleet.cluster_id(1)},
            "tenant": given.tenant,
            "devices": devices,
            "valid_from": rfc(given.start),
            "valid_to": rfc(given.end) if given.end == handed else None,
        }
        way.put(f"/v1/allocations/{name}", spec)
    return {name: given for name, _, _, given in told}
