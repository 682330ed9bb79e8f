"""OTLP requests of an agent process, decoded with opentelemetry-proto."""

import asyncio
import contextlib
import datetime as dt
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Site
from tests.fakes.receiver import Answer, Got, Point, Receiver, attributes_of, points_of
from tests.support.authority import Authority
from tests.support.processes import Gpufleet, get_json
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.timeout(240)


def pushing(site: Site, endpoint: str, more: str = "") -> None:
    (site.folder / "kmsg").write_text("6,0,0,-;Linux version 6\n")
    with (site.folder / "agent.toml").open("a") as file:
        file.write(
            f'[readers.kmsg]\npath = "{site.folder}/kmsg"\n'
            f'[push.otlp]\nendpoint = "{endpoint}"\ninterval_seconds = 1.0\nattributes = ["team.name=ml"]\n{more}'
        )


@contextlib.asynccontextmanager
async def agent_pushing(site: Site, receiver: Receiver, more: str = "") -> AsyncIterator[Gpufleet]:
    """Run an agent that pushes. It stops before its receiver."""
    pushing(site, receiver.url, more)
    try:
        yield await asyncio.to_thread(site.start_agent)
    finally:
        await asyncio.to_thread(site.stop)


def points(receiver: Receiver) -> Iterator[Point]:
    """Return the data points of every metrics request, once for a request that was sent again unchanged.

    A busy machine may acknowledge a request too late, so that the agent repeats it.
    """
    bodies = dict.fromkeys(got.body for got in receiver.taken if got.path == "/v1/metrics")
    return (point for body in bodies for point in points_of(body))


def of(receiver: Receiver, name: str, uuid: str) -> list[Any]:
    return [point for found, at, point in points(receiver) if found == name and at.get("hw.id") == uuid]


async def until(condition: Any, what: str, seconds: float = 40) -> None:
    async def look() -> Any:
        return condition()

    await wait_until_async(look, seconds=seconds, what=what)


async def test_measurement_is_exported_once_at_its_own_time(site: Site) -> None:
    async with Receiver.running() as receiver, agent_pushing(site, receiver):
        device = site.driver.scenario.devices[3]
        await until(lambda: len(of(receiver, "hw.power", device.uuid)) >= 3, "three measurements of power")
        snapshot = await asyncio.to_thread(get_json, f"{site.agent_url}/v1/snapshot")
        (shown,) = [one for one in snapshot["devices"] if one["uuid"] == device.uuid]
        measured = dt.datetime.fromisoformat(shown["readings"]["gpu_power_watts"]["measured_at"])
        since = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        at = (measured - since) // dt.timedelta(microseconds=1) * 1000
        await until(
            lambda: at in {point.time_unix_nano for point in of(receiver, "hw.power", device.uuid)},
            "the measurement that the snapshot shows",
        )

        watts, joules, used = (
            device.numbers[f"nvmlDeviceGet{name}"]
            for name in ("PowerUsage", "TotalEnergyConsumption", "MemoryInfo_used")
        )
        assert watts is not None
        assert joules is not None
        assert {point.as_double for point in of(receiver, "hw.power", device.uuid)} == {watts / 1000}
        assert {point.as_double for point in of(receiver, "hw.energy", device.uuid)} == {joules / 1000}
        assert {point.as_int for point in of(receiver, "hw.gpu.memory.usage", device.uuid)} == {used}
        times = Counter(
            (name, tuple(sorted(attributes.items())), point.time_unix_nano)
            for name, attributes, point in points(receiver)
        )
        assert not [key for key, count in times.items() if count > 1]

        (resource,) = {
            tuple(sorted(attributes_of(one.resource.attributes).items()))
            for request in receiver.metrics()
            for one in request.resource_metrics
        }
        resource_attributes = dict(resource)
        assert resource_attributes["host.name"] == resource_attributes["service.instance.id"] == "node-1"
        expected = {"service.name": "gpufleet-agent", "gpufleet.cluster": "local", "team.name": "ml"}
        assert expected.items() <= resource_attributes.items()

        kinds = {
            metric.name: (metric.unit, metric.WhichOneof("data"), metric)
            for request in receiver.metrics()
            for metric in request.resource_metrics[0].scope_metrics[0].metrics
        }
        assert kinds["hw.power"][:2] == ("W", "gauge")
        assert kinds["hw.energy"][:2] == ("J", "sum")
        assert kinds["hw.energy"][2].sum.is_monotonic
        assert not kinds["hw.gpu.memory.usage"][2].sum.is_monotonic
        boot = next(point.as_int for name, _, point in points(receiver) if name.endswith("boot_timestamp_seconds"))
        starts = {point.start_time_unix_nano for point in of(receiver, "hw.energy", device.uuid)}
        assert starts == {boot * 10**9}  # the driver's load was not observed: the boot is its lower bound
        assert {point.start_time_unix_nano for point in of(receiver, "hw.power", device.uuid)} == {0}


async def test_absent_reading_is_not_exported(site: Site) -> None:
    async with Receiver.running() as receiver, agent_pushing(site, receiver):
        hung, fine = site.driver.scenario.devices[5].uuid, site.driver.scenario.devices[6].uuid
        await until(lambda: of(receiver, "hw.power", hung), "the first measurement")
        site.driver.scenario.hang("nvmlDeviceGetPowerUsage", gpu=5)
        site.driver.apply()
        before = len(of(receiver, "hw.power", hung))
        await until(lambda: len(of(receiver, "hw.power", fine)) >= before + 4, "further values of the other GPU", 60)
        still = len(of(receiver, "hw.power", hung))
        await until(lambda: len(of(receiver, "hw.power", fine)) >= before + 6, "further values of the other GPU", 60)
        assert len(of(receiver, "hw.power", hung)) == still


async def test_event_is_exported_once_as_a_log_record(site: Site) -> None:
    async with Receiver.running() as receiver, agent_pushing(site, receiver):
        device = site.driver.scenario.devices[2]
        address = str(device.texts["nvmlDeviceGetPciInfo"])[4:].lower()
        with (site.folder / "kmsg").open("a") as file:
            file.write(f"4,1,1,-;NVRM: Xid (PCI:{address}): 79, pid=7, name=x, text\n")

        def records() -> list[Any]:
            return [
                record
                for request in receiver.logs()
                for resource in request.resource_logs
                for record in resource.scope_logs[0].log_records
                if record.event_name == "gpufleet.xid"
            ]

        await until(records, "the event")
        pushed = len(receiver.metrics())
        await until(lambda: len(receiver.metrics()) > pushed + 3, "more requests")
        (record,) = records()
        attributes = attributes_of(record.attributes)
        assert record.body.string_value == "XID 79: GPU has fallen off the bus"
        assert record.severity_number == 17
        assert (attributes["gpufleet.code"], attributes["hw.id"]) == (79, device.uuid)
        assert attributes["hw.model"] == "NVIDIA H200"


async def test_outage_and_orderly_stop_lose_nothing(site: Site) -> None:
    def refuse(_: Got) -> Answer:
        return Answer(503, b"later", {"Retry-After": "1"})

    async with Receiver.running(refuse) as receiver, agent_pushing(site, receiver) as agent:
        uuid = site.driver.scenario.devices[0].uuid
        await until(lambda: len(receiver.got) >= 2, "a second attempt")
        fixed = time.time_ns()
        receiver.answer = lambda _: Answer()
        await until(lambda: len(of(receiver, "hw.power", uuid)) >= 5, "the backlog and new measurements")
        page = await asyncio.to_thread(site.metrics)
        assert await asyncio.to_thread(agent.stop) == 0
        times = [point.time_unix_nano for point in of(receiver, "hw.power", uuid)]
        assert times == sorted(set(times))
        assert times[0] < fixed
    assert 'gpufleet_export_points_dropped_total{node="node-1",target="otlp_metrics"} 0\n' in page
    assert 'gpufleet_capability{node="node-1",capability="otlp_metrics"}' in page


async def test_tls_and_headers_come_from_files(site: Site, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue(tmp_path / "server.crt", tmp_path / "server.key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    (tmp_path / "headers").write_text("# vendor\nX-Api-Key: s3cret\n")
    (tmp_path / "token").write_text("t0ken\n")
    more = f'ca = "{authority.file}"\nheaders_file = "{tmp_path}/headers"\ntoken_file = "{tmp_path}/token"\n'
    async with Receiver.running(ssl=context) as receiver, agent_pushing(site, receiver, more):
        await until(lambda: receiver.taken, "a request")
        headers = receiver.taken[0].headers
        assert (headers["x-api-key"], headers["authorization"]) == ("s3cret", "Bearer t0ken")
        assert (headers["content-type"], headers["content-encoding"]) == ("application/x-protobuf", "gzip")
