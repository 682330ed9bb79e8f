"""Eight healthy H200s: every value of every device in the unit of the catalogue."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.view import Side, ViewKind
from tests.fakes.nvml.driver import FakeNvml
from tests.readers.nvml.rig import Start, device, dim, own

G = "nvmlDeviceGet"
ENCODER = "gpu_encoder_utilization_ratio"
FACTORS: dict[Lane, dict[str, tuple[str, float]]] = {
    Lane.FAST: {
        "gpu_utilization_ratio": (f"{G}UtilizationRates_gpu", 0.01),
        "gpu_memory_activity_ratio": (f"{G}UtilizationRates_memory", 0.01),
        ENCODER: (f"{G}EncoderUtilization", 0.01),
        "gpu_decoder_utilization_ratio": (f"{G}DecoderUtilization", 0.01),
        "gpu_jpeg_utilization_ratio": (f"{G}JpgUtilization", 0.01),
        "gpu_ofa_utilization_ratio": (f"{G}OfaUtilization", 0.01),
        "gpu_memory_total_bytes": (f"{G}MemoryInfo_total", 1),
        "gpu_memory_used_bytes": (f"{G}MemoryInfo_used", 1),
        "gpu_memory_free_bytes": (f"{G}MemoryInfo_free", 1),
        "gpu_memory_reserved_bytes": (f"{G}MemoryInfo_reserved", 1),
        "gpu_bar1_total_bytes": (f"{G}BAR1MemoryInfo_total", 1),
        "gpu_bar1_used_bytes": (f"{G}BAR1MemoryInfo_used", 1),
        "gpu_temperature_celsius": (f"{G}Temperature", 1),
        "gpu_temperature_margin_celsius": (f"{G}MarginTemperature", 1),
        "gpu_power_watts": (f"{G}PowerUsage", 0.001),
        "gpu_power_limit_watts": (f"{G}EnforcedPowerLimit", 0.001),
        "gpu_energy_joules_total": (f"{G}TotalEnergyConsumption", 0.001),
        "gpu_graphics_clock_hertz": (f"{G}ClockInfo,0", 1e6),
        "gpu_sm_clock_hertz": (f"{G}ClockInfo,1", 1e6),
        "gpu_memory_clock_hertz": (f"{G}ClockInfo,2", 1e6),
        "gpu_video_clock_hertz": (f"{G}ClockInfo,3", 1e6),
        "gpu_clock_event_reasons_mask": (f"{G}CurrentClocksEventReasons", 1),
        "gpu_performance_state": (f"{G}PerformanceState", 1),
        "gpu_ecc_corrected_errors_total": (f"{G}TotalEccErrors,0,0", 1),
        "gpu_ecc_uncorrected_errors_total": (f"{G}TotalEccErrors,1,0", 1),
        "gpu_pcie_link_generation": (f"{G}CurrPcieLinkGeneration", 1),
        "gpu_pcie_link_width": (f"{G}CurrPcieLinkWidth", 1),
        "gpu_pcie_replays_total": (f"{G}PcieReplayCounter", 1),
    },
    Lane.SLOW: {
        "gpu_ecc_corrected_lifetime_errors_total": (f"{G}TotalEccErrors,0,1", 1),
        "gpu_ecc_uncorrected_lifetime_errors_total": (f"{G}TotalEccErrors,1,1", 1),
        "gpu_remapped_rows_correctable": (f"{G}RemappedRows_correctable", 1),
        "gpu_remapped_rows_uncorrectable": (f"{G}RemappedRows_uncorrectable", 1),
        "gpu_row_remap_pending": (f"{G}RemappedRows_pending", 1),
        "gpu_row_remap_failed": (f"{G}RemappedRows_failed", 1),
    },
    Lane.STATIC: {
        "gpu_power_default_limit_watts": (f"{G}PowerManagementDefaultLimit", 0.001),
        "gpu_sm_clock_max_hertz": (f"{G}MaxClockInfo,1", 1e6),
        "gpu_pcie_link_generation_max": (f"{G}MaxPcieLinkGeneration", 1),
        "gpu_pcie_link_width_max": (f"{G}MaxPcieLinkWidth", 1),
    },
}
FIELDS = {
    Lane.FAST: {"gpu_memory_temperature_celsius": (82, 1), "gpu_power_instant_watts": (186, 0.001)},
    Lane.SLOW: {},
    Lane.STATIC: {},
}
ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex")
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")


async def test_numbers_are_in_the_unit_of_the_catalogue(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW):
        round_ = await reader.read(lane)
        assert not round_.errors
        assert not round_.events
        for index, fake_gpu in enumerate(fake.scenario.devices):
            values = device(round_, index).values
            for metric, (key, factor) in FACTORS[lane].items():
                number = fake_gpu.numbers[key]
                assert number is not None
                if metric == ENCODER and not number:  # the chip has no encoder
                    assert values[metric] == Absent(Reason.NOT_SUPPORTED, metric)
                    continue
                expected = number / round(1 / factor) if factor < 1 else number * factor
                assert values[metric] == expected, metric
                assert type(values[metric]) is (int if CATALOGUE[metric].type == "int" else float), metric
            for metric, (id_, factor) in FIELDS[lane].items():
                raw = fake_gpu.fields[id_].value
                assert values[metric] == (raw / 1000 if factor < 1 else raw), metric


async def test_states_and_text_values(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    static, slow, fast = [await reader.read(lane) for lane in (Lane.STATIC, Lane.SLOW, Lane.FAST)]
    for i, fake_gpu in enumerate(fake.scenario.devices):
        values = device(static, i).values
        assert values["gpu_name"] == "NVIDIA H200"
        assert values["gpu_serial"] == fake_gpu.texts["nvmlDeviceGetSerial"]
        assert values["gpu_board_part_number"] == fake_gpu.texts["nvmlDeviceGetBoardPartNumber"]
        assert values["gpu_vbios_version"] == fake_gpu.texts["nvmlDeviceGetVbiosVersion"]
        assert values["gpu_inforom_image_version"] == fake_gpu.texts["nvmlDeviceGetInforomImageVersion"]
        assert values["gpu_gsp_firmware_version"] == "580.159.04"
        assert values["gpu_architecture"] == "Hopper"
        assert values["gpu_compute_capability"] == "9.0"
        assert values["gpu_minor_number"] == str(i)
        assert values["gpu_module_id"] == str(1 + (i + 3) % 8)
        assert values["gpu_ecc_mode"] == "enabled"
        assert values["gpu_persistence_mode"] == ("disabled" if i % 2 else "enabled")
        assert values["gpu_compute_mode"] == COMPUTE_MODES[i % 4]
        assert values["gpu_virtualization_mode"] == "none"
        assert values["gpu_pci_address"] == f"0000:{0x1B + 0x10 * i:02x}:00.0"
        assert device(slow, i).values["gpu_recovery_action"] == ACTIONS[i % 6]
        assert device(slow, i).values["gpu_mig_mode"] == "disabled"
        assert device(fast, i).values["gpu_state"] == "ok"
        assert device(fast, i).values["gpu_compute_processes"] == i
        expected = {name: int(bit == 1 << i) for name, bit in CLOCK_EVENT_REASONS}
        assert dim(device(fast, i), "gpu_clock_event_active") == expected


async def test_machine_readings(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    assert own(await reader.read(Lane.STATIC)) == {
        "nvidia_driver_version": "580.159.04",
        "nvidia_library_version": "13.580.159.04",
        "nvidia_cuda_version": "13.0",
        "nvidia_confidential_environment": "production",
        "nvidia_confidential_computing": "enabled",
        "nvidia_confidential_devtools": "off",
        "nvidia_confidential_multi_gpu": "protected_pcie",
        "nvidia_confidential_gpus_ready": 1,
    }
    assert own(await reader.read(Lane.FAST)) == {"nvidia_devices": 8, "nvidia_driver_state": "ok"}


async def test_views_have_uuid_and_pci_address(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.FAST)
    for index, fake_gpu in enumerate(fake.scenario.devices):
        view = device(round_, index).view
        assert view is not None
        assert (view.kind, view.side) == (ViewKind.GPU, Side.HOST)
        assert view.key == f"gpu/{fake_gpu.uuid}"
        assert view.pci_address == f"0000:{0x1B + 0x10 * index:02x}:00.0"


async def test_every_metric_of_a_gpu_is_read_on_its_lane(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW):
        sample = device(await reader.read(lane), 2)
        answered = set(sample.values) | {value.metric for value in sample.dims}
        rows = [metric for metric in CATALOGUE.values() if Subject.GPU in metric.subjects and metric.lane == lane]
        assert answered == {metric.name for metric in rows if metric.role is None}


async def test_measured_zero_is_zero_and_no_fan_is_not_supported(fake: FakeNvml, start: Start) -> None:
    idle = device(await start(fake).read(Lane.FAST), 0)
    assert idle.values["gpu_utilization_ratio"] == 0
    assert idle.values["gpu_ecc_uncorrected_errors_total"] == 0
    assert dim(idle, "gpu_fan_speed_ratio") == {"0": Absent(Reason.NOT_SUPPORTED, "nvmlDeviceGetNumFans")}


async def test_speed_of_each_fan(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].numbers |= {f"{G}NumFans": 3, f"{G}FanSpeed,0": 30, f"{G}FanSpeed,2": 0}
    fake.apply()
    assert dim(device(await start(fake).read(Lane.FAST), 1), "gpu_fan_speed_ratio") == {
        "0": 0.3,
        "1": Absent(Reason.NOT_SUPPORTED, "nvmlDeviceGetFanSpeed_v2"),
        "2": 0,
    }


async def test_each_pass_measures_again(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    before = device(await reader.read(Lane.FAST), 4)
    fake.scenario.devices[4].numbers[f"{G}PowerUsage"] = 123_456
    fake.apply()
    after = device(await reader.read(Lane.FAST), 4)
    assert after.values["gpu_power_watts"] == 123.456
    assert after.measured_at > before.measured_at
    assert after.driver_session == before.driver_session != 0


async def test_unsupported_call_is_made_once_per_attachment(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    for _ in range(3):
        await reader.read(Lane.FAST)
    assert fake.calls()[(f"{G}NumFans", 2)] == 1
    assert fake.calls()[(f"{G}PowerUsage", 2)] == 3
    await reader.read(Lane.STATIC)
    await reader.read(Lane.FAST)
    assert fake.calls()[(f"{G}NumFans", 2)] == 2
