import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.model.api.answer import AllocationAnswer, GpuPage, MachineSeriesAnswer, NodePage, SeriesAnswer
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.liveness import State
from gpufleet.model.machine import Machine
from tests.fakes.batches import body, host_sample
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, now, running_site

BARE = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-a"}}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


async def test_allocation_is_answered_from_a_batch(site: Site) -> None:
    assert (await site.request("/v1/allocations/a", "PUT", BARE))[0] == 201
    await site.post(body(1, now()))
    status, document = await site.request("/v1/allocations/a/metrics")
    assert status == 200
    answer = msgspec.convert(document, AllocationAnswer)
    assert (answer.source, answer.reason, answer.aggregate.coverage) == ("host_local_probe", None, "2 of 2 devices")
    assert answer.host["host_load_1m"].value == 0.5
    assert set(document) == {field.name for field in msgspec.structs.fields(AllocationAnswer)}
    status, document = await site.request("/v1/allocations/a/series?metric=gpu_power_watts&metric=host_load_1m&step=1s")
    series = msgspec.convert(document, SeriesAnswer).series
    assert {(one.metric, one.unit) for one in series} == {("gpu_power_watts", "watts"), ("host_load_1m", "")}
    assert all(sum(point.value is not None for point in one.points) == 1 for one in series)


async def test_machine_has_series_of_its_devices(site: Site) -> None:
    await site.post(body(1, now()))
    _, page = await site.request("/v1/gpus")
    keys = [one["device"]["id"] for one in page["items"]]
    path = "/v1/machines/node-a/series?metric=gpu_power_watts&metric=host_load_1m&step=1s"
    status, document = await site.request(path)
    assert status == 200
    answer = msgspec.convert(document, MachineSeriesAnswer)
    assert (answer.name, answer.source) == ("node-a", "host_local_probe")
    assert {(one.metric, one.device) for one in answer.series} == {
        ("host_load_1m", None), *(("gpu_power_watts", key) for key in keys)
    }  # fmt: skip
    assert all(sum(point.value is not None for point in one.points) == 1 for one in answer.series)
    _, one = await site.request(f"{path}&view={quote(keys[0].split('/', 2)[2])}")
    assert {series["device"] for series in one["series"]} == {None, keys[0]}
    for query, field in (("metric=none", "metric"), ("metric=gpu_power_watts&step=1ms", "step")):
        status, error = await site.request(f"/v1/machines/node-a/series?{query}")
        assert (status, error["field"]) == (400, field)
    assert (await site.request("/v1/machines/none/series?metric=gpu_power_watts"))[0] == 404


async def test_series_stay_within_the_period_of_the_allocation(site: Site) -> None:
    await site.post(body(1, now()))  # measured before the allocation began
    await site.request("/v1/allocations/a", "PUT", BARE)
    _, document = await site.request("/v1/allocations/a/series?metric=gpu_power_watts&step=1s")
    assert msgspec.convert(document, SeriesAnswer).series == ()
    _, document = await site.request(
        "/v1/allocations/a/series?metric=gpu_power_watts&start=2020-01-01T00:00:00Z&end=2020-01-01T01:00:00%2B01:00"
        "&step=1m"
    )
    assert document["error"] == "bad_request"  # one hour of offset: the end is the start
    _, document = await site.request(
        "/v1/allocations/a/series?metric=gpu_power_watts&start=2020-01-01T00:00:00Z&end=2020-01-01T01:00:00Z"
    )
    assert (document["source"], document["series"]) == ("unavailable", [])


async def test_lists_show_machines_gpus_and_senders(site: Site) -> None:
    await site.post(body(1, now(), last_error="driver error"), body(3, now()))
    (node,) = msgspec.convert((await site.request("/v1/nodes"))[1], NodePage).items
    assert (node.machine.machine.name, node.gpus, node.gpus_reporting, node.stale) == ("node-a", 2, 2, False)
    (machine,) = (await site.request("/v1/machines?cluster=local"))[1]["items"]
    assert machine["gpus"] == 2
    assert (await site.request(f"/v1/machines/{machine['id']}"))[1]["id"] == machine["id"]
    assert (await site.request("/v1/machines?cluster=other"))[1]["items"] == []
    gpus = msgspec.convert((await site.request("/v1/gpus"))[1], GpuPage).items
    assert [one.device.uuid for one in gpus] == ["GPU-0", "GPU-1"]
    for name in (gpus[0].device.id, "GPU-0"):
        assert (await site.request(f"/v1/gpus/{name}"))[1]["device"]["uuid"] == "GPU-0"
    (sender,) = msgspec.convert((await site.request("/v1/senders"))[1], tuple[SenderRecord, ...])
    assert (sender.missing, sender.epochs[0].gaps, sender.liveness.state) == (1, ((2, 2),), State.LIVE)


async def test_uuid_on_two_machines_is_ambiguous(site: Site) -> None:
    other = Machine(name="node-b", machine_id="b" * 32, boot_id="boot-b")
    await site.post(body(1, now()), body(1, now(), sender="node-b", machine=other))
    status, document = await site.request("/v1/gpus/GPU-0")
    assert (status, document["error"], len(document["candidates"])) == (409, "ambiguous", 2)
    for candidate in document["candidates"]:
        assert (await site.request(f"/v1/gpus/{candidate}"))[0] == 200


async def test_allocation_is_created_changed_and_closed(site: Site) -> None:
    assert (await site.request("/v1/allocations/a", "PUT", BARE))[0] == 201
    status, first = await site.request("/v1/allocations/a", "PUT", BARE)
    assert (status, first["generation"]) == (200, 1)
    status, second = await site.request("/v1/allocations/a", "PUT", {**BARE, "team": "blue"})
    assert (status, second["generation"]) == (200, 2)
    assert (await site.request("/v1/allocations"))[1] == [second]
    closed = await site.request("/v1/allocations/a", "DELETE")
    assert closed == await site.request("/v1/allocations/a", "DELETE")
    assert closed[1]["closed_at"]
    assert (await site.request("/v1/allocations/a", "PUT", BARE))[0] == 409
    assert (await site.request("/v1/allocations/a/metrics"))[1]["reason"] == "ended"


async def test_times_of_an_allocation_are_in_utc(site: Site) -> None:
    document = {**BARE, "valid_from": "2026-01-01T00:00:00+02:00", "valid_to": "2036-01-01T00:00:00-01:00"}
    spec = (await site.request("/v1/allocations/a", "PUT", document))[1]["spec"]
    assert (spec["valid_from"], spec["valid_to"]) == ("2025-12-31T22:00:00Z", "2036-01-01T01:00:00Z")
    assert (await site.request("/v1/allocations/a"))[1]["spec"] == spec


async def test_invalid_allocations_are_refused_with_their_field(site: Site) -> None:
    for document, field in [
        ({"kind": "bare_metal", "target": {"cluster": "local"}}, "target.machine"),
        ({"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": "v", "machine": "m"}}, "target.machine"),
        ({"kind": "bare_metal", "target": {"cluster": "elsewhere", "machine": "m"}}, "target.cluster"),
        ({"kind": "bare_metal", "target": {"cluster": "", "machine": "m"}}, "target.cluster"),
        ({"kind": "mainframe", "target": {"cluster": "local", "machine": "m"}}, "kind"),
        ({**BARE, "surprise": 1}, ""),
        ({**BARE, "valid_from": "2026-01-02T00:00:00Z", "valid_to": "2026-01-01T00:00:00Z"}, "valid_to"),
        ({**BARE, "valid_from": "2026-01-02T00:00:00"}, "valid_from"),
        ({**BARE, "valid_from": "yesterday"}, "valid_from"),
        ({**BARE, "expected": {"H200": -1}}, "expected[...]"),
        ({**BARE, "tenant": []}, "tenant"),
        ({**BARE, "team": []}, "team"),
        ([], ""),
    ]:
        status, answer = await site.request("/v1/allocations/a", "PUT", document)
        assert (status, answer["error"]) == (400, "bad_request"), (document, field)
        assert answer["detail"], (document, field)
        assert answer.get("field", "") in (field, field.rpartition(".")[0]), (document, field)


async def test_invalid_allocation_id_is_refused(site: Site) -> None:
    for id_ in ["-a", "a%20b", "a" * 129, "%C3%A9"]:
        status, answer = await site.request(f"/v1/allocations/{id_}", "PUT", BARE)
        assert (status, answer.get("field")) == (400, "id"), id_


async def test_invalid_series_queries_are_refused_with_their_field(site: Site) -> None:
    for query, field in [
        ("", "metric"),
        ("metric=made_up", "metric"),
        ("metric=gpu_name", "metric"),
        ("metric=host_cpu_seconds_total", "metric"),
        ("metric=gpu_power_watts&step=0", "step"),
        ("metric=gpu_power_watts&step=fast", "step"),
        ("metric=gpu_power_watts&start=now", "start"),
        ("metric=gpu_power_watts&start=2026-01-01T00:00:00", "start"),
        ("metric=gpu_power_watts&start=2020-01-01T00:00:00Z&end=2026-01-01T00:00:00Z", "step"),
        ("metric=gpu_power_watts&start=2026-01-01T00:00:00Z&end=2025-01-01T00:00:00Z", "end"),
    ]:
        await site.request("/v1/allocations/a", "PUT", BARE)
        status, answer = await site.request(f"/v1/allocations/a/series?{query}")
        assert (status, answer["error"], answer["field"]) == (400, "bad_request", field), (query, field)


async def test_unknown_resources_return_404(site: Site) -> None:
    for path in [
        "/v1/allocations/none",
        "/v1/allocations/none/metrics",
        "/v1/allocations/none/series?metric=gpu_power_watts",
        "/v1/machines/none",
        "/v1/gpus/none",
        "/v1/gpus/local/none/gpu/none",
        "/nowhere",
    ]:
        status, answer = await site.request(path)
        assert (status, answer["error"]) == (404, "not_found"), path


async def test_unsupported_method_returns_the_same_error_shape(site: Site) -> None:
    status, answer = await site.request("/v1/nodes", "PUT", {})
    assert (status, answer["error"]) == (405, "method_not_allowed")


async def test_slice_without_guest_data_is_unavailable(site: Site) -> None:
    await site.post(body(1, now()))
    vm = "11111111-0000-0000-0000-000000000001"  # the host's own system UUID
    await site.request("/v1/allocations/s", "PUT", {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": vm}})
    _, answer = await site.request("/v1/allocations/s/metrics")
    assert (answer["source"], answer["reason"]) == ("unavailable", "guest_not_collected")
    assert (answer["devices"], answer["host"]) == ([], {})
    _, answer = await site.request("/v1/allocations/s/series?metric=gpu_power_watts")
    assert (answer["source"], answer["series"]) == ("unavailable", [])


async def test_openapi_document_does_not_change_between_requests(site: Site) -> None:
    first, again = [await site.request(path) for path in ("/openapi", "/openapi")]
    assert first == again
    for operations in first[1]["paths"].values():
        for operation in operations.values():
            named = [(one["in"], one["name"]) for one in operation.get("parameters", ())]
            assert len(set(named)) == len(named)


async def test_openapi_describes_every_route(site: Site) -> None:
    _, document = await site.request("/openapi.json")
    assert document["info"]["title"] == "gpufleet"
    assert set(document["paths"]) >= {
        "/v1/allocations",
        "/v1/allocations/{allocation_id}",
        "/v1/allocations/{allocation_id}/metrics",
        "/v1/allocations/{allocation_id}/series",
        "/v1/gpus",
        "/v1/gpus/{gpu_id}",
        "/v1/machines",
        "/v1/machines/{machine_id}",
        "/v1/machines/{machine_id}/probe/changes",
        "/v1/machines/{machine_id}/processes",
        "/v1/machines/{machine_id}/series",
        "/v1/nodes",
        "/v1/senders",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    assert set(document["paths"]["/v1/allocations/{allocation_id}"]) == {"get", "put", "delete"}
    assert all(op["summary"] for path in document["paths"].values() for op in path.values())
    assert "AllocationAnswer" in document["components"]["schemas"]


async def test_hub_exposes_health_and_its_own_metrics(site: Site) -> None:
    assert (await site.request("/healthz"))[1] == {"status": "ok"}
    assert (await site.request("/readyz"))[1] == {"status": "ready"}
    assert "gpufleet_hub_last_flush_" not in await site.text("/metrics")
    await site.post(body(1, now()))

    async def counted() -> bool:
        return "gpufleet_hub_flushed_batches_total 1\n" in await site.text("/metrics")

    await wait_until_async(counted, what="the flush to be counted")  # just after the store has the rows
    page = await site.text("/metrics")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["gpufleet_hub_accepted_batches_total",] == 1
    assert found["gpufleet_hub_flushed_rows_total",] == 3
    assert {("gpufleet_hub_wal_records",), ("gpufleet_hub_last_flush_seconds",)} <= found.keys()
    site.store.down = True
    status, _ = await site.request("/v1/nodes")
    assert status == 200  # queries do not write to the store


async def test_allocations_machines_and_senders_survive_a_restart(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await site.request("/v1/allocations/a", "PUT", BARE)
        await site.post(body(1, now()))
        machine = (await site.request("/v1/machines"))[1]["items"][0]["id"]
    async with running_site(tmp_path) as site:
        assert (await site.request("/v1/allocations/a"))[1]["generation"] == 1
        assert (await site.request("/v1/machines"))[1]["items"][0]["id"] == machine
        assert (await site.request("/v1/senders"))[1][0]["epochs"][0]["received"] == 1


@pytest.mark.system
async def test_promtool_accepts_the_hub_metrics_page(site: Site, peer: Callable[[str], Path]) -> None:
    await site.post(body(1, now()), body(2, now(), samples=(host_sample(now(), load=-1.0),)))
    page = (await site.text("/metrics")).encode()
    command = [str(peer("promtool")), "check", "metrics"]
    checked = await asyncio.to_thread(lambda: subprocess.run(command, input=page, capture_output=True, timeout=30))
    assert (checked.returncode, checked.stderr) == (0, b"")
