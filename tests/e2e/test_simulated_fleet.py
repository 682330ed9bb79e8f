"""`gpufleet simulate fleet` with real hubs: all counts and values equal those of the simulated fleet."""

import contextlib
import datetime as dt
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pytest

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.view import Side
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.layout import FleetGuest, GpuPart, NodeRole
from gpufleet.simulate.fleet.reports import CollectionPass, machine_reports
from tests.e2e.conftest import Site
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("e2e-simulated-fleet")]

SIMULATE = [sys.executable, "-m", "gpufleet.cli.main", "simulate", "fleet", "--no-incidents"]
LANES = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0}


def simulate(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([*SIMULATE, "--json", *arguments], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def current_instant() -> tuple[str, int]:
    """Return this instant as an option, and in nanoseconds."""
    at = time.time_ns() // 1000 * 1000
    return dt.datetime.fromtimestamp(at // 10**9, dt.UTC).replace(microsecond=at // 1000 % 10**6).isoformat(), at


def expected(fleet: Fleet, at: int) -> dict[str, dict[str, Any]]:
    """Return the values or absence reasons of one pass of every node, by device key and metric."""
    found: dict[str, dict[str, Any]] = {}
    for node in fleet.nodes():
        for report in machine_reports(fleet, node, CollectionPass(at=at, since=at - 1, lanes=LANES, intervals=LANES)):
            for sample in report.samples:
                if sample.view is not None and sample.view.side is not Side.PCI_ONLY:
                    found.setdefault(sample.view.key, {}).update(
                        (name, value.reason.value if isinstance(value, Absent) else value)
                        for name, value in sample.values.items()
                    )
    return found


def of_devices(devices: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the values or absence reasons of a hub's answer, by device key and metric."""
    return {
        device["id"].split("/", 2)[2]: {
            name: reading.get("value", reading.get("absent")) for name, reading in device["readings"].items()
        }
        for device in devices
        if device["side"] != "pci_only"
    }


def hub_values(site: Site, cluster: str) -> dict[str, dict[str, Any]]:
    return of_devices([one["device"] for one in site.hub(f"/v1/gpus?cluster={cluster}")["items"]])


def cluster(site: Site, name: str) -> dict[str, Any]:
    found: dict[str, Any] = site.hub(f"/v1/clusters/{name}")
    return found


def reports(site: Site, name: str, gpus: int) -> bool:
    return bool(cluster(site, name)["coverage"]["reporting"] == gpus)


def check_values(found: dict[str, dict[str, Any]], fleet: Fleet, number: int, at: int, *, least: int) -> None:
    """Compare all numbers of the foreign schema with the fleet's. A whole GPU has at least `least` numbers."""
    expected_values = expected(fleet, at)
    most = 0
    for key in (gpu.view.key for node in fleet.nodes() if node.cluster == number for gpu in node.gpus):
        both = {
            name: value
            for name, value in found[key].items()
            if isinstance(value, int | float) and isinstance(expected_values[key].get(name), int | float)
        }
        assert len(both) >= least - 10, key  # a MIG GPU has fewer
        assert both == pytest.approx({name: expected_values[key][name] for name in both}, rel=1e-9), key
        most = max(most, len(both))
    assert most >= least


def assert_equal_values(found: dict[str, dict[str, Any]], expected_values: dict[str, dict[str, Any]]) -> None:
    assert set(found) == set(expected_values)
    for key, values in expected_values.items():
        assert {name: found[key].get(name) for name in values} == values, key


class Sent(NamedTuple):
    """Fresh answers of a hub that received clusters over every protocol."""

    at: int
    fleet: dict[str, Any]
    gpus: dict[str, list[dict[str, Any]]]
    clusters: dict[str, dict[str, Any]]
    allocations: dict[str, dict[str, Any]]


NODES = 8
CLUSTERS = {"alone": 1, "relayed": 1, "written": 2, "exported": 2}
VIA = {"alone": "agents", "relayed": "bundles", "written": "remote-write", "exported": "otlp"}
"""Option `--via` of `simulate fleet` by cluster prefix."""


@pytest.fixture(scope="module")
def sent(shared: Site) -> Sent:
    """Send one cluster as batches, one as bundles through a relay, two by remote write and two by OTLP."""
    site = shared
    site.put("/v1/clusters/relayed-1", {"expected": {"H100": 64}})
    with relaying(site, "relayed-1") as relay_url, ThreadPoolExecutor(len(VIA)) as pool:
        text, at = current_instant()

        def send(prefix: str) -> tuple[int, ...]:
            where = ["--hub", relay_url, "--no-register"] if prefix == "relayed" else ["--hub", site.hub_url]
            how = ["--clusters", str(CLUSTERS[prefix]), "--prefix", prefix, "--via", VIA[prefix], *where]
            summary = simulate("--once", "--nodes", str(NODES), "--start", text, "--seed", "1", *how)
            return tuple(summary[name] for name in ("made", "acknowledged", "waiting", "rejected"))

        counts = dict(zip(VIA, pool.map(send, VIA), strict=True))
        assert counts == {prefix: (NODES * number, NODES * number, 0, 0) for prefix, number in CLUSTERS.items()}
        names = [f"{prefix}-{number + 1}" for prefix in VIA for number in range(CLUSTERS[prefix])]
        for name in names:
            wait_until(partial(reports, site, name, gpus_of(name)), seconds=60, what=f"the GPUs of {name}")
    wait_until(site.drained, what="the hub to have flushed")
    for name, uuid in virtual_machines().items():
        target = {"cluster": "alone-1", "vm_uuid": uuid}
        site.put(
            f"/v1/allocations/{name}", {"kind": "gpu_slice", "target": target, "valid_from": "2020-01-01T00:00:00Z"}
        )
    return Sent(
        at=at,
        fleet=site.hub("/v1/fleet"),
        gpus={name: [one["device"] for one in site.hub(f"/v1/gpus?cluster={name}")["items"]] for name in names},
        clusters={name: cluster(site, name) for name in names},
        allocations={name: site.hub(f"/v1/allocations/{name}/metrics") for name in virtual_machines()},
    )


@contextlib.contextmanager
def relaying(site: Site, served: str) -> Iterator[str]:
    """Run a relay in front of the hub, and yield its address."""
    port, config = free_port(), site.folder / "relay.toml"
    config.write_text(f'clusters = ["{served}"]\n')
    arguments = ["hub", "--config", str(config), "--relay-to", site.hub_url]
    arguments += ["--listen", f"127.0.0.1:{port}", "--state", str(site.folder / "relay")]
    with Gpufleet(arguments, site.folder / "relay.log") as relay:
        relay.wait_for(f"http://127.0.0.1:{port}/healthz", 100)
        yield f"http://127.0.0.1:{port}"
        assert relay.stop() == 0


def gpus_of(name: str) -> int:
    """Return how many GPUs report. Exporters do not see GPUs that are passed through to guests."""
    return 64 if name in ("alone-1", "relayed-1") else 56


def alone() -> Fleet:
    return Fleet(FleetSpec(seed=1, nodes=NODES, prefix="alone"))


def inside() -> FleetGuest:
    """Return a guest whose GPUs are read inside the guest."""
    return next(node for node in alone().nodes() if node.role is NodeRole.VM).guests[1]


def vgpu() -> GpuPart:
    """Return a vGPU of a guest that is not read itself."""
    return next(node for node in alone().nodes() if node.role is NodeRole.VGPU).gpus[2].parts[0]


def virtual_machines() -> dict[str, str | None]:
    return {"inside": inside().machine.system_uuid, "shared": vgpu().vm}


@pytest.mark.parametrize("prefix", ["alone", "relayed"])
def test_batches_and_bundles_arrive_unchanged(sent: Sent, prefix: str) -> None:
    expected_values = expected(Fleet(FleetSpec(seed=1, nodes=NODES, prefix=prefix)), sent.at)
    assert len(expected_values) > 64
    assert_equal_values(of_devices(sent.gpus[f"{prefix}-1"]), expected_values)
    record = sent.clusters[f"{prefix}-1"]
    assert record["freshness"]["liveness"]["state"] == "live"
    assert record["freshness"]["senders"] == {"live": NODES}
    assert record["coverage"]["reporting"] == 64


@pytest.mark.parametrize(("prefix", "least"), [("written", 15), ("exported", 30)])
def test_remote_write_and_otlp_have_the_fleets_values(sent: Sent, prefix: str, least: int) -> None:
    fleet = Fleet(FleetSpec(seed=1, clusters=2, nodes=NODES, prefix=prefix))
    for number in (1, 2):
        name = f"{prefix}-{number}"
        check_values(of_devices(sent.gpus[name]), fleet, number, sent.at, least=least)
        assert {device["source"] for device in sent.gpus[name]} == {"imported"}
        assert sent.clusters[name]["freshness"]["liveness"]["state"] == "live"


def test_fleet_counts_clusters_of_every_protocol(sent: Sent) -> None:
    assert sent.fleet["states"] == {"live": 6, "never_seen": 1}
    assert sent.fleet["gpus_reporting"] == sum(map(gpus_of, sent.gpus))
    assert sent.fleet["gpus_expected"] == 6 * 64


def test_virtual_machine_is_answered_by_guest_or_host_vgpu(sent: Sent) -> None:
    expected_values = expected(alone(), sent.at)
    for name, source, keys in (
        ("inside", "slice_guest", [gpu.view.key for gpu in inside().gpus]),
        ("shared", "slice_vgpu_host", [vgpu().view.key]),
    ):
        assert sent.allocations[name]["source"] == source
        assert_equal_values(of_devices(sent.allocations[name]["devices"]), {key: expected_values[key] for key in keys})


def test_faults_become_events_in_accelerated_time(shared: Site) -> None:
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=10)
    faults = "xid=48@+2m:c1/n1/g1,gpu-lost@+3m/2m:c1/n2/g0"
    summary = simulate(
        *("--clusters", "1", "--nodes", "3", "--gpus", "2", "--start", begin.isoformat(), "--speed", "1000"),
        *("--duration", "9m", "--interval", "30", "--faults", faults, "--hub", shared.hub_url),
    )
    assert summary["made"] == summary["acknowledged"] == 3 * 9 * 2
    wait_until(shared.drained, what="the hub to have flushed")
    events = shared.hub("/v1/events?cluster=sim-1")["events"]
    fleet = Fleet(FleetSpec(nodes=3, gpus=2))
    first, second = fleet.node(1, 1).gpus[1].view.key, fleet.node(1, 2).gpus[0].view.key
    found = sorted((one["kind"], one.get("code", 0), one["device"]) for one in events)
    assert found == [("gpu_lost", 0, second), ("gpu_recovered", 1, second), ("xid", 48, first), ("xid", 79, second)]


def test_late_hub_gets_the_backlog_and_ctrl_c_prints_a_summary(site: Site) -> None:
    arguments = ["--clusters", "2", "--nodes", "2", "--gpus", "1", "--interval", "1", "--no-register"]
    command = [*SIMULATE, *arguments, "--hub", site.hub_url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fleet:
        assert fleet.stderr is not None
        assert fleet.stderr.readline()  # the first progress line, without a hub
        site.start_hub()
        for number in (1, 2):
            site.put(f"/v1/clusters/sim-{number}", {})

        def whole() -> bool:
            senders = site.hub("/v1/senders")
            return len(senders) == 4 and all(one["missing"] == 0 and not one["queue_records"] for one in senders)

        wait_until(whole, seconds=90, what="the backlog")
        fleet.send_signal(signal.SIGINT)
        out, _ = fleet.communicate(timeout=60)
    summary = json.loads(out)
    assert summary["acknowledged"] == summary["made"] > 4
    assert summary["retries"] > 0
    assert (summary["waiting"], summary["dropped"], summary["rejected"]) == (0, 0, 0)
