"""Pages of other projects and of gpufleet itself, read to the unit."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.agent.collect.assemble import assemble
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.decoding import decode
from gpufleet.decoding.format import CapturedInput
from gpufleet.delivery.export import AgentStats
from gpufleet.dialects.dialect import Dialect
from gpufleet.dialects.reading import SeriesReadings, read_series, unknown_labels
from gpufleet.dialects.registry import DIALECTS, recognise
from gpufleet.exporters.prometheus import PrometheusExporter
from gpufleet.fleet.board import drop_board_defaults
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.text import clean
from gpufleet.model.view import ViewKind
from tests.support.cut_gpus import cut_world
from tests.support.pages import agent_page
from tests.support.snapshots import example_snapshot

PAGES = Path(__file__).parents[1] / "data" / "exposition"
AT = 1_790_000_000_000_000_000
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}


def of_text(text: str) -> tuple[Dialect, SeriesReadings]:
    page = TextParser().parse(text.encode())
    dialect = recognise(series.name for series in page.series)
    assert dialect is not None
    return dialect, read_series(dialect, page.series, page.values, page.times, AT, reader=dialect.name)


def of_page(name: str) -> tuple[Dialect, SeriesReadings]:
    return of_text((PAGES / f"{name}.txt").read_text())


def values_by_view(found: SeriesReadings, machine: str) -> dict[str | None, dict[str, Value | Absent]]:
    """Return the readings of each view, by view key."""
    merged: dict[str | None, dict[str, Value | Absent]] = {}
    for sample in found.machines[machine]:
        assert sample.provenance is Provenance.IMPORTED
        merged.setdefault(sample.view.key if sample.view else None, {}).update(sample.values)
    return merged


def test_families_fit_their_metrics() -> None:
    for dialect in DIALECTS:
        assert not set(dialect.families) & set(dialect.unread)
        for family in dialect.families.values():
            metric = CATALOGUE[family.metric]
            assert len(family.labels or family.dims) == len(metric.dims), family.name
            assert set(family.states) <= set(metric.states), family.name
            assert bool(family.states) == (metric.kind is MetricKind.STATE), family.name
            assert metric.kind is not MetricKind.INFO
            assert set(family.subjects) <= set(metric.subjects), family.name
            assert dialect.is_mine(family.name)


def test_page_of_a_passed_through_gpu_is_read_to_the_unit() -> None:
    dialect, found = of_page("dcgm-exporter-l40s-vm")
    assert dialect.name == "dcgm-exporter"
    assert not found.unknown
    assert set(found.unread) == {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}
    (view,) = {sample.view for sample in found.machines["gpu1-wl8sg"]}
    assert view is not None
    assert (view.uuid, view.pci_address) == ("GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43", "0000:00:07.0")
    values = values_by_view(found, "gpu1-wl8sg")["gpu/GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43"]
    memory = values.pop("gpu_memory_temperature_celsius")
    assert isinstance(memory, Absent)
    assert memory.reason is Reason.NOT_SUPPORTED  # the page has 0, because the board has no such sensor
    assert values == {
        "gpu_name": "NVIDIA L40S",
        "gpu_pci_address": "0000:00:07.0",
        "gpu_sm_clock_hertz": 210_000_000,
        "gpu_memory_clock_hertz": 405_000_000,
        "gpu_temperature_celsius": 32,
        "gpu_power_watts": 35.686,
        "gpu_energy_joules_total": 5_551_899.58,
        "gpu_pcie_replays_total": 0,
        "gpu_utilization_ratio": 0,
        "gpu_memory_activity_ratio": 0,
        "gpu_encoder_utilization_ratio": 0,
        "gpu_decoder_utilization_ratio": 0,
        "gpu_memory_free_bytes": 45_459 << 20,
        "gpu_memory_used_bytes": 0,
        "gpu_memory_reserved_bytes": 608 << 20,
        "gpu_remapped_rows_uncorrectable": 0,
        "gpu_remapped_rows_correctable": 0,
        "gpu_row_remap_failed": 0,
        "gpu_graphics_activity_ratio": 0.0,
        "gpu_tensor_activity_ratio": 0.0,
        "gpu_dram_activity_ratio": 0.000131,
        "gpu_pcie_transmit_bytes_per_second": 175_084,
        "gpu_pcie_receive_bytes_per_second": 19_831,
    }


def test_page_of_a_vgpu_guest_has_only_visible_values() -> None:
    _, found = of_page("dcgm-exporter-h100-vgpu-guest")
    (machine,) = found.machines
    (values,) = values_by_view(found, machine).values()
    assert values["gpu_sm_clock_hertz"] == 1_755_000_000
    assert not {"gpu_temperature_celsius", "gpu_power_watts", "gpu_energy_joules_total"} & set(values)
    xid = values["gpu_last_xid"]
    assert isinstance(xid, Absent)
    assert xid.reason is Reason.NO_DATA


def test_mig_instance_is_not_read_as_a_gpu() -> None:
    _, found = of_page("dcgm-exporter-mig")
    values = values_by_view(found, "della-l01g1")
    assert values == {
        "mig/instance/GPU-d6dd33b9-.../7": {"gpu_memory_used_bytes": 8543 << 20, "gpu_name": "NVIDIA A100 80GB PCIe"}
    }
    (view, *_) = [sample.view for sample in found.machines["della-l01g1"]]
    assert view is not None
    assert view.parent == "gpu/GPU-d6dd33b9-..."


def mig_page() -> str:
    """Return the series of a GPU with three MIG instances as dcgm-exporter writes them: there are none of the GPU."""
    families = {
        "DCGM_FI_DEV_POWER_USAGE": ("78.174000", "78.446000", "78.174000"),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("257858316", "257858000", "257858316"),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("0", "0", "0"),
        "DCGM_FI_DEV_XID_ERRORS": ("0", "31", "0"),
        "DCGM_FI_DEV_RETIRED_SBE": ("2", "2", "2"),
        "DCGM_FI_DEV_FB_USED": ("10", "11", "12"),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("0.000000", "0.500000", "1.000000"),
    }
    labels = 'gpu="0",UUID="GPU-1",modelName="NVIDIA A800-SXM4-80GB",GPU_I_PROFILE="2g.20gb",GPU_I_ID="{}",Hostname="n"'
    return "".join(
        f"{family}{{{labels.format(instance)}}} {value}\n"
        for family, values in families.items()
        for instance, value in zip((3, 5, 6), values, strict=True)
    )


def test_readings_of_a_whole_gpu_are_not_those_of_its_mig_devices() -> None:
    _, found = of_text(mig_page())
    values = values_by_view(found, "n")
    name = {"gpu_name": "NVIDIA A800-SXM4-80GB"}
    assert values.pop("gpu/GPU-1") == name | {
        "gpu_power_watts": 78.446,
        "gpu_energy_joules_total": 257858.316,
        "gpu_pcie_replays_total": 0,
        "gpu_last_xid": 31,
    }
    dims = {dim.metric: dim.value for sample in found.machines["n"] for dim in sample.dims}
    assert dims == {"gpu_retired_pages": 2}
    assert values == {
        f"mig/instance/GPU-1/{instance}": name
        | {"gpu_memory_used_bytes": used << 20, "gpu_graphics_activity_ratio": activity}
        for instance, used, activity in ((3, 10, 0), (5, 11, 0.5), (6, 12, 1))
    }


def test_all_smi_page_with_instances() -> None:
    dialect, found = of_page("all-smi-mock-vgpu")
    assert dialect.name == "all-smi"
    values = values_by_view(found, "node-0001")
    gpu = values["gpu/GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301"]
    assert gpu["gpu_utilization_ratio"] == 0.6341
    assert gpu["gpu_memory_total_bytes"] == 206_158_430_208
    assert gpu["gpu_power_watts"] == 512.883
    assert sum(str(key).startswith("vgpu/") for key in values) == 8
    for key, of_view in values.items():
        if str(key).startswith("vgpu/"):  # its "utilization" is the lifetime average of one process
            assert set(of_view) == {"gpu_memory_used_bytes", "gpu_memory_total_bytes", "vgpu_type", "vgpu_vm_id"}
    parents = {sample.view.parent for sample in found.machines["node-0001"] if sample.view and sample.view.parent}
    assert parents == {key for key in values if str(key).startswith("gpu/")}


PLACEHOLDERS = ("[gpu is lost]", "[Unknown Error]", "[N/A]", "N/A", "ERR!", "Unknown Error")


@pytest.mark.parametrize("text", PLACEHOLDERS)
@pytest.mark.parametrize(
    "series",
    [
        'nvidia_smi_gpu_info{{uuid="{0}",pci_bus_id="00000000:8{1}:00.0",name="{0}",serial="{0}"}} 1',
        'DCGM_FI_DEV_GPU_TEMP{{UUID="{0}",gpu="{1}",pci_bus_id="00000000:8{1}:00.0",modelName="{0}"}} 40',
    ],
)
def test_placeholder_of_an_exporter_is_no_identity_and_no_text(series: str, text: str) -> None:
    _, found = of_text("".join(series.format(text, number) + "\n" for number in (3, 4)))
    samples = [sample for of_machine in found.machines.values() for sample in of_machine]
    assert {sample.view.key for sample in samples if sample.view} == {"gpu/pci/0000:83:00.0", "gpu/pci/0000:84:00.0"}
    values = [value for sample in samples for value in sample.values.values()]
    assert text not in values


@pytest.mark.parametrize("text", [*PLACEHOLDERS, "<<<NOT_SUPPORTED>>>"])
@pytest.mark.parametrize(
    "series",
    [
        'DCGM_FI_DEV_GPU_TEMP{{UUID="{}",gpu="0"}} 40',
        'all_smi_gpu_utilization{{gpu="A", instance="n", gpu_uuid="{}", gpu_index="3"}} 50',
        'nvidia_smi_power_draw_watts{{uuid="{}"}} 50',
        'kubevirt_vmi_gpu_utilization_percent{{name="vm", gpu_uuid="{}", gpu_index="0"}} 50',
    ],
)
def test_series_with_a_placeholder_only_is_not_attributed(series: str, text: str) -> None:
    _, found = of_text(series.format(text) + "\n")
    assert (found.machines, found.unattributed) == ({}, 1)


@pytest.mark.parametrize("family", ["temperature_celsius", "power_usage_milliwatts", "memory_total_bytes"])
def test_kubevirt_has_0_for_what_a_guest_cannot_read(family: str) -> None:
    _, found = of_text(f'kubevirt_vmi_gpu_{family}{{name="vm", gpu_uuid="GPU-1", gpu_index="0"}} 0\n')
    (value,) = [value for sample in found.guests["vm"] for name, value in sample.values.items() if name != "gpu_name"]
    assert isinstance(value, Absent)


def test_both_generations_of_all_smi_labels() -> None:
    old = 'all_smi_gpu_utilization{gpu="A", instance="n", uuid="GPU-a", index="3"} 50\n'
    new = 'all_smi_gpu_utilization{gpu="A", instance="n", gpu_uuid="GPU-a", gpu_index="3"} 50\n'
    assert of_text(old)[1].machines == of_text(new)[1].machines
    assert of_text('all_smi_gpu_utilization{gpu="A", instance="n"} 50\n')[1].unattributed == 1


@pytest.mark.parametrize("name", [path.stem for path in sorted(PAGES.glob("*.txt"))])
def test_every_series_of_a_page_is_accounted_for(name: str) -> None:
    page = TextParser().parse((PAGES / f"{name}.txt").read_bytes())
    dialect, found = of_page(name)
    for series in page.series:
        known = series.name in dialect.families or series.name in dialect.special
        assert known or series.name in found.unread or series.name in found.unknown


@pytest.mark.parametrize("sentinel", [2147483632, 2147483634, 9223372036854775794, 140737488355330.0])
def test_dcgm_blank_value_of_an_exporter_is_absent(sentinel: float) -> None:
    _, found = of_text(f'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-1",Hostname="n"}} {sentinel}\n')
    assert isinstance(values_by_view(found, "n")["gpu/GPU-1"]["gpu_power_watts"], Absent)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "101"])
def test_impossible_utilization_is_invalid(value: str) -> None:
    _, found = of_text(f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-1",Hostname="n"}} {value}\n')
    absent = values_by_view(found, "n")["gpu/GPU-1"]["gpu_utilization_ratio"]
    assert isinstance(absent, Absent)
    assert absent.reason is Reason.INVALID_VALUE


@pytest.mark.parametrize("number", ["65536", "4294967295", "18446744073709551615"])
def test_sentinel_is_no_xid(number: str) -> None:
    _, found = of_text(f'DCGM_FI_DEV_XID_ERRORS{{UUID="GPU-A",gpu="0"}} {number}\n')
    assert values_by_view(found, "")["gpu/GPU-A"] == {
        "gpu_last_xid": Absent(Reason.INVALID_VALUE, "DCGM_FI_DEV_XID_ERRORS")
    }


@pytest.mark.parametrize(
    "series", ['DCGM_FI_DEV_MEMORY_TEMP{UUID="GPU-A",gpu="0"} 0', 'nvidia_smi_temperature_memory{uuid="a"} 0']
)
def test_memory_temperature_of_zero_is_not_supported(series: str) -> None:
    _, found = of_text(series + "\n")
    ((value,),) = [of_view.values() for of_view in values_by_view(found, "").values()]
    assert isinstance(value, Absent)
    assert value.reason is Reason.NOT_SUPPORTED


def test_zeros_of_a_board_without_ecc_and_nvlink_are_none() -> None:
    """dcgm-exporter 4 about an RTX 5090, driver 590. A count above zero proves ECC."""
    labels = 'UUID="GPU-{}",modelName="NVIDIA {}",Hostname="n"'
    families = ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_PROF_NVLINK_TX_BYTES")
    boards = (("GeForce RTX 5090", 0), ("GeForce RTX 4090", 3), ("H200", 0), ("T1000", 0), ("TITAN RTX", 0))
    page = "".join(
        f"{family}{{{labels.format(number, name)}}} {count}\n"
        for family in families
        for number, (name, count) in enumerate(boards)
    )
    found = drop_board_defaults(of_text(page)[1].machines["n"])
    values = {(one.view.key, name): value for one in found if one.view for name, value in one.values.items()}
    ecc = [values[f"gpu/GPU-{number}", "gpu_ecc_corrected_errors_total"] for number in range(len(boards))]
    unproven = Absent(Reason.NOT_REPORTED, "gpu_ecc_mode")
    assert ecc == [unproven, 3, 0, unproven, unproven]
    nvlink = "gpu_nvlink_transmit_bytes_per_second"
    assert [values[f"gpu/GPU-{number}", nvlink] for number in range(3)] == [Absent(Reason.NOT_SUPPORTED, nvlink), 3, 0]


def test_memory_activity_of_zero_needs_memory() -> None:
    labels = 'UUID="GPU-{0}",modelName="NVIDIA {0}",Hostname="n"'
    names = ("GB10", "Thor", "GB200")
    page = "".join(f"DCGM_FI_DEV_MEM_COPY_UTIL{{{labels.format(name)}}} 0\n" for name in names)
    samples = drop_board_defaults(of_text(page)[1].machines["n"])
    metric = "gpu_memory_activity_ratio"
    found = {one.view.key: one.values[metric] for one in samples if one.view and metric in one.values}
    absent = Absent(Reason.NOT_SUPPORTED, metric)
    assert found == {"gpu/GPU-GB10": absent, "gpu/GPU-Thor": absent, "gpu/GPU-GB200": 0}


def test_gpu_shared_by_several_pods_is_counted_once() -> None:
    line = 'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-1",Hostname="n",pod="{pod}"}} {value}\n'
    same = line.format(pod="a", value=40) + line.format(pod="b", value=40)
    assert values_by_view(of_text(same)[1], "n")["gpu/GPU-1"]["gpu_utilization_ratio"] == 0.4
    apart = line.format(pod="a", value=40) + line.format(pod="b", value=10)
    absent = values_by_view(of_text(apart)[1], "n")["gpu/GPU-1"]["gpu_utilization_ratio"]
    assert isinstance(absent, Absent)


@pytest.mark.parametrize("values", [(40, 40), (40, 10), (0,)])
def test_share_of_a_pod_is_not_the_gpus_value(values: tuple[int, ...]) -> None:
    labels = 'UUID="GPU-1",Hostname="n",pod="p{n}",vgpu="{n}"'
    page = "".join(
        f"DCGM_FI_DEV_{family}{{{labels.format(n=number)}}} {value}\n"
        for number, value in enumerate(values)
        for family in ("GPU_UTIL", "FB_USED")
    )
    page += "".join(f"DCGM_FI_DEV_GPU_TEMP{{{labels.format(n=number)}}} 41\n" for number in range(len(values)))
    found = of_text(page)[1]
    assert values_by_view(found, "n") == {"gpu/GPU-1": {"gpu_temperature_celsius": 41}}
    assert found.unattributed == 2 * len(values)


def test_values_keep_their_own_timestamps() -> None:
    text = (
        'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-1",Hostname="n"} 40 1700000000000\n'
        'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1",Hostname="n"} 40 1700000015000\n'
        'DCGM_FI_DEV_POWER_USAGE{UUID="GPU-1",Hostname="n"} 300\n'
    )
    instants = {sample.measured_at for sample in of_text(text)[1].machines["n"] if "gpu_name" not in sample.values}
    assert instants == {1_700_000_000_000_000_000, 1_700_000_015_000_000_000, AT}


def test_page_in_two_dialects_is_read_in_one() -> None:
    dcgm = 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-1",Hostname="n"} 40\nDCGM_FI_DEV_GPU_TEMP{UUID="GPU-1",Hostname="n"} 40\n'
    smi = 'all_smi_gpu_utilization{gpu="A", instance="n", gpu_uuid="GPU-1", gpu_index="0"} 50\n'
    dialect, found = of_text(smi + dcgm)
    assert dialect.name == "dcgm-exporter"
    assert set(found.unknown) == {"all_smi_gpu_utilization"}


@given(st.text(max_size=30), st.text(max_size=30))
def test_label_value_cannot_forge_another_machine(pod: str, name: str) -> None:
    def escape(text: str) -> str:
        return text.encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    line = (
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-1",modelName="{escape(name)}",Hostname="n",pod="{escape(pod)}"}} 40\n'
    )
    _, found = of_text(line)
    assert list(found.machines) == ["n"]
    assert {sample.view.uuid for sample in found.machines["n"] if sample.view} == {"GPU-1"}


def test_own_page_has_the_readings_of_the_snapshot() -> None:
    snapshot = example_snapshot()
    dialect, found = of_text(PrometheusExporter().render(snapshot).decode())
    assert dialect.name == "gpufleet"
    assert not found.unknown
    (machine,) = found.machines  # without control characters
    assert machine == clean(snapshot.node.name)
    values = values_by_view(found, machine)
    for device in snapshot.devices:
        for name, reading in device.readings.items():
            if CATALOGUE[name].kind is MetricKind.INFO and reading.value is None:
                continue
            if name in ("gpu_pci_address", "mig_profile", "vgpu_type", "vgpu_vm_id"):
                continue  # labels of every series
            expected = reading.value if reading.absent is None else Absent(reading.absent)
            assert values[device.key][name] == expected, name
    for name, reading in snapshot.host.readings.items():
        if reading.value is not None:
            expected = clean(reading.value) if isinstance(reading.value, str) else reading.value
            assert values[None][name] == expected, name
    assert {sample.view.kind for sample in found.machines[machine] if sample.view} <= set(ViewKind)


def test_own_page_in_all_dialects_is_read_once() -> None:
    """Own page with the names of all dialects: read as gpufleet, the names of other dialects are skipped."""
    page = agent_page(example_snapshot(), AgentStats(started_at=1, lanes={}), tuple(BY_NAME))
    _, decoded = decode(CapturedInput(content=page, name="page.txt", at=AT))
    (snapshot,) = decoded.snapshots
    assert {reading.reader for device in snapshot.devices for reading in device.readings.values()} == {"gpufleet"}
    assert decoded.unknown == ()
    assert "one dialect" in decoded.unread["DCGM_FI_DEV_POWER_USAGE"]


def test_instances_round_trip_through_the_own_page() -> None:
    """MIG devices and vGPU instances keep their parent, their instance and every reading with its reason."""
    world = cut_world()
    snapshot = assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})
    _, found = of_text(agent_page(snapshot, AgentStats(started_at=1, lanes={})).decode())
    (machine,) = found.machines
    views = {sample.view.key: sample.view for sample in found.machines[machine] if sample.view}
    values = values_by_view(found, machine)
    assert views.keys() == {device.key for device in snapshot.devices}
    for device in snapshot.devices:
        view = views[device.key]
        assert (view.kind, view.side, view.parent) == (device.kind, device.side, device.parent)
        if device.kind is ViewKind.MIG:
            assert view.instance == device.instance
        for name, reading in device.readings.items():
            expected = Absent(reading.absent) if reading.absent is not None else reading.value
            assert values[device.key][name] == expected, name
    profiles = {str(of_view.get("mig_profile")) for of_view in values.values()} - {"None"}
    assert profiles == {"1g.18gb"}


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.txt")), ids=lambda page: page.stem)
def test_every_label_of_a_captured_page_is_known(page: Path) -> None:
    series = TextParser().parse(page.read_bytes()).series
    owned = [(known, one) for one in series for known in DIALECTS if known.is_mine(one.name)]
    assert owned
    assert [label for known, one in owned for label in unknown_labels(known, one)] == []
