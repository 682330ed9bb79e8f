"""The public library: this machine through a fake driver, recordings, and a hub."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import gpufleet
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ConfigError, RecordingError, WireError
from tests.fakes.batches import body
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import share_as_vgpus
from tests.fakes.nvml.scenario import Scenario
from tests.support.recordings import frames_of, write_recording
from tests.support.snapshots import example_snapshot
from tests.web.hub.site import Site, now, running_site

DOCUMENT = encode_snapshot(example_snapshot())


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FakeNvml(tmp_path, Scenario.healthy(2)).environment.items():
        monkeypatch.setenv(name, value)


def modules_after(statement: str) -> set[str]:
    """Return the modules that a statement loads in a new interpreter."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_import_loads_no_other_module() -> None:
    loaded = modules_after("import gpufleet")
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == {"gpufleet"}


def test_use_loads_no_heavy_package() -> None:
    loaded = modules_after("import gpufleet; gpufleet.snapshot(); gpufleet.Hub('http://127.0.0.1:1')")
    packages = {name.partition(".")[0] for name in loaded}
    assert packages & {"pydantic", "chdb", "numpy", "typer", "rich", "uvicorn", "aiohttp", "grpc"} == set()


def test_every_exported_name_exists() -> None:
    assert [name for name in gpufleet.__all__ if getattr(gpufleet, name, None) is None] == []
    assert set(dir(gpufleet)) == set(gpufleet.__all__)
    with pytest.raises(AttributeError):
        getattr(gpufleet, "snapshots")  # noqa: B009 - mypy rejects the attribute


@pytest.mark.usefixtures("driver")
def test_snapshot_has_the_devices_of_the_driver() -> None:
    found = gpufleet.snapshot()
    assert found.aggregate.coverage == "2 of 2 devices"
    assert [one.uuid for one in gpufleet.devices()] == [one.uuid for one in found.devices]
    assert gpufleet.vgpus() == ()


def test_vgpus_are_the_instances_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario.healthy(2)
    shared = share_as_vgpus(scenario, 1, 3)
    for name, value in FakeNvml(tmp_path, scenario).environment.items():
        monkeypatch.setenv(name, value)
    found = gpufleet.vgpus()
    assert len(found) == len(shared) == 3
    assert {one.parent for one in found} == {f"gpu/{scenario.devices[1].uuid}"}


def test_snapshot_without_nvml_has_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = gpufleet.snapshot()
    assert all(one.side == "pci_only" for one in found.devices)
    assert {one.error_class for one in found.readers if one.reader == "nvml" and one.error_class} == {Reason.NO_LIBRARY}


async def test_snapshot_works_beside_a_running_event_loop() -> None:
    assert gpufleet.snapshot().node.name == (await gpufleet.asnapshot()).node.name


def test_invalid_configuration_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text("lisetn = 'x'")
    with pytest.raises(ConfigError):
        gpufleet.snapshot(config=tmp_path / "agent.toml")
    with pytest.raises(ConfigError):
        gpufleet.watch(config=tmp_path / "agent.toml")


@pytest.mark.usefixtures("driver")
def test_watch_yields_newer_snapshots() -> None:
    """A snapshot is repeated if no pass has ended since."""
    snapshots = iter(gpufleet.watch(every=1.0))
    first = next(snapshots)
    newer = next(one for one in snapshots if one.measured_at > first.measured_at)
    snapshots.close()
    assert [len(one.devices) for one in (first, newer)] == [2, 2]


@pytest.mark.usefixtures("driver")
async def test_watch_is_an_async_iterator() -> None:
    async with contextlib.aclosing(aiter(gpufleet.watch())) as snapshots:
        async for one in snapshots:
            assert len(one.devices) == 2
            break


@pytest.mark.parametrize("seconds", [0.5, -1.0, float("nan")])
def test_watch_rejects_short_intervals(seconds: float) -> None:
    with pytest.raises(gpufleet.GpufleetError):
        gpufleet.watch(seconds)


def test_decode_yields_each_frame_of_a_recording(tmp_path: Path) -> None:
    write_recording(tmp_path / "node.rec", [DOCUMENT] * 3)
    assert list(gpufleet.decode(tmp_path / "node.rec")) == [example_snapshot()] * 3


def test_decode_raises_at_damage_or_skips_it(tmp_path: Path) -> None:
    path = tmp_path / "node.rec"
    content = bytearray(write_recording(path, [DOCUMENT] * 3))
    second = frames_of(path)[1].offset
    content[second] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(RecordingError) as raised:
        list(gpufleet.decode(path))
    assert raised.value.offset == second
    assert list(gpufleet.decode(path, skip_damage=True)) == [example_snapshot()] * 2


def test_decode_reads_other_captures(tmp_path: Path) -> None:
    (tmp_path / "snapshot.json").write_bytes(DOCUMENT)
    (one,) = gpufleet.decode(str(tmp_path / "snapshot.json"))
    assert one.node == example_snapshot().node


def test_decode_raises_errors_of_the_family(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("nothing known")
    with pytest.raises(WireError):
        list(gpufleet.decode(tmp_path / "text"))
    with pytest.raises(gpufleet.GpufleetError, match="missing"):
        list(gpufleet.decode(tmp_path / "missing"))


async def with_allocation(site: Site) -> gpufleet.Hub:
    await site.post(body(1, now()))
    spec = {
        "kind": "bare_metal",
        "target": {"cluster": "local", "machine": "node-a"},
        "valid_from": "2020-01-01T00:00:00Z",
    }
    assert (await site.request("/v1/allocations/a-1", "PUT", spec))[0] == 201
    return gpufleet.Hub(site.hub.url)


READS: dict[str, Callable[[gpufleet.Hub], object]] = {
    "fleet": lambda hub: hub.fleet().summary,
    "clusters": lambda hub: [one.cluster.id for one in hub.clusters()],
    "nodes": lambda hub: [one.machine.machine.name for one in hub.nodes(cluster="local").items],
    "gpus": lambda hub: {one.node for one in hub.gpus(machine="node-a").items},
    "allocations": lambda hub: [one.id for one in hub.allocations()],
    "allocation": lambda hub: hub.allocation("a-1").machine is not None,
    "series": lambda hub: hub.series("a-1", "gpu_power_watts").step_seconds,
    "machine_series": lambda hub: [
        one.metric for one in hub.machine_series("node-a", "gpu_power_watts", views=["gpu/GPU-1"], step="5m").series
    ],
    "findings": lambda hub: hub.findings().next,
}


async def test_hub_reads_return_records(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        hub = await with_allocation(site)
        found = {name: await asyncio.to_thread(read, hub) for name, read in READS.items()}
        assert found.pop("fleet")
        assert found == {
            "clusters": ["local"],
            "nodes": ["node-a"],
            "gpus": {"node-a"},
            "allocations": ["a-1"],
            "allocation": True,
            "series": 60.0,
            "machine_series": ["gpu_power_watts"],
            "findings": None,
        }


async def test_async_forms_return_the_same_types(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        hub = await with_allocation(site)
        assert (await hub.afleet()).clusters[0].cluster.id == (await hub.aclusters())[0].cluster.id
        assert (await hub.anodes()).items[0].machine.id == (await hub.agpus()).items[0].device.machine
        assert (await hub.aallocation("a-1")).allocation == (await hub.aallocations())[0]
        assert (await hub.aseries("a-1", "gpu_power_watts")).allocation.id == "a-1"
        power = await hub.amachine_series("node-a", "gpu_power_watts", step="5m")
        assert (power.name, power.step_seconds, power.series[0].metric) == ("node-a", 300.0, "gpu_power_watts")
        assert (await hub.afindings()).items == ()


async def test_hub_errors_have_the_status(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        with pytest.raises(gpufleet.ResponseError) as raised:
            await gpufleet.Hub(site.hub.url).aallocation("none")
        assert raised.value.status == 404


def test_hub_without_response_is_a_request_error() -> None:
    with pytest.raises(gpufleet.RequestError):
        gpufleet.Hub("http://127.0.0.1:1").fleet()
    with pytest.raises(gpufleet.RequestError):
        gpufleet.Hub("nowhere").fleet()


def test_token_is_in_no_message_and_not_sent_in_plain_text() -> None:
    with pytest.raises(ConfigError) as raised:
        gpufleet.Hub("http://127.0.0.1:1", "gpf_secret\r\nHost: x")
    assert "secret" not in str(raised.value)
    hub = gpufleet.Hub("http://192.0.2.1:8470", "gpf_secret")
    assert "secret" not in repr(hub)
    with pytest.raises(gpufleet.RequestError, match="https"):
        hub.fleet()


def test_snapshot_is_the_document_of_the_command() -> None:
    assert msgspec.to_builtins(gpufleet.snapshot())["schema"] == "gpufleet.snapshot/1"
