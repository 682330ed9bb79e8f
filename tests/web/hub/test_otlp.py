"""OTLP receiver of the hub: metrics, logs, foreign data and invalid requests."""

import gzip
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import zstandard
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs_service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, running_site
from tests.web.hub.test_bindings import NINE, SEVEN, Fleet, gpu
from tests.web.hub.test_write import write

PROTOBUF, JSON = "application/x-protobuf", "application/json"
UUID = "GPU-00000000-0000-0000-0000-000000000001"


def export(
    power: float | None = 300.5, *, host: str = "node-a", late_ns: int = 0, metric: str = "hw.power"
) -> service.ExportMetricsServiceRequest:
    """Build a request like a collector: each metric has its own timestamp."""
    request = service.ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.add(key="host.name").value.string_value = host
    scope = resource.scope_metrics.add()
    for number, (name, unit, value) in enumerate(((metric, "W", power), ("hw.gpu.utilization", "1", 0.25))):
        metric_added = scope.metrics.add(name=name, unit=unit)
        point = metric_added.gauge.data_points.add(time_unix_nano=time.time_ns() - 2_000_000 + number * 1000 + late_ns)
        if value is None:
            point.flags = 1
        else:
            point.as_double = value
        point.attributes.add(key="hw.id").value.string_value = UUID
        point.attributes.add(key="hw.type").value.string_value = "gpu"
    return request


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


async def post(
    site: Site, body: bytes, content_type: str = PROTOBUF, encoding: str = "", query: str = ""
) -> tuple[int, dict[str, str], bytes]:
    return await write(site.hub.url, body, content_type, query, path="/v1/metrics", **{"Content-Encoding": encoding})


async def readings(site: Site) -> dict[str, object]:
    status, gpu = await site.request(f"/v1/gpus/{UUID}")
    return gpu["device"]["readings"] if status == 200 else {}


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
@pytest.mark.parametrize("encoding", ["", "gzip", "zstd"])
async def test_metrics_of_a_collector_are_stored(site: Site, content_type: str, encoding: str) -> None:
    request = export()
    body = request.SerializeToString() if content_type == PROTOBUF else json_format.MessageToJson(request).encode()
    packed = {"": body, "gzip": gzip.compress(body), "zstd": zstandard.compress(body)}[encoding]
    status, headers, answer = await post(site, packed, content_type, encoding)
    assert (status, headers["content-type"]) == (200, content_type)
    assert answer in (b"", b"{}")

    async def both() -> bool:
        found = await readings(site)
        return {"gpu_power_watts", "gpu_utilization_ratio"} <= set(found)

    await wait_until_async(both, what="both readings")
    found = await readings(site)
    assert (found["gpu_power_watts"]["value"], found["gpu_utilization_ratio"]["value"]) == (300.5, 0.25)  # type: ignore[index]
    (machine,) = (await site.request("/v1/machines"))[1]["items"]
    assert (machine["machine"]["name"], machine["sender"]) == ("node-a", "otlp/collector")


async def test_rejected_metrics_are_reported(site: Site) -> None:
    request = export(metric="hw.gpu.of_tomorrow")
    request.resource_metrics[0].scope_metrics[0].metrics.add(name="http.server.duration").gauge.data_points.add(
        time_unix_nano=time.time_ns(), as_double=1
    )
    status, _, answer = await post(site, request.SerializeToString())
    partial = service.ExportMetricsServiceResponse.FromString(answer).partial_success
    assert (status, partial.rejected_data_points) == (200, 1)
    assert partial.error_message == "unknown metrics: hw.gpu.of_tomorrow"
    figures = await site.text("/metrics")
    assert 'gpufleet_hub_unknown_metrics_total{metric="hw.gpu.of_tomorrow"} 1' in figures
    assert 'gpufleet_hub_unrecognised_metrics_total{metric="http.server.duration"} 1' in figures


async def test_foreign_host_metrics_are_not_rejected_points(site: Site) -> None:
    request = export()
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    at = time.time_ns()
    metrics.add(name="http.server.request.duration").histogram.data_points.add(time_unix_nano=at, count=3)
    metrics.add(name="rpc.client.duration").exponential_histogram.data_points.add(time_unix_nano=at, count=3)
    metrics.add(name="go_gc_duration_seconds").summary.data_points.add(time_unix_nano=at, count=3)
    metrics.add(name="app.requests").sum.data_points.add(time_unix_nano=at, as_int=3)  # delta temporality
    crowded = metrics.add(name="process.cpu.time").gauge.data_points.add(time_unix_nano=at, as_int=3)
    for number in range(100):
        crowded.attributes.add(key=f"a{number}").value.int_value = 1
    command = request.resource_metrics.add()
    command.resource.attributes.add(key="process.command_line").value.string_value = "x" * 5000
    command.scope_metrics.add().metrics.add(name="process.memory.usage").gauge.data_points.add(
        time_unix_nano=at, as_int=3
    )
    status, _, answer = await post(site, request.SerializeToString())
    assert (status, answer) == (200, b"")
    figures = await site.text("/metrics")
    for name in ("http.server.request.duration", "rpc.client.duration", "go_gc_duration_seconds", "process.cpu.time"):
        assert f'gpufleet_hub_unrecognised_metrics_total{{metric="{name}"}} 1' in figures
    assert 'gpufleet_hub_unrecognised_metrics_total{metric="process.memory.usage"} 1' in figures
    assert "gpufleet_hub_rejected_samples_total{" not in figures
    metrics.add(name="hw.energy").histogram.data_points.add(time_unix_nano=at, count=3)
    _, _, answer = await post(site, request.SerializeToString())
    partial = service.ExportMetricsServiceResponse.FromString(answer).partial_success
    assert (partial.rejected_data_points, partial.error_message) == (1, "1 points: histogram")


async def test_foreign_log_records_are_not_rejected(site: Site) -> None:
    request = logs_service.ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add()  # no timestamp
    long = records.add(time_unix_nano=time.time_ns(), event_name="shop.bought")
    long.attributes.add(key="stack").value.string_value = "x" * 5000
    records.add(event_name="gpufleet.xid")
    body, plain = request.SerializeToString(), {"Content-Encoding": ""}
    status, _, answer = await write(site.hub.url, body, PROTOBUF, "", path="/v1/logs", **plain)
    partial = logs_service.ExportLogsServiceResponse.FromString(answer).partial_success
    assert (status, partial.rejected_log_records, partial.error_message) == (200, 1, "1 points: timestamp")
    figures = await site.text("/metrics")
    assert 'gpufleet_hub_unrecognised_metrics_total{metric="log_record"} 1' in figures
    assert 'gpufleet_hub_unrecognised_metrics_total{metric="shop.bought"} 1' in figures


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "query", "status", "error"),
    [
        (b"\xff\xff", PROTOBUF, "", "", 400, "bad_request"),
        (b"{", JSON, "", "", 400, "bad_request"),
        (b"", "text/plain", "", "", 415, "bad_content_type"),
        (b"", PROTOBUF, "br", "", 400, "bad_request"),
        (gzip.compress(b"\0" * (9 << 20)), PROTOBUF, "gzip", "", 413, "too_large"),
        (zstandard.compress(b"\0" * (9 << 20)), PROTOBUF, "zstd", "", 413, "too_large"),
        (b"", PROTOBUF, "", "?cluster=elsewhere", 403, "foreign_cluster"),
        (b"", PROTOBUF, "", "?pod_labels=mine", 400, "bad_request"),
    ],
)
async def test_invalid_requests_are_refused(
    site: Site, body: bytes, content_type: str, encoding: str, query: str, status: int, error: str
) -> None:
    answered, headers, content = await post(site, body, content_type, encoding, query)
    assert answered == status
    assert error.encode() in content
    # OTLP: the response has the content type of the request.
    assert headers["content-type"] == (JSON if content_type == JSON else PROTOBUF)
    if content_type == JSON:
        assert json.loads(content)["code"] == 3
    assert f'gpufleet_hub_rejected_batches_total{{reason="{error}"}} 1' in await site.text("/metrics")


NODE_UID = "5c1b7a2e-8f4d-4f0a-9a55-0d4b8a1e2f30"


def texts(**attributes: str) -> list[KeyValue]:
    """Return attributes; `__` in a name is a dot."""
    found = []
    for name, text in attributes.items():
        found.append(KeyValue(key=name.replace("__", ".")))
        found[-1].value.string_value = text
    return found


def power_body(power: float, uuid: str, at: int, **resource: str) -> bytes:
    """Return a request with a power value of a GPU."""
    request = service.ExportMetricsServiceRequest()
    added = request.resource_metrics.add()
    added.resource.attributes.extend(texts(**resource))
    point = added.scope_metrics.add().metrics.add(name="hw.power", unit="W").gauge.data_points.add(time_unix_nano=at)
    point.as_double = power
    point.attributes.extend(texts(hw__id=uuid, hw__type="gpu"))
    body: bytes = request.SerializeToString()
    return body


async def post_power(site: Site, power: float, uuid: str, at: int, **resource: str) -> None:
    """Post a power value of a GPU, and wait until the batch is stored."""
    await send(site, "/v1/metrics", power_body(power, uuid, at, **resource))


async def post_xid(site: Site, text: str, uuid: str, at: int, **resource: str) -> None:
    """Post an XID event of a GPU, and wait until the batch is stored."""
    request = logs_service.ExportLogsServiceRequest()
    added = request.resource_logs.add()
    added.resource.attributes.extend(texts(**resource))
    record = added.scope_logs.add().log_records.add(time_unix_nano=at, event_name="gpufleet.xid")
    record.attributes.extend(texts(hw__id=uuid, gpufleet__kind="gpu", gpufleet__text=text))
    await send(site, "/v1/logs", request.SerializeToString())


async def send(site: Site, path: str, body: bytes, *, is_stored: bool = True) -> None:
    """Post a request, and wait until the batch is stored, or not if it is dropped."""
    before = len(site.store.seqs)
    assert (await write(site.hub.url, body, PROTOBUF, path=path, **{"Content-Encoding": ""}))[0] == 200

    async def has_more() -> bool:
        return len(site.store.seqs) > before

    if is_stored:
        await wait_until_async(has_more, what="the imported batch to be stored")


@pytest.fixture
async def renamed(site: Site) -> Fleet:
    """Let acme have gpu-7 and bravo gpu-9; then gpu-7 is renamed to gpu-old, and gpu-9 to gpu-7."""
    fleet = Fleet(site)
    await fleet.report(SEVEN, 700.0, 0, gpu("GPU-7"))
    await fleet.report(NINE, 900.0, 0, gpu("GPU-9"))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    assert (await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(0)))[0] == 201
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-old"), 700.0, 15, gpu("GPU-7"))
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 900.0, 16, gpu("GPU-9"))
    return fleet


async def test_backlog_with_a_node_uid_is_not_of_the_names_new_bearer(site: Site, renamed: Fleet) -> None:
    at = renamed.start + 5 * renamed.unit
    body = power_body(701.0, "GPU-7", at, host__name="gpu-7", k8s__node__uid=NODE_UID)
    await send(site, "/v1/metrics", body, is_stored=False)
    await post_xid(site, "of acme", "GPU-7", at, host__name="gpu-7", k8s__node__uid=NODE_UID)
    assert "gpufleet_hub_other_name_rows_total 2\n" in await site.text("/metrics")
    assert await renamed.powers("b") == {900.0}
    assert await renamed.messages("b") == set()


async def test_node_uid_of_a_backlog_does_not_move_live_values(site: Site, renamed: Fleet) -> None:
    early, late = (renamed.start + minute * renamed.unit for minute in (5, 25))
    body = power_body(701.0, "GPU-7", early, host__name="gpu-7", k8s__node__uid=NODE_UID)
    await send(site, "/v1/metrics", body, is_stored=False)
    await post_power(site, 702.0, "GPU-7", late, host__name="gpu-old", k8s__node__uid=NODE_UID)
    assert (await renamed.powers("a"), await renamed.powers("b")) == ({700.0, 702.0}, {900.0})
    items = (await site.request("/v1/machines"))[1]["items"]
    assert {one["machine"]["name"]: one["machine"]["machine_id"] for one in items} == {
        "gpu-old": SEVEN.machine_id,
        "gpu-7": NINE.machine_id,
    }


async def test_node_uid_that_outlives_its_hardware_follows_the_name(site: Site) -> None:
    """The machine of a Node object is replaced by another tenant's; Kubernetes keeps the object and its UID."""
    fleet, node = Fleet(site), {"host__name": "gpu-7", "k8s__node__uid": NODE_UID}
    await fleet.report(SEVEN, 700.0, 0, gpu("GPU-7"))
    await fleet.report(NINE, 900.0, 0, gpu("GPU-9"))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    await post_power(site, 701.0, "GPU-7", fleet.start + 5 * fleet.unit, **node)
    await site.request(f"/v1/machines/{await fleet.id_of(SEVEN)}", "DELETE")
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 900.0, 16, gpu("GPU-9"))
    await post_power(site, 901.0, "GPU-9", fleet.start + 25 * fleet.unit, **node)
    assert await fleet.powers("a") == {700.0, 701.0}
    retired = (await site.request(f"/v1/machines/{await fleet.id_of(SEVEN)}"))[1]
    assert retired["last_seen"] < retired["retired_at"]
