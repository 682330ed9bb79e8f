"""Metadata services of clouds: requests of each provider, limits, and use by the host reader on opt-in only."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from gpufleet.channels.local import LocalFiles
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, WireError
from gpufleet.model.machine import Machine
from gpufleet.readers.host import HostReader
from gpufleet.readers.host.metadata import MAX_BYTES, CloudMetadata
from gpufleet.readers.host.parse.cloud import InstanceData
from gpufleet.readers.host.plan import INSTANCE_DATA
from tests.readers.host.machines import FixedClock, build

AWS_ID = "i-0929128ff2f73a2f1"
DOCUMENT = {
    "instanceId": AWS_ID,
    "instanceType": "p5.48xlarge",
    "region": "us-east-1",
    "availabilityZone": "us-east-1b",
}
AZURE = {"vmId": "090556DA-D4FA-764F-A9F1-63614EDA019A", "vmSize": "Standard_ND96isr_H100_v5", "location": "westeurope"}
GCP = {
    "id": "3427915274562381235",
    "machine-type": "projects/1/machineTypes/a3-highgpu-8g",
    "zone": "projects/1/zones/us-central1-a",
}
FLAVOR = {"Metadata-Flavor": "Google"}
Change = Callable[[web.Request], web.Response | None]


class Cloud:
    """Stands in for the metadata services of all providers.

    Attributes:
        url: its address.
        requests: method and path of each request.
        change: replaces an answer.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.change: Change = lambda _: None
        self.delay = 0.0

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path_qs}")
        await asyncio.sleep(self.delay)
        return self.change(request) or self._answer(request)

    def _answer(self, request: web.Request) -> web.Response:
        head, path = request.headers, request.path
        if request.method == "PUT" and path == "/latest/api/token":
            is_valid = head.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit()
            return web.Response(text="token-1") if is_valid else web.Response(status=400)
        if path == "/latest/dynamic/instance-identity/document":
            is_valid = head.get("X-aws-ec2-metadata-token") == "token-1"
            return web.Response(text=json.dumps(DOCUMENT)) if is_valid else web.Response(status=401)
        if path.startswith("/computeMetadata/v1/instance/") and head.get("Metadata-Flavor") == "Google":
            return web.Response(text=GCP[path.rpartition("/")[2]], headers=FLAVOR)
        if path.startswith("/metadata/instance/compute/") and head.get("Metadata") == "true":
            return web.Response(text=AZURE.get(path.rpartition("/")[2], ""))
        return web.Response(status=403)


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    made = Cloud()
    server = web.Application()
    server.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def service(cloud: Cloud, seconds: float = 20.0) -> CloudMetadata:
    return CloudMetadata(cloud.url, timeout_seconds=seconds)


@pytest.mark.parametrize(
    ("provider", "found", "count"),
    [
        ("aws", InstanceData(platform="aws", id=AWS_ID, type="p5.48xlarge", region="us-east-1", zone="us-east-1b"), 2),
        ("gcp", InstanceData(platform="gce", id=GCP["id"], type="a3-highgpu-8g", region="us-central1",
                             zone="us-central1-a"), 3),
        ("azure", InstanceData(platform="azure", id=AZURE["vmId"].lower(), type=AZURE["vmSize"], region="westeurope"),
         4),
    ],
)  # fmt: skip
async def test_instance_of_each_provider_is_read(provider: str, found: InstanceData, count: int, cloud: Cloud) -> None:
    assert await service(cloud).fetch(provider) == found
    assert len(cloud.requests) == count
    assert not any(text in request for request in cloud.requests for text in ("user", "attributes", "custom", "token?"))


async def test_service_is_at_the_link_local_address_by_default() -> None:
    assert CloudMetadata().url == "http://169.254.169.254"


@pytest.mark.parametrize("provider", ["aws", "gcp", "azure"])
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda _: web.Response(status=302, headers={"Location": "/elsewhere"}), ChannelProblem.PROTOCOL),
        (lambda _: web.Response(status=404), ChannelProblem.NOT_ENABLED),
        (lambda _: web.Response(text="x" * (MAX_BYTES + 1), headers=FLAVOR), ChannelProblem.TOO_LARGE),
    ],
)
async def test_wrong_answer_is_an_error(answer: Change, problem: ChannelProblem, provider: str, cloud: Cloud) -> None:
    cloud.change = answer
    with pytest.raises(ChannelError) as caught:
        await service(cloud).fetch(provider)
    assert caught.value.problem is problem
    assert not any("elsewhere" in one for one in cloud.requests)


async def test_answer_that_does_not_come_is_a_timeout(cloud: Cloud) -> None:
    cloud.delay = 5.0
    with pytest.raises(ChannelError) as caught:
        await service(cloud, 0.05).fetch("aws")
    assert caught.value.problem is ChannelProblem.TIMEOUT


async def test_server_that_is_not_the_metadata_service_of_gcp_is_refused(cloud: Cloud) -> None:
    cloud.change = lambda request: web.Response(text=GCP[request.path.rpartition("/")[2]])
    with pytest.raises(ChannelError) as caught:
        await service(cloud).fetch("gcp")
    assert caught.value.problem is ChannelProblem.IDENTITY_MISMATCH


@pytest.mark.parametrize("text", ["", "[]", '"x"', "\x00", "[" * 9000, '{"instanceId": 7}'])
async def test_malformed_document_is_an_error_or_unknown(text: str, cloud: Cloud) -> None:
    cloud.change = lambda request: web.Response(text=text) if request.method == "GET" else None
    try:
        found = await service(cloud).fetch("aws")
    except WireError:
        return
    assert found == InstanceData(platform="aws")


async def test_hostile_texts_are_printable_and_bounded(cloud: Cloud) -> None:
    hostile = {**DOCUMENT, "region": "us\x1b[31m\n-east", "availabilityZone": "z" * 4000}
    cloud.change = lambda one: web.Response(text=json.dumps(hostile)) if one.method == "GET" else None
    found = await service(cloud).fetch("aws")
    assert found.region.isprintable()
    assert found.zone == ""


async def test_proxy_of_the_environment_is_not_used(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await service(cloud).fetch("aws")).id == AWS_ID


def without_cloud_init(root: Path) -> Path:
    (root / INSTANCE_DATA.lstrip("/")).unlink()
    return root


async def read_machine(root: Path, metadata: CloudMetadata | None, passes: int = 1) -> Machine:
    reader = HostReader(LocalFiles(root), FixedClock(), metadata=metadata)
    for _ in range(passes):
        got = await reader.read(Lane.STATIC)
    assert got.machine is not None
    return got.machine


def placed(machine: Machine) -> tuple[str | None, ...]:
    return machine.instance_id, machine.instance_type, machine.region, machine.zone


async def test_reader_fills_what_dmi_and_cloud_init_lack(cloud: Cloud, tmp_path: Path) -> None:
    aws = without_cloud_init(build("aws", tmp_path / "aws"))
    assert placed(await read_machine(aws, service(cloud), 3)) == (AWS_ID, "p5.48xlarge", "us-east-1", "us-east-1b")
    assert len(cloud.requests) == 2  # once for a boot
    gcp = build("gcp", tmp_path / "gcp")
    assert (await read_machine(gcp, service(cloud))).instance_type == "a3-highgpu-8g"


async def test_reader_sends_nothing_unless_it_is_enabled(cloud: Cloud, tmp_path: Path) -> None:
    aws = without_cloud_init(build("aws", tmp_path / "aws"))
    assert placed(await read_machine(aws, None)) == (AWS_ID, "p5.48xlarge", None, None)
    metal = build("bare_metal", tmp_path / "metal")
    complete = build("azure", tmp_path / "azure")
    for root in (metal, complete):
        await read_machine(root, service(cloud))
    assert cloud.requests == []


async def test_metadata_of_another_instance_do_not_count(cloud: Cloud, tmp_path: Path) -> None:
    other = {**DOCUMENT, "instanceId": "i-00000000000000001"}
    cloud.change = lambda one: web.Response(text=json.dumps(other)) if one.method == "GET" else None
    aws = without_cloud_init(build("aws", tmp_path))
    assert placed(await read_machine(aws, service(cloud))) == (AWS_ID, "p5.48xlarge", None, None)


async def test_failed_service_is_the_reason_of_what_is_missing(cloud: Cloud, tmp_path: Path) -> None:
    cloud.change = lambda _: web.Response(status=404)
    reader = HostReader(LocalFiles(without_cloud_init(build("aws", tmp_path))), FixedClock(), metadata=service(cloud))
    got = await reader.read(Lane.STATIC)
    value = got.samples[0].values["host_cloud_region"]
    assert isinstance(value, Absent)
    assert "metadata service" in value.detail
    assert got.samples[0].values["host_instance_id"] == AWS_ID
