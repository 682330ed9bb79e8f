"""Performance probe in the answers about machines and allocations, and routes that start nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.time import to_datetime
from gpufleet.model.view import Side
from gpufleet.model.wire.batch import MachineReport
from tests.fakes.batches import gpu_sample, gpu_view, make_batch
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, now, running_site
from tests.web.hub.test_write import write

VM = "c77c546c-c5a2-4093-bc1b-8051983e7a61"
GUEST = Machine(name="ml/train-0", kind=MachineKind.GUEST, system_uuid=VM, hypervisor="node-a")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def probe(at: int, hugepages: str, provenance: Provenance = Provenance.HOST_LOCAL_PROBE) -> Sample:
    return Sample(
        view=None,
        reader="probe",
        lane=Lane.STATIC,
        measured_at=at,
        values={
            "probe_hugepages": hugepages,
            "probe_boot_kernel_seconds": 2.5,
            "probe_docker_version": Absent(Reason.NOT_ENABLED, "docker: not found"),
        },
        provenance=provenance,
    )


def batch(seq: int, at: int, hugepages: str = "2048kB: 0") -> bytes:
    """Encode a host and its guest, each with a probe. Only the host has huge pages of 1 GiB."""
    own = Sample(
        view=None,
        reader="guests",
        lane=Lane.FAST,
        measured_at=at,
        values={
            "guest_state": "ok",
            "guest_gpus": 1,
            "guest_channel_open_timestamp_seconds": 1.5,
            "guest_hugepages": 1,
        },
    )
    inside = msgspec.structs.replace(
        gpu_sample(gpu_view(7, side=Side.GUEST), at, gpu_power_watts=77.0), provenance=Provenance.SLICE_GUEST
    )
    guest = MachineReport(machine=GUEST, samples=(own, inside, probe(at, "2048kB: 7", Provenance.SLICE_GUEST)))
    of_host = make_batch(seq, at, samples=(gpu_sample(gpu_view(1), at), probe(at, hugepages)))
    return encode(msgspec.structs.replace(of_host, reports=(*of_host.reports, guest)))


async def test_machine_has_its_newest_probe(site: Site) -> None:
    await site.post(batch(1, now()), batch(2, now(), "1048576kB: 64"))
    _, machine = await site.request("/v1/machines/node-a")
    assert machine["probe"]["probe_hugepages"]["value"] == "1048576kB: 64"
    assert machine["probe"]["probe_boot_kernel_seconds"]["value"] == 2.5
    assert machine["probe"]["probe_docker_version"]["absent"] == "not_enabled"
    assert set(machine["probe"]) == {"probe_hugepages", "probe_boot_kernel_seconds", "probe_docker_version"}


async def test_list_of_machines_has_probes_on_request_only(site: Site) -> None:
    await site.post(batch(1, now()))
    _, plain = await site.request("/v1/machines")
    assert ["probe" in one for one in plain["items"]] == [False, False]
    _, probed = await site.request("/v1/machines?probe=true")
    found = {one["machine"]["name"]: one["probe"]["probe_hugepages"]["value"] for one in probed["items"]}
    assert found == {"node-a": "2048kB: 0", "ml/train-0": "2048kB: 7"}


async def test_probe_of_a_guest_has_its_readiness_as_seen_by_its_host(site: Site) -> None:
    await site.post(batch(1, now()))
    _, probed = await site.request("/v1/machines?probe=true")
    found = {one["machine"]["name"]: one["probe"] for one in probed["items"]}
    outside = {name: reading["value"] for name, reading in found["ml/train-0"].items() if name.startswith("guest_")}
    assert outside == {"guest_channel_open_timestamp_seconds": 1.5, "guest_hugepages": 1}
    assert not [name for name in found["node-a"] if name.startswith("guest_")]


async def test_answer_of_a_guest_has_no_probe_of_its_host(site: Site) -> None:
    spec = {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": VM}, "tenant": "acme"}
    await site.request("/v1/allocations/a", "PUT", {**spec, "valid_from": "2020-01-01T00:00:00Z"})
    await site.post(batch(1, now(), "1048576kB: 64"))
    _, answer = await site.request("/v1/allocations/a/metrics")
    assert answer["source"] == "slice_guest"
    assert answer["host"]["probe_hugepages"]["value"] == "2048kB: 7"
    assert "1048576kB" not in str(answer)


@pytest.mark.parametrize(("age", "shown"), [(60, None), (7200, "2048kB: 5")])
async def test_tenant_sees_no_probe_from_before_its_allocation(site: Site, age: int, shown: str | None) -> None:
    """Huge pages and services of a machine are the work of its tenant."""
    measured = probe(now() - 3600 * 10**9, "2048kB: 5")
    await site.post(encode(make_batch(1, now(), samples=(gpu_sample(gpu_view(1), now()), measured))))
    spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-a"}, "tenant": "acme"}
    begin = to_datetime(now() - age * 10**9).isoformat()
    await site.request("/v1/allocations/a", "PUT", {**spec, "valid_from": begin})
    _, answer = await site.request("/v1/allocations/a/metrics")
    assert answer["host"]["probe_hugepages"].get("value") == shown


@pytest.mark.parametrize(("devices", "shown"), [(None, {2.5}), (["GPU-1"], set())])
async def test_series_of_listed_devices_have_no_probe(site: Site, devices: list[str] | None, shown: set[float]) -> None:
    samples = (gpu_sample(gpu_view(1), now(), gpu_power_watts=100.0), probe(now(), "2048kB: 5"))
    await site.post(encode(make_batch(1, now(), samples=samples)))
    spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-a"}, "tenant": "acme"}
    await site.request("/v1/allocations/a", "PUT", {**spec, "devices": devices, "valid_from": "2020-01-01T00:00:00Z"})
    path = "/v1/allocations/a/series?metric=gpu_power_watts&metric=probe_boot_kernel_seconds"
    _, answer = await site.request(path)
    values = {(one["metric"], point["value"]) for one in answer["series"] for point in one["points"]}
    assert {value for metric, value in values if metric == "probe_boot_kernel_seconds" and value} == shown
    assert ("gpu_power_watts", 100.0) in values


@pytest.mark.parametrize("devices", [None, ["GPU-1"]])
async def test_tenant_sees_no_imported_probe(site: Site, devices: list[str] | None) -> None:
    """A page repeats the probe of an earlier tenant with the time of each scrape."""
    gpu = {"uuid": "GPU-1", "kind": "gpu", "side": "host"}
    series: list[tuple[str, float, dict[str, str]]] = [
        ("gpufleet_gpu_power_watts", 100.0, gpu),
        ("gpufleet_host_info", 1, {"nvidia_driver_version": "580.1", "probe_hugepages": "2048kB: 5"}),
        ("gpufleet_probe_boot_kernel_seconds", 2.5, {}),
        ("gpufleet_reading_absent", 1, {"metric": "probe_docker_version", "reason": "not_enabled"}),
    ]
    points = [
        WritePoint({"__name__": name, "node": "node-a", **labels}, value, now()) for name, value, labels in series
    ]
    assert (await write(site.hub.url, encode_1(points)))[0] < 300

    async def stored() -> bool:
        return len(site.store.seqs) == 1

    await wait_until_async(stored, what="the series to be stored")
    spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-a"}, "tenant": "acme"}
    await site.request("/v1/allocations/a", "PUT", {**spec, "devices": devices, "valid_from": "2020-01-01T00:00:00Z"})
    _, answer = await site.request("/v1/allocations/a/metrics")
    assert (answer["source"], set(answer["host"])) == ("imported", {"nvidia_driver_version"})
    _, found = await site.request("/v1/allocations/a/series?metric=probe_boot_kernel_seconds")
    assert not [point for one in found["series"] for point in one["points"] if point["value"] is not None]


async def test_repeated_sample_of_a_probe_stays_current(site: Site) -> None:
    # An agent repeats the sample between two probes. Its receipt is new, its time of measurement is not.
    measured = now() - 7200 * 10**9
    for seq in (1, 2):
        await site.post(encode(make_batch(seq, now(), samples=(probe(measured, "2048kB: 5"),))))
    _, machine = await site.request("/v1/machines/node-a")
    reading = machine["probe"]["probe_hugepages"]
    assert (reading["value"], reading["measured_at"] < reading["received_at"]) == ("2048kB: 5", True)


async def test_changes_of_a_guest_are_not_those_of_its_host(site: Site) -> None:
    await site.post(batch(1, now()), batch(2, now(), "1048576kB: 64"))
    path = "/v1/machines/node-a/probe/changes"
    _, found = await site.request(path)
    assert [(one["metric"], one["before"], one["value"]) for one in found["items"]] == [
        ("probe_hugepages", "2048kB: 0", "1048576kB: 64")
    ]
    assert (found["node"], found["next"]) == ("node-a", None)
    _, machines = await site.request("/v1/machines")
    guest = next(one["id"] for one in machines["items"] if one["machine"]["name"] == "ml/train-0")
    assert (await site.request(f"/v1/machines/{guest}/probe/changes"))[1]["items"] == []
    at = found["items"][0]["at"]
    assert (await site.request(f"{path}?until={at}"))[1]["items"] == []
    assert (await site.request(f"{path}?since={at}"))[1]["items"] == found["items"]
    assert (await site.request(f"{path}?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z"))[0] == 400
    assert (await site.request("/v1/machines/none/probe/changes"))[0] == 404


async def test_no_route_starts_a_probe_or_a_capture(site: Site) -> None:
    _, document = await site.request("/openapi.json")
    terms = ("bench", "probe", "capture")
    named = {path: set(one) for path, one in document["paths"].items() if any(term in path for term in terms)}
    assert named == {
        "/v1/machines/{machine_id}/probe/changes": {"get"},
        "/v1/benchmarks": {"get"},
        "/v1/benchmarks/{capture_id}": {"get"},
    }
    for path in ("/v1/machines/node-a/probe", "/v1/machines/node-a/bench", "/v1/bench", "/v1/captures"):
        assert (await site.request(path, "POST", {}))[0] in (404, 405)
    # A post stores a document. Anything else is refused.
    assert (await site.request("/v1/benchmarks?cluster=local", "POST", {"machine": "node-a"}))[0] == 400
