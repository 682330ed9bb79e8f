"""Usage of a simulated fleet, compared with an independent calculation from the sent batches."""

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
from gpufleet.simulate.fleet.agents import AgentTiming, create_agents
from gpufleet.simulate.fleet.faults import parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from tests.e2e.conftest import Site
from tests.e2e.test_simulated_fleet import simulate
from tests.support.profiles import examples
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

SECOND = 10**9
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
INTERVAL = examples(60, 30)
"""Seconds between two batches of a node."""

VALID_SECONDS = {"fast": 120, "slow": 300, "static": 1500, "event": 120}
FAULTS = (
    "node-reboot@+31m/2m:c1/n1,backfill@+20m/40m:c1/n2,gpu-lost@+30m/25m:c1/n3/g0,"
    "node-off@+70m/9m:c1/n5,clock-step=200@+40m/10m:c1/n7"
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


class Measurement(NamedTuple):
    """Readings of a device at an instant (nanoseconds since 1970). Absent readings are None."""

    at: int
    session: int
    busy: float | None
    watts: float | None
    joules: float | None


Place = tuple[str, str]
Lanes = dict[tuple[str, str], list[Measurement]]


class Allocation(NamedTuple):
    """Allocation: tenant, devices with their share of a GPU, and interval."""

    tenant: str
    places: list[tuple[Place, float]]
    start: int
    end: int


def sent(fleet: Fleet, start: int, minutes: int) -> dict[Place, Lanes]:
    """Return all sent measurements by machine and view key."""
    found: dict[Place, Lanes] = defaultdict(lambda: defaultdict(list))
    for agent in create_agents(fleet, AgentTiming(start=start, interval=INTERVAL)):
        while agent.next_at < start + minutes * MINUTE:
            agent.collect()
        for body in agent.waiting:
            for report in to_rows(decode(body.content)).reports:
                for one in report.samples:
                    if one.view is None:
                        continue
                    has = {name: value for name, value in one.values.items() if not isinstance(value, Absent)}
                    busy = has.get("gpu_utilization_ratio", has.get("gpu_graphics_activity_ratio"))
                    watts, joules = has.get("gpu_power_watts"), has.get("gpu_energy_joules_total")
                    measurement = Measurement(one.measured_at, one.driver_session, busy, watts, joules)  # type: ignore[arg-type]
                    found[report.machine.name, one.view.key][one.reader, one.lane.value].append(measurement)
    return found


def usage_of(lanes: Lanes, start: int, end: int) -> tuple[float, float, float]:
    """Return used and idle seconds and joules of a device within an interval."""
    used = idle = drawn = drawn_for = joules = counted_for = 0.0
    for (_, lane), measurements in lanes.items():
        ordered = sorted(measurements)
        for one, after in itertools.zip_longest(ordered, ordered[1:]):
            until = min(end, one.at + VALID_SECONDS[lane] * SECOND, after.at if after else end)
            seconds = max(0, until - max(start, one.at)) / SECOND
            if one.busy is not None:
                used, idle = (used + seconds, idle) if one.busy >= 0.01 else (used, idle + seconds)
            if one.watts is not None:
                drawn, drawn_for = drawn + one.watts * seconds, drawn_for + seconds
        counter = [(one.at, one.session, one.joules) for one in ordered if one.joules is not None]
        for (at, session, before), (then, new_session, now) in itertools.pairwise(counter):
            grown = now if now < before or new_session != session else now - before
            within = (min(end, then) - max(start, at)) / SECOND
            if within > 0 and then - at <= 1500 * SECOND and grown <= 4000 * (then - at) / SECOND:
                joules, counted_for = joules + grown * within / (then - at) * SECOND, counted_for + within
    return used, idle, joules if counted_for and counted_for >= 0.9 * drawn_for else drawn


def totals(
    allocations: Iterable[Allocation], measurements: Mapping[Place, Lanes], start: int, end: int, later: int
) -> list[float]:
    """Return held, used, idle and unknown GPU-hours, kWh and cost. The price rises at `later`."""
    held = used = idle = joules = cost = 0.0
    for one in allocations:
        mine = max(start, one.start), min(end, one.end)
        for first, last, price in ((mine[0], min(mine[1], later), 2.5), (max(mine[0], later), mine[1], 7.0)):
            for place, share in one.places if first < last else ():
                more = usage_of(measurements[place], first, last)
                held, cost = held + share * (last - first) / HOUR, cost + share * (last - first) / HOUR * price
                used, idle = used + share * more[0] / 3600, idle + share * more[1] / 3600
                joules += more[2] if share == 1 else 0
    return [held, used, idle, held - used - idle, joules / 3.6e6, cost]


def rfc(at: int) -> str:
    return dt.datetime.fromtimestamp(at // SECOND, dt.UTC).isoformat()


def test_hours_energy_and_cost_match_the_simulation(site: Site) -> None:
    """Two tenants on a machine, MIG, a virtual machine, a change of tenant, two senders at once, and faults."""
    start = time.time_ns() // SECOND * SECOND - 190 * MINUTE
    later, handover = start + 47 * MINUTE + 11 * SECOND, start + 52 * MINUTE + 7 * SECOND
    fleet = Fleet(FleetSpec(nodes=7, gpus=2, faults=parse_faults(FAULTS, start)))
    measurements = sent(fleet, start, 100)
    (site.folder / "hub.toml").write_text(PRICES.format(later=rfc(later)))
    with site.start_hub("--config", str(site.folder / "hub.toml")):
        how = ["--clusters", "1", "--nodes", "7", "--gpus", "2", "--interval", str(INTERVAL), "--duration", "100m"]
        how += ["--start", rfc(start), "--speed", "1000000", "--hub", site.hub_url]
        for via in ("agents", "remote-write"):
            summary = simulate(*how, "--via", via, "--faults", FAULTS)
            assert summary["made"] == summary["acknowledged"]
        wait_until(site.drained, seconds=60, what="the hub to have flushed")
        every = allocate(site, fleet, start, handover)
        spans = [(0, 100), (13.3, 14.1), (19.5, 71.25), (46, 53), (52.2, 99.9), (-30, 5), (61, 120)]
        for first, last in ((start + int(a * 60) * SECOND, start + int(b * 60) * SECOND) for a, b in spans):
            for by in ("allocation", "tenant"):
                query = urlencode({"group_by": by, "start": rfc(first), "end": rfc(last)})
                answer = site.hub(f"/v1/usage?{query}")
                groups: dict[str, list[Allocation]] = defaultdict(list)
                for name, one in every.items():
                    if max(first, one.start) < min(last, one.end):
                        groups[name if by == "allocation" else one.tenant].append(one)
                assert {row["group"][by] for row in answer["rows"]} == set(groups)
                for row in [*answer["rows"], {**answer["total"], "group": {by: None}}]:
                    mine = groups[row["group"][by]] if row["group"][by] else list(itertools.chain(*groups.values()))
                    wanted = totals(mine, measurements, first, last, later)
                    hours = [row[f"{what}_gpu_hours"] for what in ("held", "used", "idle", "unknown")]
                    found = [*hours, row["energy_kwh"] or 0.0, row["cost"]]
                    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5), (row["group"], first - start)


def allocate(site: Site, fleet: Fleet, start: int, handover: int) -> dict[str, Allocation]:
    """Create allocations at the hub, and return them by name."""
    nodes = {number: fleet.node(1, number) for number in range(1, 8)}
    cut, guest = nodes[4].gpus[0], nodes[5].guests[0]
    sevenths = {part.view.uuid or "": part.slot.profile.slices / 7 for part in cut.parts if part.slot}
    first, *others = sevenths
    whole = {n: [((nodes[n].name, gpu.view.key), 1.0) for gpu in nodes[n].gpus] for n in (1, 2, 3, 7)}
    inside: list[tuple[Place, float]] = [((guest.machine.name, gpu.view.key), 1.0) for gpu in guest.gpus]

    def parts(names: Iterable[str]) -> list[tuple[Place, float]]:
        return [((nodes[4].name, f"mig/{name}"), sevenths[name]) for name in names]

    begin, end = start - 20 * MINUTE, 2**62
    specs: list[tuple[str, dict[str, str | None], Sequence[str | None] | None, Allocation]] = [
        ("one", {"machine": nodes[1].name}, None, Allocation("a", whole[1], begin, end)),
        ("before", {"machine": nodes[2].name}, None, Allocation("a", whole[2], begin, handover)),
        ("after", {"machine": nodes[2].name}, None, Allocation("b", whole[2], handover, end)),
        ("left", {"machine": nodes[3].name}, [nodes[3].gpus[0].view.uuid], Allocation("a", whole[3][:1], begin, end)),
        ("right", {"machine": nodes[3].name}, [nodes[3].gpus[1].view.uuid], Allocation("b", whole[3][1:], begin, end)),
        ("part", {"machine": nodes[4].name}, [first], Allocation("a", parts([first]), begin, end)),
        ("parts", {"machine": nodes[4].name}, others, Allocation("b", parts(others), begin, end)),
        ("guest", {"vm_uuid": guest.machine.system_uuid}, None, Allocation("b", inside, begin, end)),
        ("clock", {"machine": nodes[7].name}, None, Allocation("a", whole[7], begin, end)),
    ]
    for name, target, devices, given in specs:
        spec = {
            "kind": "gpu_slice" if name == "guest" else "bare_metal",
            "target": target | {"cluster": fleet.cluster_id(1)},
            "tenant": given.tenant,
            "devices": devices,
            "valid_from": rfc(given.start),
            "valid_to": rfc(given.end) if given.end == handover else None,
        }
        site.put(f"/v1/allocations/{name}", spec)
    return {name: given for name, _, _, given in specs}
