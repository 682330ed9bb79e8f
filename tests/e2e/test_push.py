"""Metrics of an agent in real Prometheus, VictoriaMetrics and vmagent processes."""

import datetime as dt
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.remote_write import RemoteWriteSeries
from gpufleet.model.holdings import DeviceHolders, Holder, HolderKind, HolderState
from gpufleet.model.time import to_ns
from gpufleet.runtime import run_to_end
from tests.e2e.conftest import Site
from tests.fakes.kubelet import KUBELET, FakeContainer, FakeKubelet, FakePod, node_folder
from tests.support.everything import snapshot_of_everything
from tests.support.processes import get_json
from tests.support.snapshots import holding
from tests.support.tsdb import Tsdb, prometheus, victoria, vmagent
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("e2e-push")]

Peer = Callable[[str], Path]

DRIVER_FAMILIES = re.compile(r"gpufleet_gpu_(?!.*(timestamp|seconds_total|activity|xid)).*")
"""Families with constant values of the fake driver."""


def pushing(site: Site, url: str, version: str = "1.0") -> None:
    with (site.folder / "agent.toml").open("a") as file:
        file.write(
            f'[push.remote_write]\nurl = "{url}"\nversion = "{version}"\ninterval_seconds = 1.0\n'
            'labels = ["team=ml"]\ndialects = ["gpufleet", "dcgm-exporter"]\n'
        )


def power(database: Tsdb, job: str) -> dict[str, float]:
    return {one.labels["uuid"]: one.value for one in database.now(f'gpufleet_gpu_power_watts{{job="{job}"}}')}


def watts(site: Site) -> dict[str, float]:
    """Return the driver's values by UUID."""
    found = {device.uuid: device.numbers["nvmlDeviceGetPowerUsage"] for device in site.driver.scenario.devices}
    return {uuid: number / 1000 for uuid, number in found.items() if number is not None}


def page_of(site: Site) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the driver's values from the agent's page, without empty labels."""
    page = TextParser().parse(site.metrics().encode())
    return {
        (series.name, frozenset((name, text) for name, text in series.labels.items() if text)): value
        for series, value in zip(page.series, page.values, strict=True)
        if DRIVER_FAMILIES.fullmatch(series.name)
    }


def held_by(database: Tsdb, job: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the driver's current values from a database."""
    added = {"job", "instance", "cluster", "team", "__name__"}
    return {
        (one.labels["__name__"], frozenset(pair for pair in one.labels.items() if pair[0] not in added)): one.value
        for one in database.now(f'{{__name__=~"gpufleet_gpu_.+",job="{job}"}}')
        if DRIVER_FAMILIES.fullmatch(one.labels["__name__"])
    }


def is_all_there(site: Site, database: Tsdb, job: str) -> Callable[[], bool]:
    def look() -> bool:
        page = page_of(site)
        assert len(page) > 400
        held = held_by(database, job)
        return page == {key: value for key, value in held.items() if key in page}

    return look


@pytest.fixture(scope="module")
def kubelet() -> Iterator[FakeKubelet]:
    with node_folder() as root, FakeKubelet(root) as kubelet:
        yield kubelet


@pytest.fixture(scope="module")
def prom(tmp_path_factory: pytest.TempPathFactory, peer: Peer, kubelet: FakeKubelet) -> Iterator[tuple[Site, Tsdb]]:
    """Yield an agent that pushes version 2.0, and a Prometheus that receives from it and scrapes it."""
    site = Site(tmp_path_factory.mktemp("prometheus"))
    with prometheus(peer("prometheus"), site.folder / "tsdb", f"127.0.0.1:{site.agent_port}") as database:
        pushing(site, database.write_url, "2.0")
        with (site.folder / "agent.toml").open("a") as file:
            file.write(
                "[metrics]\nholder_labels = true\n[holders]\ninterval_seconds = 1.0\n"
                f'[holders.kubelet]\nfolder = "{kubelet.root / KUBELET}"\n'
            )
        site.start_agent()
        yield site, database
        site.stop()


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory, peer: Peer) -> Iterator[tuple[Site, Tsdb]]:
    """Yield an agent that pushes version 1.0, and a VictoriaMetrics that receives from it."""
    site = Site(tmp_path_factory.mktemp("victoria"))
    with victoria(peer("victoria-metrics"), site.folder / "tsdb") as database:
        pushing(site, database.write_url, "1.0")
        site.start_agent()
        yield site, database
        site.stop()


def test_prometheus_scrapes_and_receives_the_same_values(prom: tuple[Site, Tsdb]) -> None:
    """Debian's Prometheus accepts remote write 1.0 only: the agent falls back from 2.0 without loss."""
    site, database = prom
    for job in ("scraped", "gpufleet"):
        wait_until(lambda job=job: len(power(database, job)) == 8, seconds=60, what=f"eight GPUs of job {job}")  # type: ignore[misc]
        assert power(database, job) == pytest.approx(watts(site))
        wait_until(is_all_there(site, database, job), seconds=60, what=f"every series of the page, job {job}")
    (one, *_) = database.now('gpufleet_gpu_power_watts{job="gpufleet"}')
    assert one.labels["cluster"] == "local"
    assert one.labels["instance"] == one.labels["node"] == "node-1"
    assert one.labels["team"] == "ml"
    (dcgm,) = database.now('DCGM_FI_DEV_POWER_USAGE{job="gpufleet",gpu="3"}')
    assert dcgm.value == pytest.approx(watts(site)[dcgm.labels["UUID"]])
    assert "remote write 2.0" in (site.folder / "agent.log").read_text()


def test_series_ends_with_its_reading(prom: tuple[Site, Tsdb]) -> None:
    site, database = prom
    wait_until(lambda: len(power(database, "gpufleet")) == 8, seconds=60, what="eight GPUs")
    hung = site.driver.scenario.devices[5].uuid
    site.driver.scenario.hang("nvmlDeviceGetPowerUsage", gpu=5)
    site.driver.apply()

    others = watts(site).keys() - {hung}
    wait_until(lambda: power(database, "gpufleet").keys() == others, seconds=60, what="the end of one series")
    absent = f'gpufleet_reading_absent{{job="gpufleet",uuid="{hung}",metric="gpu_power_watts"}}'
    # A busy machine can report another reason first. Its series then ends with the next write.
    wait_until(
        lambda: [one.labels["reason"] for one in database.now(absent)] == ["timeout"], seconds=60, what="one reason"
    )
    (sent,) = database.now('gpufleet_export_points_accepted_total{job="gpufleet",target="remote_write"}')
    assert sent.value > 1000
    (rejected,) = database.now('gpufleet_export_points_rejected_total{job="gpufleet",target="remote_write"}')
    assert rejected.value == 0

    site.driver.scenario.faults.clear()
    site.driver.apply()
    wait_until(lambda: len(power(database, "gpufleet")) == 8, seconds=60, what="eight GPUs again")


def test_series_of_a_gpu_name_its_pod(prom: tuple[Site, Tsdb], kubelet: FakeKubelet) -> None:
    site, database = prom
    uuid = site.driver.scenario.devices[6].uuid
    pod = FakePod("ml", "train-0", "uid-1", (FakeContainer("cuda", devices={"nvidia.com/gpu": (uuid,)}),))
    query = 'gpufleet_gpu_power_watts{pod="train-0",namespace="ml",container="cuda"}'

    def jobs() -> set[str]:
        found = database.now(query)
        assert {one.labels["uuid"] for one in found} <= {uuid}
        return {one.labels["job"] for one in found}

    kubelet.place(pod)
    wait_until(lambda: jobs() == {"scraped", "gpufleet"}, seconds=60, what="the pod's series from both sources")
    every = 'gpufleet_gpu_power_watts{job="gpufleet"}'
    wait_until(lambda: len(database.now(every)) == 8, seconds=60, what="one series of each GPU")
    kubelet.remove(pod)
    wait_until(lambda: not jobs(), seconds=60, what="the end of the pod's series")


def test_series_of_a_job_are_found_without_a_join(prom: tuple[Site, Tsdb]) -> None:
    _, database = prom
    now = dt.datetime.now(dt.UTC)
    snapshot = snapshot_of_everything(now, 1)
    job = DeviceHolders(state=HolderState.HELD, holdings=(holding(Holder(kind=HolderKind.JOB, id="12345")),))
    devices = (msgspec.structs.replace(snapshot.devices[0], holders=job), *snapshot.devices[1:])
    source = RemoteWriteSeries(
        ("gpufleet",),
        {"job": "slurm"},
        version="1.0",
        interval_seconds=10,
        now_ns=lambda: to_ns(now),
        holder_labels=True,
    )
    run_to_end(source.offer(msgspec.structs.replace(snapshot, devices=devices), AgentStats(started_at=1, lanes={})))
    draft = source.take()
    assert draft is not None
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    request = urllib.request.Request(database.write_url, draft.encode(), headers)
    urllib.request.urlopen(request, timeout=10 * PATIENCE).close()

    (found,) = database.now('gpufleet_gpu_utilization_ratio{job_id="12345"}')
    assert found.labels["uuid"] == snapshot.devices[0].uuid
    assert len(database.now('gpufleet_gpu_utilization_ratio{job="slurm"}')) > 1


def test_samples_have_the_times_of_their_measurements(vm: tuple[Site, Tsdb]) -> None:
    site, database = vm
    seen: dict[tuple[str, int], float] = {}

    def three_passes() -> bool:
        for device in snapshot(site)["devices"]:
            reading = device["readings"]["gpu_power_watts"]
            seen[device["uuid"], milliseconds(reading["measured_at"])] = reading["value"]
        return len(seen) >= 8 * 3

    wait_until(three_passes, what="three passes")
    held = {}

    def all_held() -> bool:
        held.update(
            {
                (one.labels["uuid"], round(one.at * 1000)): one.value
                for one in database.raw('gpufleet_gpu_power_watts{job="gpufleet"}')
            }
        )
        return seen.keys() <= held.keys()

    wait_until(all_held, seconds=40, what="each measurement in the database")
    assert {key: held[key] for key in seen} == seen
    per_gpu = [at for uuid, at in held if uuid == site.driver.scenario.devices[0].uuid]
    assert len(per_gpu) == len(set(per_gpu))
    assert "remote write 2.0" not in (site.folder / "agent.log").read_text()


def test_vmagent_scrapes_and_victoria_metrics_receives(vm: tuple[Site, Tsdb], peer: Peer) -> None:
    site, database = vm
    with vmagent(peer("vmagent"), site.folder / "vmagent", f"127.0.0.1:{site.agent_port}", database):
        for job in ("scraped", "gpufleet"):
            wait_until(lambda job=job: len(power(database, job)) == 8, seconds=60, what=f"eight GPUs of job {job}")  # type: ignore[misc]
            assert power(database, job) == pytest.approx(watts(site))
            wait_until(is_all_there(site, database, job), seconds=60, what=f"every series of the page, job {job}")


def snapshot(site: Site) -> Any:
    return get_json(f"{site.agent_url}/v1/snapshot")


def milliseconds(instant: str) -> int:
    return to_ns(dt.datetime.fromisoformat(instant)) // 10**6
