"""Pages of all-smi, and of gpufleet under all-smi's names."""

import asyncio

import pytest

from gpufleet.agent.collect.assemble import assemble
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.decoding import decode
from gpufleet.decoding.format import CapturedInput
from gpufleet.delivery.export import AgentStats
from gpufleet.dialects.all_smi import ALL_SMI, FAMILIES
from gpufleet.dialects.reading import read_series
from gpufleet.dialects.registry import believed, recognise
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Value
from gpufleet.model.snapshot import Snapshot
from gpufleet.readers.exporter.fetch import ScrapedPage
from gpufleet.readers.exporter.reader import ExporterReader
from tests.fakes.clock import FakeClock
from tests.support.cut_gpus import VM, cut_world, shared_world
from tests.support.pages import agent_page
from tests.support.passes import World

AT = 1_790_000_000_000_000_000
GPU = "GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301"
HOST = f'gpu_index="0",gpu_uuid="{GPU}",gpu="NVIDIA A100",instance="n",host="n"'
INSTANCE = f'{HOST},vgpu_id="3",vgpu_uuid="AB-1",vgpu_type="GRID A100-8C",vgpu_vm_id="{VM.upper()}"'
MIG = f'{HOST},mig_instance="0",mig_uuid="MIG-1",mig_profile="1g.5gb",gpu_instance_id="7",compute_instance_id="0"'
OF_HOSTS = {f"all_smi_vgpu_{name}" for name in ("host_mode", "scheduler_state", "scheduler_policy")}
EIGHT = {name for name in FAMILIES if name.startswith("all_smi_vgpu_")}

Readings = dict[str, dict[str, Value | Absent]]


def readings_of(text: str) -> Readings:
    """Return the readings of each view in all-smi's dialect, by view key."""
    page = TextParser().parse(text.encode())
    dialect = believed(ALL_SMI, page.series)
    found = read_series(dialect, page.series, page.values, page.times, AT, reader="x")
    merged: Readings = {}
    for samples in found.machines.values():
        for sample in samples:
            merged.setdefault(sample.view.key if sample.view else "", {}).update(sample.values)
    return merged


def snapshot_of(world: World) -> Snapshot:
    return assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})


def own_page(world: World) -> bytes:
    return agent_page(snapshot_of(world), AgentStats(started_at=1, lanes={}), ("all-smi",))


class OnePage:
    """Page fetcher of one page."""

    where = "http://exporter/metrics"

    def __init__(self, page: bytes) -> None:
        self._page = page

    async def fetch(self) -> ScrapedPage:
        return ScrapedPage(self._page, openmetrics=False)


def read_by_exporter_reader(page: bytes) -> Readings:
    reader = ExporterReader("x", OnePage(page), FakeClock())
    merged: Readings = {}
    for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC):
        for sample in asyncio.run(reader.read(lane)).samples:
            merged.setdefault(sample.view.key if sample.view else "", {}).update(sample.values)
    return merged


def test_labels_of_a_vgpu_instance_are_kept() -> None:
    values = readings_of(f"all_smi_vgpu_memory_used_bytes{{{INSTANCE}}} 5\n")["vgpu/ab-1"]
    assert values == {"gpu_memory_used_bytes": 5, "vgpu_type": "GRID A100-8C", "vgpu_vm_id": VM}


def test_vm_id_that_is_no_uuid_is_kept_unchanged() -> None:
    line = f"all_smi_vgpu_memory_used_bytes{{{INSTANCE}}} 5\n".replace(VM.upper(), "Vm-Mock-0")
    assert readings_of(line)["vgpu/ab-1"]["vgpu_vm_id"] == "Vm-Mock-0"
    empty = f"all_smi_vgpu_memory_used_bytes{{{INSTANCE}}} 5\n".replace(VM.upper(), "")
    assert "vgpu_vm_id" not in readings_of(empty)["vgpu/ab-1"]


def test_labels_of_a_mig_device_are_kept() -> None:
    values = readings_of(f"all_smi_mig_instance_memory_used_bytes{{{MIG}}} 5\n")["mig/MIG-1"]
    assert values == {
        "gpu_memory_used_bytes": 5,
        "gpu_name": "NVIDIA A100",
        "mig_profile": "1g.5gb",
        "mig_gpu_instance": "7",
        "mig_compute_instance": "0",
    }


def test_vgpu_families_are_believed_on_the_own_page_only() -> None:
    page = "".join(f"{name}{{{HOST if name in OF_HOSTS else INSTANCE}}} 1\n" for name in sorted(EIGHT))
    ours = readings_of(page + 'gpufleet_agent_start_timestamp_seconds{node="n"} 1\n')
    assert len(EIGHT) == 8
    metrics = {FAMILIES[name].metric for name in EIGHT}
    assert metrics <= {name for values in ours.values() for name in values}
    theirs = readings_of(page)
    believed_of_all_smi = {"gpu_memory_used_bytes", "gpu_memory_total_bytes"}
    assert metrics & {name for values in theirs.values() for name in values} == believed_of_all_smi


def test_all_smi_beside_the_series_of_an_agent_is_not_believed() -> None:
    """A federation answer has series of several targets. Those of a target have the label `job`."""
    page = f'all_smi_gpu_power_consumption_watts{{{HOST},job="all-smi"}} 0\n'
    agent = 'gpufleet_agent_start_timestamp_seconds{node="n1",job="gpufleet"} 1\n'
    (found,) = readings_of(page + agent).values()
    assert isinstance(found["gpu_power_watts"], Absent)


ZEROS = f"""all_smi_gpu_utilization{{{HOST}}} 0
all_smi_gpu_power_consumption_watts{{{HOST}}} 0
all_smi_gpu_temperature_celsius{{{HOST}}} 0
all_smi_gpu_memory_used_bytes{{{HOST}}} 0
all_smi_gpu_memory_total_bytes{{{HOST}}} 0
all_smi_vgpu_memory_used_bytes{{{INSTANCE}}} 0
all_smi_vgpu_memory_total_bytes{{{INSTANCE}}} 0
all_smi_mig_instance_memory_used_bytes{{{MIG}}} 0
all_smi_mig_instance_memory_total_bytes{{{MIG}}} 0
"""
"""Page of all-smi after driver errors."""


def test_zero_of_a_failed_query_is_absent() -> None:
    found = {
        (key, name): value.reason
        for key, values in readings_of(ZEROS).items()
        for name, value in values.items()
        if isinstance(value, Absent)
    }
    assert found.pop((f"gpu/{GPU}", "gpu_temperature_celsius")) is Reason.NOT_SUPPORTED
    assert len(found) == 8
    possible = {"gpu_utilization_ratio", "gpu_memory_used_bytes"}
    assert {name: reason for (_, name), reason in found.items()} == {
        name: Reason.AMBIGUOUS_ZERO if name in possible else Reason.NO_DATA
        for name in (*possible, "gpu_memory_total_bytes", "gpu_power_watts")
    }


@pytest.mark.parametrize("text", ["GPU-0", "GPU-12", "JetsonGPU"])
def test_text_that_many_machines_share_is_no_uuid(text: str) -> None:
    assert readings_of(ZEROS.replace(GPU, text)) == {}


def test_default_of_the_firmware_mode_is_no_reading() -> None:
    """2 is neither on nor off."""
    page = f"all_smi_gpu_gsp_firmware_mode{{{HOST}}} 2\nall_smi_gpu_temperature_celsius{{{HOST}}} 40\n"
    (readings,) = readings_of(page).values()
    assert "gpu_gsp_firmware_mode" not in readings


def test_unknown_gpu_is_no_name() -> None:
    named = readings_of(f"all_smi_gpu_temperature_celsius{{{HOST}}} 40\n".replace("NVIDIA A100", "Unknown GPU"))
    assert named == {f"gpu/{GPU}": {"gpu_temperature_celsius": 40}}


def test_zero_on_the_own_page_is_a_value() -> None:
    values = readings_of(ZEROS + 'gpufleet_agent_start_timestamp_seconds{node="n"} 1\n')
    gpu = values[f"gpu/{GPU}"]
    assert gpu["gpu_utilization_ratio"] == gpu["gpu_power_watts"] == gpu["gpu_temperature_celsius"] == 0
    assert values["vgpu/ab-1"]["gpu_memory_used_bytes"] == 0


def test_own_page_round_trips_under_all_smi_names() -> None:
    """Every reading that the page shows comes back with its value, by the exporter reader and by `decode`."""
    for world in (shared_world(), cut_world()):
        page = own_page(world)
        assert recognise(series.name for series in TextParser().parse(page).series) is ALL_SMI
        (decoded,) = decode(CapturedInput(content=page, name="page.txt", at=AT))[1].snapshots
        by_decode = {
            device.key: {name: reading.value for name, reading in device.readings.items()} for device in decoded.devices
        }
        by_reader = read_by_exporter_reader(page)
        shown = {family.metric for family in FAMILIES.values() if family.written}
        texts = {"vgpu_type", "vgpu_vm_id", "mig_profile", "mig_gpu_instance", "mig_compute_instance"}
        count = 0
        for device in snapshot_of(world).devices:
            for name, reading in device.readings.items():
                if name in shown | texts and reading.value is not None:
                    count += 1
                    assert by_reader[device.key][name] == reading.value, name
                    assert by_decode[device.key][name] == reading.value, name
        assert count > 10


def test_trust_ends_when_another_exporter_answers() -> None:
    """The same target may later serve a page of all-smi itself."""

    class TwoPages:
        where = "http://exporter/metrics"

        def __init__(self) -> None:
            own = own_page(shared_world())
            self._pages = iter([own, b"".join(line + b"\n" for line in own.split(b"\n") if b"gpufleet_" not in line)])

        async def fetch(self) -> ScrapedPage:
            return ScrapedPage(next(self._pages), openmetrics=False)

    reader = ExporterReader("x", TwoPages(), FakeClock())
    found = [asyncio.run(reader.read(Lane.FAST)).samples for _ in range(2)]
    has_utilization = [
        {sample.view.key for sample in samples if sample.view and "gpu_utilization_ratio" in sample.values}
        for samples in found
    ]
    assert len(has_utilization[0]) == 2
    assert has_utilization[1] == set()
