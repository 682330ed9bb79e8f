"""The agent's metrics in real Prometheus, VictoriaMetrics and vmagent processes."""

import datetime as dt
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.model.time import to_ns
from tests.e2e.conftest import Way
from tests.support.processes import get_json
from tests.support.tsdb import Tsdb, prometheus, victoria, vmagent
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("e2e-push")]

Peer = Callable[[str], Path]

OF_THE_DRIVER = re.compile(r"gpufleet_gpu_(?!.*(timestamp|seconds_total|activity|xid)).*")
"""Families whose values the fake driver does not change from pass to pass."""


def pushing(way: Way, url: str, version: str = "1.0") -> None:
    with (way.folder / "agent.toml").open("a") as file:
        file.write(
            f'[push.remote_write]\nurl = "{url}"\nversion = "{version}"\ninterval_seconds = 1.0\n'
            'labels = ["team=ml"]\ndialects = ["gpufleet", "dcgm-exporter"]\n'
        )


def power(database: Tsdb, job: str) -> dict[str, float]:
    return {one.labels["uuid"]: one.value for one in database.now(f'gpufleet_gpu_power_watts{{job="{job}"}}')}


def watts(way: Way) -> dict[str, float]:
    """Return the driver's values by UUID."""
    found = {device.uuid: device.numbers["nvmlDeviceGetPowerUsage"] for device in way.driver.scenario.devices}
    return {uuid: number / 1000 for uuid, number in found.items() if number is not None}


def page_of(way: Way) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the driver's values on the agent's page, without empty labels."""
    page = TextParser().parse(way.metrics().encode())
    return {
        (series.name, frozenset((name, text) for name, text in series.labels.items() if text)): value
        for series, value in zip(page.series, page.values, strict=True)
        if OF_THE_DRIVER.fullmatch(series.name)
    }


def held_by(database: Tsdb, job: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the same values as a database has them now."""
    added = {"job", "instance", "cluster", "team", "__name__"}
    return {
        (one.labels["__name__"], frozenset(pair for pair in one.labels.items() if pair[0] not in added)): one.value
        for one in database.now(f'{{__name__=~"gpufleet_gpu_.+",job="{job}"}}')
        if OF_THE_DRIVER.fullmatch(one.labels["__name__"])
    }


def is_all_there(way: Way, database: Tsdb, job: str) -> Callable[[], bool]:
    def look() -> bool:
        page = page_of(way)
        assert len(page) > 400
        held = held_by(database, job)
        return page == {key: value for key, value in held.items() if key in page}

    return look


@pytest.fixture(scope="module")
def prom(tmp_path_factory: pytest.TempPathFactory, peer: Peer) -> Iterator[tuple[Way, Tsdb]]:
    """Yield an agent that pushes version 2.0, and the Prometheus that receives from it and scrapes it."""
    way = Way(tmp_path_factory.mktemp("prometheus"))
    with prometheus(peer("prometheus"), way.folder / "tsdb", f"127.0.0.1:{way.agent_port}") as database:
        pushing(way, database.write_url, "2.0")
        way.start_agent()
        yield way, database
        way.stop()


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory, peer: Peer) -> Iterator[tuple[Way, Tsdb]]:
    """Yield an agent that pushes version 1.0, and the VictoriaMetrics that receives from it."""
    way = Way(tmp_path_factory.mktemp("victoria"))
    with victoria(peer("victoria-metrics"), way.folder / "tsdb") as database:
        pushing(way, database.write_url, "1.0")
        way.start_agent()
        yield way, database
        way.stop()


def test_prometheus_scrapes_and_receives_the_same_values(prom: tuple[Way, Tsdb]) -> None:
    """Debian's Prometheus accepts remote write 1.0 only: the agent falls back from 2.0 and loses nothing by it."""
    way, database = prom
    for job in ("scraped", "gpufleet"):
        wait_until(lambda job=job: len(power(database, job)) == 8, seconds=60, what=f"eight GPUs of job {job}")  # type: ignore[misc]
        assert power(database, job) == pytest.approx(watts(way))
        wait_until(is_all_there(way, database, job), seconds=60, what=f"every series of the page, job {job}")
    (one, *_) = database.now('gpufleet_gpu_power_watts{job="gpufleet"}')
    assert one.labels["cluster"] == "local"
    assert one.labels["instance"] == one.labels["node"] == "node-1"
    assert one.labels["team"] == "ml"
    (dcgm,) = database.now('DCGM_FI_DEV_POWER_USAGE{job="gpufleet",gpu="3"}')
    assert dcgm.value == pytest.approx(watts(way)[dcgm.labels["UUID"]])
    assert "remote write 2.0" in (way.folder / "agent.log").read_text()


def test_series_ends_with_its_reading(prom: tuple[Way, Tsdb]) -> None:
    way, database = prom
    wait_until(lambda: len(power(database, "gpufleet")) == 8, seconds=60, what="eight GPUs")
    hung = way.driver.scenario.devices[5].uuid
    way.driver.scenario.hang("nvmlDeviceGetPowerUsage", gpu=5)
    way.driver.apply()

    others = watts(way).keys() - {hung}
    wait_until(lambda: power(database, "gpufleet").keys() == others, seconds=60, what="the end of one series")
    (why,) = database.now(f'gpufleet_reading_absent{{job="gpufleet",uuid="{hung}",metric="gpu_power_watts"}}')
    assert why.labels["reason"] == "timeout"
    (sent,) = database.now('gpufleet_export_points_accepted_total{job="gpufleet",target="remote_write"}')
    assert sent.value > 1000
    (rejected,) = database.now('gpufleet_export_points_rejected_total{job="gpufleet",target="remote_write"}')
    assert rejected.value == 0

    way.driver.scenario.faults.clear()
    way.driver.apply()
    wait_until(lambda: len(power(database, "gpufleet")) == 8, seconds=60, what="eight GPUs again")


def test_samples_have_the_times_of_their_measurements(vm: tuple[Way, Tsdb]) -> None:
    way, database = vm
    seen: dict[tuple[str, int], float] = {}

    def three_passes() -> bool:
        for device in snapshot(way)["devices"]:
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
    per_gpu = [at for uuid, at in held if uuid == way.driver.scenario.devices[0].uuid]
    assert len(per_gpu) == len(set(per_gpu))
    assert "remote write 2.0" not in (way.folder / "agent.log").read_text()


def test_vmagent_scrapes_and_victoria_metrics_receives(vm: tuple[Way, Tsdb], peer: Peer) -> None:
    way, database = vm
    with vmagent(peer("vmagent"), way.folder / "vmagent", f"127.0.0.1:{way.agent_port}", database):
        for job in ("scraped", "gpufleet"):
            wait_until(lambda job=job: len(power(database, job)) == 8, seconds=60, what=f"eight GPUs of job {job}")  # type: ignore[misc]
            assert power(database, job) == pytest.approx(watts(way))
            wait_until(is_all_there(way, database, job), seconds=60, what=f"every series of the page, job {job}")


def snapshot(way: Way) -> Any:
    return get_json(f"{way.agent_url}/v1/snapshot")


def milliseconds(instant: str) -> int:
    return to_ns(dt.datetime.fromisoformat(instant)) // 10**6
