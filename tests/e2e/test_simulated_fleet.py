"""`gpufleet simulate fleet` against real hubs: every count and value is what the fleet says it should be."""

import datetime as dt
import json
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.view import Side
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.layout import Role
from gpufleet.simulate.fleet.reports import Look, reports_of
from tests.e2e.conftest import Way
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

SIMULATE = [sys.executable, "-m", "gpufleet.cli.main", "simulate", "fleet"]
LANES = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0}


def simulate(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([*SIMULATE, "--json", *arguments], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def now() -> tuple[str, int]:
    """Return this instant as an option, and in nanoseconds."""
    at = time.time_ns() // 1000 * 1000
    return dt.datetime.fromtimestamp(at // 10**9, dt.UTC).replace(microsecond=at // 1000 % 10**6).isoformat(), at


def expected(fleet: Fleet, at: int) -> dict[str, dict[str, Any]]:
    """Return key of each device to metric to value, or the reason for its absence, of one look at every node."""
    found: dict[str, dict[str, Any]] = {}
    for node in fleet.nodes():
        for report in reports_of(fleet, node, Look(at=at, since=at - 1, lanes=LANES, intervals=LANES)):
            for sample in report.samples:
                if sample.view is not None and sample.view.side is not Side.PCI_ONLY:
                    found.setdefault(sample.view.key, {}).update(
                        (name, value.reason.value if isinstance(value, Absent) else value)
                        for name, value in sample.values.items()
                    )
    return found


def of_devices(devices: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the same out of a hub's answer."""
    return {
        device["id"].split("/", 2)[2]: {
            name: reading.get("value", reading.get("absent")) for name, reading in device["readings"].items()
        }
        for device in devices
        if device["side"] != "pci_only"
    }


def answered(way: Way, cluster: str) -> dict[str, dict[str, Any]]:
    return of_devices([one["device"] for one in way.hub(f"/v1/gpus?cluster={cluster}")["items"]])


def cluster(way: Way, name: str) -> dict[str, Any]:
    found: dict[str, Any] = way.hub(f"/v1/clusters/{name}")
    return found


def reports(way: Way, name: str, gpus: int) -> bool:
    return bool(cluster(way, name)["coverage"]["reporting"] == gpus)


def told_right(way: Way, fleet: Fleet, number: int, at: int, *, least: int) -> None:
    """Hold every number that another project's names have room for against the fleet's; so many of a whole GPU."""
    wanted, told = expected(fleet, at), answered(way, fleet.cluster_id(number))
    most = 0
    for key in (gpu.view.key for node in fleet.nodes() if node.cluster == number for gpu in node.gpus):
        both = {
            name: value
            for name, value in told[key].items()
            if isinstance(value, int | float) and isinstance(wanted[key].get(name), int | float)
        }
        assert len(both) >= least - 10, key  # a GPU that is cut has fewer
        assert both == pytest.approx({name: wanted[key][name] for name in both}, rel=1e-9), key
        most = max(most, len(both))
    assert most >= least


def agree(told: dict[str, dict[str, Any]], wanted: dict[str, dict[str, Any]]) -> None:
    assert set(told) == set(wanted)
    for key, values in wanted.items():
        assert {name: told[key].get(name) for name in values} == values, key


def test_three_clusters_by_three_roads_are_right_to_the_unit_in_one_hub(way: Way) -> None:
    """Node by node, as bundles through a real relay, and by remote write: every kind of node, every value."""
    way.start_hub()
    way.put("/v1/clusters/relayed-1", {"expected": {"H100": 64}})
    relay_port = free_port()
    (way.folder / "relay.toml").write_text('clusters = ["relayed-1"]\n')
    arguments = ["hub", "--config", str(way.folder / "relay.toml"), "--relay-to", way.hub_url]
    arguments += ["--listen", f"127.0.0.1:{relay_port}", "--state", str(way.folder / "relay")]
    relay_url = f"http://127.0.0.1:{relay_port}"
    with Gpufleet(arguments, way.folder / "relay.log") as relay:
        relay.wait_for(f"{relay_url}/healthz")
        text, at = now()
        every = ["--once", "--clusters", "1", "--nodes", "8", "--start", text, "--seed", "1"]
        alone = simulate(*every, "--prefix", "alone", "--hub", way.hub_url)
        relayed = simulate(*every, "--prefix", "relayed", "--hub", relay_url, "--road", "bundles", "--no-register")
        written = simulate(*every, "--prefix", "written", "--hub", way.hub_url, "--road", "remote-write")
        for summary in (alone, relayed, written):
            assert (summary["made"], summary["acknowledged"], summary["waiting"], summary["refused"]) == (8, 8, 0, 0)
        for prefix in ("alone", "relayed"):
            fleet = Fleet(FleetSpec(seed=1, nodes=8, prefix=prefix))
            wanted = expected(fleet, at)
            assert len(wanted) > 64
            wait_until(lambda: set(answered(way, f"{prefix}-1")) == set(wanted), seconds=60, what=prefix)  # noqa: B023
            wait_until(way.drained, what="the hub to have flushed")
            agree(answered(way, f"{prefix}-1"), wanted)
            record = cluster(way, f"{prefix}-1")
            assert record["freshness"]["liveness"]["state"] == "live"
            assert record["freshness"]["senders"] == {"live": 8}
            assert record["coverage"]["reporting"] == 64
        assert relay.stop() == 0
    wait_until(partial(reports, way, "written-1", 56), seconds=60, what="the GPUs that an exporter sees")
    told_right(way, Fleet(FleetSpec(seed=1, nodes=8, prefix="written")), 1, at, least=15)
    fleet_answer = way.hub("/v1/fleet")
    assert (fleet_answer["gpus_reporting"], fleet_answer["gpus_expected"]) == (64 + 64 + 56, 3 * 64)


@pytest.mark.parametrize(("road", "least"), [("remote-write", 15), ("otlp", 30)])
def test_clusters_by_other_projects_roads_are_told_beside_one_by_agents(way: Way, road: str, least: int) -> None:
    way.start_hub()
    text, at = now()
    every = ["--once", "--nodes", "8", "--start", text, "--hub", way.hub_url]
    simulate(*every, "--clusters", "1", "--prefix", "own")
    summary = simulate(*every, "--clusters", "2", "--prefix", "other", "--road", road)
    assert summary["made"] == summary["acknowledged"] == 16
    wait_until(way.drained, what="the hub to have flushed")
    agree(answered(way, "own-1"), expected(Fleet(FleetSpec(nodes=8, prefix="own")), at))
    fleet = Fleet(FleetSpec(clusters=2, nodes=8, prefix="other"))
    for number in (1, 2):
        wait_until(partial(reports, way, f"other-{number}", 56), seconds=60, what="all GPUs")
        assert cluster(way, f"other-{number}")["freshness"]["liveness"]["state"] == "live"
        told_right(way, fleet, number, at, least=least)
    sources = {one["device"]["source"] for one in way.hub("/v1/gpus?cluster=other-1")["items"]}
    assert sources == {"imported"}
    fleet_answer = way.hub("/v1/fleet")
    assert fleet_answer["states"] == {"live": 3, "never_seen": 1}
    assert fleet_answer["gpus_reporting"] == 64 + 2 * 56  # those that are handed to guests no exporter sees


def test_a_virtual_machine_of_the_fleet_is_answered_by_whoever_may(way: Way) -> None:
    """One that is read from inside, one of which only the host's vGPU tells."""
    way.start_hub()
    text, at = now()
    simulate("--once", "--clusters", "1", "--nodes", "8", "--start", text, "--hub", way.hub_url)
    wait_until(way.drained, what="the hub to have flushed")
    fleet = Fleet(FleetSpec(nodes=8))
    inside = next(node for node in fleet.nodes() if node.role is Role.VM).guests[1]
    shared = next(node for node in fleet.nodes() if node.role is Role.VGPU).gpus[2].parts[0]
    for name, uuid, source in (
        ("inside", inside.machine.system_uuid, "slice_guest"),
        ("shared", shared.vm, "slice_vgpu_host"),
    ):
        target = {"cluster": "sim-1", "vm_uuid": uuid}
        way.put(
            f"/v1/allocations/{name}", {"kind": "gpu_slice", "target": target, "valid_from": "2020-01-01T00:00:00Z"}
        )
        answer = way.hub(f"/v1/allocations/{name}/metrics")
        assert answer["source"] == source
        told = of_devices(answer["devices"])
        keys = {gpu.view.key for gpu in inside.gpus} if name == "inside" else {shared.view.key}
        agree(told, {key: values for key, values in expected(fleet, at).items() if key in keys})


def test_an_event_of_a_fault_is_told_and_time_can_go_faster(way: Way) -> None:
    way.start_hub()
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=10)
    faults = "xid=48@+2m:c1/n1/g1,gpu-lost@+3m/2m:c1/n2/g0"
    summary = simulate(
        *("--clusters", "1", "--nodes", "3", "--gpus", "2", "--start", begin.isoformat(), "--speed", "200"),
        *("--duration", "9m", "--interval", "30", "--faults", faults, "--hub", way.hub_url),
    )
    assert summary["made"] == summary["acknowledged"] == 3 * 9 * 2
    wait_until(way.drained, what="the hub to have flushed")
    events = way.hub("/v1/events?cluster=sim-1")["events"]
    fleet = Fleet(FleetSpec(nodes=3, gpus=2))
    first, second = fleet.node(1, 1).gpus[1].view.key, fleet.node(1, 2).gpus[0].view.key
    told = sorted((one["kind"], one.get("code", 0), one["device"]) for one in events)
    assert told == [("gpu_lost", 0, second), ("gpu_recovered", 0, second), ("xid", 48, first), ("xid", 79, second)]


def test_a_hub_that_comes_late_gets_everything_and_ctrl_c_ends_with_the_summary(way: Way) -> None:
    arguments = ["--clusters", "2", "--nodes", "2", "--gpus", "1", "--interval", "1", "--no-register"]
    command = [*SIMULATE, *arguments, "--hub", way.hub_url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fleet:
        assert fleet.stderr is not None
        assert "wait" in fleet.stderr.readline()  # the first progress: nobody takes anything
        way.start_hub()
        for number in (1, 2):
            way.put(f"/v1/clusters/sim-{number}", {})

        def whole() -> bool:
            senders = way.hub("/v1/senders")
            return len(senders) == 4 and all(one["missing"] == 0 and not one["queue_records"] for one in senders)

        wait_until(whole, seconds=90, what="all that waited to come in")
        fleet.send_signal(signal.SIGINT)
        out, _ = fleet.communicate(timeout=60)
    summary = json.loads(out)
    assert summary["acknowledged"] == summary["made"] > 4
    assert summary["again"] > 0
    assert (summary["waiting"], summary["dropped"], summary["refused"]) == (0, 0, 0)
