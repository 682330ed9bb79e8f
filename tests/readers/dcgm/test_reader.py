"""DCGM reader: values in the units of the catalogue, and reasons for absent values."""

from pathlib import Path

import pytest

from gpufleet.codecs.dcgm_wire.commands import READ_ONLY
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import Side, ViewKind
from gpufleet.readers.dcgm.mapping import activity
from gpufleet.readers.dcgm.mapping.device import ROWS
from gpufleet.simulate.dcgm.state import PROFILING_NOT_SUPPORTED, EngineFault, EngineState, SimulatedGpu
from gpufleet.simulate.dcgm.values import (
    BASE_UNITS,
    PROFILING,
    healthy_values,
    in_base_units,
    vgpu_guest_values,
)
from tests.readers.dcgm.engines import reading

ENCODER = "gpu_encoder_utilization_ratio"
LANES = (Lane.STATIC, Lane.FAST, Lane.SLOW)


def of_gpu(found: Round, index: int) -> Sample:
    (sample,) = [sample for sample in found.samples if sample.view is not None and sample.view.index == index]
    return sample


def of_machine(found: Round) -> Sample:
    (sample,) = [sample for sample in found.samples if sample.view is None]
    return sample


def by_label(sample: Sample, metric: str) -> dict[str, object]:
    return {dim.labels[0]: dim.value for dim in sample.dims if dim.metric == metric}


def test_rows_and_catalogue_name_the_same_fields() -> None:
    for row in (*ROWS, *activity.ROWS):
        assert {row.field, *(row.base[:1] if row.base else ())} <= set(CATALOGUE[row.metric].dcgm), row.metric
    named = {field for metric in CATALOGUE.values() for field in metric.dcgm}
    read = {row.field for row in (*ROWS, *activity.ROWS)} | {row.base[0] for row in ROWS if row.base}
    assert named - read == {57, 230, 526}  # addresses identify GPUs, XIDs are events, licenses belong to vGPU guests


async def test_values_are_converted_to_catalogue_units(tmp_path: Path) -> None:
    async with reading(tmp_path, EngineState.healthy(8)) as (reader, _):
        rounds = {lane: await reader.read(lane) for lane in LANES}
    assert not [error for found in rounds.values() for error in found.errors]
    fast = of_gpu(rounds[Lane.FAST], 3)
    assert fast.view is not None
    assert (fast.view.kind, fast.view.side) == (ViewKind.GPU, Side.HOST)
    assert fast.view.uuid == "GPU-5b4e07f6-3a86-4340-039d-000000000003"
    assert fast.view.pci_address == "0000:08:00.0"
    expected = {
        "gpu_utilization_ratio": 0.84,
        "gpu_memory_activity_ratio": 0.36,
        "gpu_decoder_utilization_ratio": 0.08,
        "gpu_memory_total_bytes": 143_771 << 20,
        "gpu_memory_free_bytes": 141_700 << 20,
        "gpu_memory_used_bytes": 1_400 << 20,
        "gpu_memory_reserved_bytes": 671 << 20,
        "gpu_bar1_total_bytes": 262_144 << 20,
        "gpu_bar1_used_bytes": 6 << 20,
        "gpu_temperature_celsius": 38.0,
        "gpu_memory_temperature_celsius": 44.0,
        "gpu_temperature_margin_celsius": 49.0,
        "gpu_power_watts": 315.25,
        "gpu_power_instant_watts": 321.5,
        "gpu_power_limit_watts": 690.0,
        "gpu_energy_joules_total": 123_456.792,
        "gpu_sm_clock_hertz": 1_935_000_000,
        "gpu_memory_clock_hertz": 3_201_000_000,
        "gpu_video_clock_hertz": 1_500_000_000,
        "gpu_clock_event_reasons_mask": 4,
        "gpu_performance_state": 0,
        "gpu_ecc_corrected_errors_total": 10,
        "gpu_ecc_uncorrected_errors_total": 1,
        "gpu_pcie_link_generation": 4,
        "gpu_pcie_link_width": 15,
        "gpu_pcie_replays_total": 5,
        "gpu_state": "ok",
        "gpu_graphics_activity_ratio": 0.78,
        "gpu_sm_activity_ratio": 0.69,
        "gpu_sm_occupancy_ratio": 0.34,
        "gpu_tensor_activity_ratio": 0.47,
        "gpu_dram_activity_ratio": 0.3,
        "gpu_fp64_activity_ratio": 0.0,
        "gpu_fp32_activity_ratio": 0.14,
        "gpu_fp16_activity_ratio": 0.09,
        "gpu_tensor_integer_activity_ratio": 0.05,
        "gpu_tensor_half_activity_ratio": 0.41,
        "gpu_tensor_fp64_activity_ratio": 0.0,
        "gpu_integer_activity_ratio": 0.12,
        "gpu_pcie_transmit_bytes_per_second": 1_200_003.0,
        "gpu_pcie_receive_bytes_per_second": 2_300_003.0,
        "gpu_nvlink_transmit_bytes_per_second": 34_000_003.0,
        "gpu_nvlink_receive_bytes_per_second": 45_000_003.0,
    }
    values = dict(fast.values)
    assert values.pop(ENCODER) == Absent(Reason.NOT_SUPPORTED, ENCODER)  # 0 of an H200
    assert values == pytest.approx(expected)
    active = {dim.labels[0]: dim.value for dim in fast.dims if dim.metric == "gpu_clock_event_active"}
    assert active["sw_power_cap"] == 1
    assert sum(value for value in active.values() if isinstance(value, int)) == 1
    (fan,) = [dim.value for dim in fast.dims if dim.metric == "gpu_fan_speed_ratio"]
    assert fan == Absent(Reason.NOT_SUPPORTED, "DCGM 191")
    slow = of_gpu(rounds[Lane.SLOW], 1)
    assert slow.values == {
        "gpu_power_requested_limit_watts": 695.0,
        "gpu_recovery_action": "none",
        "gpu_retired_pages_pending": Absent(Reason.NOT_SUPPORTED, "DCGM 392"),
        "gpu_driver_events_watched": 1,
        "gpu_ecc_corrected_lifetime_errors_total": 18,
        "gpu_ecc_uncorrected_lifetime_errors_total": 3,
        "gpu_remapped_rows_correctable": 9,
        "gpu_remapped_rows_uncorrectable": 4,
        "gpu_row_remap_pending": 1,
        "gpu_row_remap_failed": 0,
        "gpu_mig_mode": "disabled",
    }
    assert by_label(slow, "gpu_row_remap_banks") == {"max": 2558, "high": 1, "partial": 0, "low": 0, "none": 0}
    seconds = by_label(slow, "gpu_clock_event_seconds_total")
    assert (seconds["sw_power_cap"], seconds["board_limit"], seconds["sw_thermal"]) == (
        5.000000001,
        1.5,
        0.25,
    )
    static = of_gpu(rounds[Lane.STATIC], 7)
    thresholds = {"slowdown": 89.0, "shutdown": 92.0, "memory_max": 95.0, "gpu_max": 87.0}
    assert by_label(static, "gpu_temperature_threshold_celsius") == thresholds
    assert static.values == {
        "gpu_power_limit_min_watts": 200.0,
        "gpu_power_limit_max_watts": 700.0,
        "gpu_memory_clock_max_hertz": 3_201_000_000,
        "gpu_ecc_mode": "enabled",
        "gpu_ecc_mode_pending": "enabled",
        "gpu_power_default_limit_watts": 700.0,
        "gpu_sm_clock_max_hertz": 1_995_000_000,
        "gpu_pcie_link_generation_max": 5,
        "gpu_pcie_link_width_max": 16,
        "gpu_persistence_mode": "enabled",
        "gpu_compute_mode": "default",
        "gpu_virtualization_mode": "passthrough",
        "gpu_name": "NVIDIA H200",
        "gpu_serial": "1650024000007",
        "gpu_vbios_version": "96.00.CF.00.01",
        "gpu_minor_number": "7",
        "gpu_pci_address": "0000:0c:00.0",
    }
    assert of_machine(rounds[Lane.STATIC]).values == {
        "dcgm_version": "4.5.3",
        "dcgm_compatibility": "first_choice",
        "nvidia_driver_version": "580.105.08",
        "nvidia_library_version": "13.580.105.08",
        "nvidia_cuda_version": "13.0",
    }


async def test_guest_clock_offset_is_reported_and_not_used(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.clock_ahead = -3600_000_000
    async with reading(tmp_path, state) as (reader, _):
        ours = await reader.read(Lane.FAST)
        offset = of_machine(ours).values["dcgm_clock_offset_seconds"]
        assert isinstance(offset, float)
        assert offset == pytest.approx(-3600, abs=60)
        state.clock_ahead = 0
        later = await reader.read(Lane.FAST)
    assert of_gpu(ours, 0).measured_at < of_gpu(later, 0).measured_at


async def test_hidden_values_of_a_vgpu_guest_are_not_in_guest(tmp_path: Path) -> None:
    state = EngineState(gpus={0: SimulatedGpu(vgpu_guest_values())})
    state.unwatchable = dict.fromkeys(PROFILING, PROFILING_NOT_SUPPORTED)
    async with reading(tmp_path, state) as (reader, _):
        rounds = {lane: await reader.read(lane) for lane in LANES}
    fast = of_gpu(rounds[Lane.FAST], 0).values
    assert fast["gpu_memory_total_bytes"] == 20_480 << 20
    assert fast["gpu_utilization_ratio"] == 0.87
    slow = of_gpu(rounds[Lane.SLOW], 0).values
    assert slow["vgpu_license_state"] == "licensed"
    assert slow["gpu_mig_mode"] == Absent(Reason.NOT_IN_GUEST, "gpu_mig_mode")
    hidden_ones = ("gpu_temperature_celsius", "gpu_power_watts", "gpu_energy_joules_total", "gpu_pcie_link_width")
    for hidden in (*hidden_ones, "gpu_sm_activity_ratio", "gpu_pcie_receive_bytes_per_second"):
        absent = fast[hidden]
        assert isinstance(absent, Absent)
        assert absent.reason is Reason.NOT_IN_GUEST, hidden
    assert of_gpu(rounds[Lane.STATIC], 0).values["gpu_virtualization_mode"] == "vgpu_guest"


@pytest.mark.parametrize(
    ("product", "found"),
    [
        ("NVIDIA A100-SXM4-80GB", "disabled"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "disabled"),
        ("Tesla T4", Absent(Reason.NO_DATA, "DCGM 67")),
        ("NVIDIA L40S", Absent(Reason.NO_DATA, "DCGM 67")),
    ],
)
async def test_disabled_mig_mode_needs_a_chip_with_mig(tmp_path: Path, product: str, found: object) -> None:
    """The engine reports 0 for every chip on which it sees no MIG (DcgmCacheManager.cpp)."""
    state = EngineState(gpus={0: SimulatedGpu(healthy_values(0) | {50: product, 67: 0})})
    async with reading(tmp_path, state) as (reader, _):
        slow = of_gpu(await reader.read(Lane.SLOW), 0).values
    assert slow["gpu_mig_mode"] == found


async def test_power_of_0_watts_is_no_measurement(tmp_path: Path) -> None:
    """The engine publishes 0 if the driver has no value of this field (DcgmCacheManager.cpp)."""
    found = []
    for values in (healthy_values(0), vgpu_guest_values()):
        state = EngineState(gpus={0: SimulatedGpu(values | {157: 0.0, 140: 0})})
        async with reading(tmp_path, state) as (reader, _):
            found.append(of_gpu(await reader.read(Lane.FAST), 0).values)
    board, guest = found
    assert board["gpu_power_instant_watts"] == Absent(Reason.NOT_SUPPORTED, "DCGM 157")
    assert guest["gpu_power_instant_watts"] == Absent(Reason.NOT_IN_GUEST, "DCGM 157")
    assert guest["gpu_memory_temperature_celsius"] == Absent(Reason.NOT_IN_GUEST, "DCGM 140")


@pytest.mark.parametrize(("number", "mode"), [(0, "default"), (1, "prohibited"), (2, "exclusive_process")])
async def test_compute_mode_has_the_numbers_of_the_engine(tmp_path: Path, number: int, mode: str) -> None:
    state = EngineState(gpus={0: SimulatedGpu(healthy_values(0) | {65: number})})
    async with reading(tmp_path, state) as (reader, _):
        assert of_gpu(await reader.read(Lane.STATIC), 0).values["gpu_compute_mode"] == mode


async def test_utilization_in_mig_mode_is_absent(tmp_path: Path) -> None:
    values = healthy_values(0) | {67: 1, 203: 0}
    async with reading(tmp_path, EngineState(gpus={0: SimulatedGpu(values)})) as (reader, _):
        fast = of_gpu(await reader.read(Lane.FAST), 0).values
    assert fast["gpu_utilization_ratio"] == Absent(Reason.NOT_IN_MIG_MODE)
    assert fast["gpu_power_watts"] == 312.25


@pytest.mark.parametrize(
    ("status", "reason"),
    [(-6, Reason.NOT_SUPPORTED), (-17, Reason.NOT_PERMITTED), (-14, Reason.NO_DATA), (-3, Reason.DRIVER_ERROR)],
)
async def test_field_status_affects_only_its_value(status: int, reason: Reason, tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.gpus[1].statuses[155] = status
    async with reading(tmp_path, state) as (reader, _):
        found = await reader.read(Lane.FAST)
    absent = of_gpu(found, 1).values["gpu_power_watts"]
    assert isinstance(absent, Absent)
    assert absent.reason is reason
    assert of_gpu(found, 0).values["gpu_power_watts"] == 312.25
    assert of_gpu(found, 1).values["gpu_temperature_celsius"] == 36.0


async def test_lost_gpu_keeps_its_identity(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.gpus[1].statuses = dict.fromkeys(set(state.gpus[1].values) - {54, 57}, -18)
    async with reading(tmp_path, state) as (reader, _):
        found = await reader.read(Lane.FAST)
    lost = of_gpu(found, 1).values
    assert lost["gpu_state"] == "lost"
    assert {value.reason for name, value in lost.items() if isinstance(value, Absent)} == {Reason.GPU_LOST}
    assert of_gpu(found, 0).values["gpu_state"] == "ok"


async def test_unidentified_gpu_is_an_error_and_left_out(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.gpus[1].values |= {54: "<<<NULL>>>", 57: "nowhere"}
    async with reading(tmp_path, state) as (reader, _):
        found = await reader.read(Lane.FAST)
    assert [sample.view.index for sample in found.samples if sample.view] == [0]
    assert "GPU 1" in found.errors[0]


@pytest.mark.parametrize(
    ("forms", "compatibility"),
    [({22, 52, 63, 79}, "first_choice"), ({79}, "fallback"), ({22, 52}, "fallback"), ({22}, "fallback")],
)
async def test_request_form_depends_on_the_engine_version(forms: set[int], compatibility: str, tmp_path: Path) -> None:
    state = EngineState.healthy(32)
    state.forms = frozenset(forms)
    async with reading(tmp_path, state) as (reader, engine):
        static, fast = await reader.read(Lane.STATIC), await reader.read(Lane.FAST)
        assert of_machine(static).values["dcgm_compatibility"] == compatibility
        assert len(fast.samples) == 33
        assert of_gpu(fast, 31).values["gpu_power_watts"] == 343.25
        assert set(engine.commands) <= READ_ONLY
        assert engine.connections == 1


@pytest.mark.parametrize(("version", "forms"), [("3.3.5", {63}), ("", {63}), ("4.9.0", set())])
async def test_unsupported_engine_is_not_supported(version: str, forms: set[int], tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.version, state.forms = version, frozenset(forms)
    async with reading(tmp_path, state) as (reader, _):
        with pytest.raises(ReaderError, match="DCGM") as caught:
            await reader.read(Lane.FAST)
    assert caught.value.absence is Reason.NOT_SUPPORTED


async def test_engine_without_gpus_is_no_supported_gpu(tmp_path: Path) -> None:
    async with reading(tmp_path, EngineState()) as (reader, _):
        with pytest.raises(ReaderError) as caught:
            await reader.read(Lane.FAST)
    assert caught.value.absence is Reason.NO_SUPPORTED_GPU


@pytest.mark.parametrize("fail_all", [False, True])
async def test_newer_field_ids_are_used_if_older_are_unknown(fail_all: bool, tmp_path: Path) -> None:
    state = EngineState(gpus={0: SimulatedGpu(in_base_units(healthy_values(0)))})
    state.unknown, state.unknown_fail_all = frozenset({*BASE_UNITS, 1523}), fail_all
    async with reading(tmp_path, state) as (reader, _):
        rounds = {lane: await reader.read(lane) for lane in LANES}
    fast = of_gpu(rounds[Lane.FAST], 0).values
    assert fast["gpu_sm_clock_hertz"] == 1_980_000_000
    assert fast["gpu_energy_joules_total"] == pytest.approx(123_456.789)
    assert fast["gpu_bar1_total_bytes"] == 262_144 << 20
    assert of_gpu(rounds[Lane.STATIC], 0).values["gpu_memory_clock_max_hertz"] == 3_201_000_000
    unknown = of_gpu(rounds[Lane.SLOW], 0).values["gpu_recovery_action"]
    assert unknown == Absent(Reason.NOT_IN_DRIVER, "DCGM 1523: the engine does not know it")


async def test_version_of_the_driver_is_no_driver_session(tmp_path: Path) -> None:
    async with reading(tmp_path, EngineState.healthy(1)) as (reader, _):
        rounds = [await reader.read(lane) for lane in LANES]
    sessions = {sample.driver_session for done in rounds for sample in done.samples}
    assert sessions == {0}, "it is the same after a reload of the driver, which resets counters"


async def test_unsupported_engine_reports_its_version(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.faults.add(EngineFault.UNKNOWN_VERSION)
    async with reading(tmp_path, state) as (reader, _):
        with pytest.raises(ReaderError, match=r"9\.0\.0") as caught:
            await reader.read(Lane.STATIC)
    assert caught.value.round is not None
    assert of_machine(caught.value.round).values == {"dcgm_version": "9.0.0", "dcgm_compatibility": "incompatible"}


async def test_gpus_beyond_the_engine_limit_are_counted(tmp_path: Path) -> None:
    async with reading(tmp_path, EngineState.healthy(40)) as (reader, _):
        found = await reader.read(Lane.FAST)
    assert len([sample for sample in found.samples if sample.view is not None]) == 32
    (error,) = found.errors
    assert "40" in error
    assert "32" in error
    assert of_machine(found).values["dcgm_devices"] == 40


async def test_engine_of_a_guest_has_guest_views(tmp_path: Path) -> None:
    async with reading(tmp_path, EngineState.healthy(1), side=Side.GUEST) as (reader, _):
        view = of_gpu(await reader.read(Lane.FAST), 0).view
    assert view is not None
    assert view.side is Side.GUEST


async def test_restarted_engine_is_queried_again(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    async with reading(tmp_path, state) as (reader, engine):
        await reader.read(Lane.FAST)
        await reader.close()
        state.gpus = EngineState.healthy(3).gpus
        assert len((await reader.read(Lane.FAST)).samples) == 4
        assert engine.connections == 2
