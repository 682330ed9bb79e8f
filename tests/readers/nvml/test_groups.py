"""Every group of calls, value by value: what the scenario says is what the catalogue's rows say, in their units."""

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.readers.nvml.calls import LABELS
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import LINKS, UINT, Device, Field
from tests.readers.nvml.rig import Start, device, dim, dims

G = "nvmlDeviceGet"
INDICES = range(8)


def field(said: Device, id_: int, scope: int | None = None) -> int:
    """Return a field value of the scenario."""
    return int(said.fields[id_ if scope is None else (id_, scope)].value)


def number(said: Device, key: str) -> int:
    """Return a number of the scenario."""
    found = said.numbers[key]
    assert found is not None
    return found


@pytest.fixture
def superchips(fake: FakeNvml) -> FakeNvml:
    """Give eight GPUs on modules with a CPU."""
    for index, each in enumerate(fake.scenario.devices):
        each.become_superchip(index)
    fake.apply()
    return fake


async def test_temperatures_at_which_the_gpu_acts(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.STATIC)
    for index, said in enumerate(fake.scenario.devices):
        static = device(round_, index)
        assert dim(static, "gpu_temperature_threshold_celsius") == {
            name: number(said, f"{G}TemperatureThreshold,{at}")
            for at, name in enumerate(("shutdown", "slowdown", "memory_max", "gpu_max"))
        }
        margins = dim(static, "gpu_temperature_margin_threshold_celsius")
        assert margins == {
            name: field(said, 193 + at) for at, name in enumerate(("shutdown", "slowdown", "memory_max", "gpu_max"))
        }
        assert margins["shutdown"] == -7 - 3 * index  # below zero as the driver says it, not 4294967289


async def test_power_of_board_and_module(superchips: FakeNvml, start: Start) -> None:
    reader = start(superchips)
    fast, slow, static = [await reader.read(lane) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)]
    for index, said in enumerate(superchips.scenario.devices):
        values = device(fast, index).values | device(slow, index).values | device(static, index).values
        assert values["gpu_power_average_watts"] == field(said, 185) / 1000
        assert values["gpu_power_instant_watts"] == field(said, 186) / 1000
        assert values["gpu_module_power_average_watts"] == field(said, 185, 1) / 1000
        assert values["gpu_module_power_watts"] == field(said, 186, 1) / 1000
        assert values["gpu_module_power_limit_watts"] == field(said, 190, 1) / 1000
        assert values["gpu_power_requested_limit_watts"] == field(said, 192) / 1000
        assert values["gpu_power_limit_min_watts"] == field(said, 187) / 1000
        assert values["gpu_power_limit_max_watts"] == field(said, 188) / 1000


async def test_a_board_without_a_module_has_no_module_power(fake: FakeNvml, start: Start) -> None:
    values = device(await start(fake).read(Lane.FAST), 1).values
    assert values["gpu_module_power_watts"] == Absent(Reason.NOT_SUPPORTED, "FI 186")


async def test_what_an_administrator_changes_shows_in_the_next_round(fake: FakeNvml, start: Start) -> None:
    """A limit that is read once and kept is another tool's known defect."""
    reader = start(fake)
    await reader.read(Lane.FAST)
    await reader.read(Lane.SLOW)
    said = fake.scenario.devices[1]
    said.numbers |= {f"{G}EnforcedPowerLimit": 400_000, f"{G}CurrPcieLinkGeneration": 1}
    said.fields[192].value = 410_000
    fake.apply()
    fast, slow = device(await reader.read(Lane.FAST), 1).values, device(await reader.read(Lane.SLOW), 1).values
    assert (fast["gpu_power_limit_watts"], fast["gpu_pcie_link_generation"]) == (400, 1)
    assert slow["gpu_power_requested_limit_watts"] == 410


async def test_time_for_which_clocks_were_held_down(fake: FakeNvml, start: Start) -> None:
    ids = {
        "sw_power_cap": 74,
        "thermal": 75,
        "sync_boost": 76,
        "board_limit": 77,
        "low_utilization": 78,
        "reliability": 79,
        "applications_clocks": 80,
        "base_clocks": 81,
        "sw_thermal": 269,
        "hw_thermal": 270,
        "hw_power_brake": 271,
    }
    round_ = await start(fake).read(Lane.SLOW)
    for index, said in enumerate(fake.scenario.devices):
        times = dim(device(round_, index), "gpu_clock_event_seconds_total")
        assert times == {name: field(said, id_) / 1e9 for name, id_ in ids.items()}
    assert set(dim(device(round_, 0), "gpu_clock_event_seconds_total").values()) == {0}


async def test_clocks_and_what_the_gpu_can_say_of_them(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.STATIC)
    for index, said in enumerate(fake.scenario.devices):
        static = device(round_, index)
        assert static.values["gpu_graphics_clock_max_hertz"] == number(said, f"{G}MaxClockInfo,0") * 1_000_000
        assert static.values["gpu_memory_clock_max_hertz"] == number(said, f"{G}MaxClockInfo,2") * 1_000_000
        assert dim(static, "gpu_clock_event_supported") == {
            name: int(bit != 1 << index) for name, bit in CLOCK_EVENT_REASONS
        }


async def test_fans_turn(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].numbers |= {f"{G}NumFans": 2, f"{G}FanSpeedRPM,0": 1234, f"{G}FanSpeedRPM,1": 0}
    fake.apply()
    round_ = await start(fake).read(Lane.SLOW)
    assert dim(device(round_, 1), "gpu_fan_speed_rpm") == {"0": 1234, "1": 0}
    assert dim(device(round_, 0), "gpu_fan_speed_rpm") == {"0": Absent(Reason.NOT_SUPPORTED, "fan turns")}


async def test_a_number_of_fans_that_no_board_has_is_none(fake: FakeNvml, start: Start) -> None:
    """To ask each of them would take for ever."""
    fake.scenario.devices[1].numbers[f"{G}NumFans"] = 0xFFFFFFFF
    fake.apply()
    reader = start(fake)
    none = {"0": Absent(Reason.NO_DATA, f"{G}NumFans")}
    fast, slow = await reader.read(Lane.FAST), await reader.read(Lane.SLOW)
    assert dim(device(fast, 1), "gpu_fan_speed_ratio") == none
    assert {value.reason for value in dim(device(slow, 1), "gpu_fan_speed_rpm").values()} == {Reason.NO_DATA}  # type: ignore[union-attr]
    assert device(fast, 1).values["gpu_state"] == "ok"


async def test_modes_and_numbers_of_the_board(superchips: FakeNvml, start: Start) -> None:
    reader = start(superchips)
    static, slow = await reader.read(Lane.STATIC), await reader.read(Lane.SLOW)
    on = ("disabled", "enabled")
    for index, said in enumerate(superchips.scenario.devices):
        values = device(static, index).values
        assert values["gpu_accounting_mode"] == on[index % 2]
        assert values["gpu_display_attached"] == on[(index + 1) % 2]
        assert values["gpu_display_active"] == on[index // 2 % 2]
        assert values["gpu_gsp_firmware_mode"] == "enabled"
        assert values["gpu_addressing_mode"] == "ats"
        assert values["gpu_memory_numa_node"] == 2 + index
        assert values["gpu_cuda_cores"] == number(said, f"{G}NumGpuCores")
        assert values["gpu_memory_bus_width"] == number(said, f"{G}MemoryBusWidth")
        assert values["gpu_ecc_mode_pending"] == "enabled"
        assert device(slow, index).values["gpu_mig_mode_pending"] == "disabled"


async def test_pending_modes_are_their_own(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].numbers |= {f"{G}MigMode_pending": 1, f"{G}EccMode_pending": 0}
    fake.apply()
    reader = start(fake)
    slow, static = device(await reader.read(Lane.SLOW), 1).values, device(await reader.read(Lane.STATIC), 1).values
    assert (slow["gpu_mig_mode"], slow["gpu_mig_mode_pending"]) == ("disabled", "enabled")
    assert (static["gpu_ecc_mode"], static["gpu_ecc_mode_pending"]) == ("enabled", "disabled")


async def test_place_in_the_rack(superchips: FakeNvml, start: Start) -> None:
    round_ = await start(superchips).read(Lane.STATIC)
    for index in INDICES:
        values = device(round_, index).values
        serial = f"182092400{index:04d}"
        assert values["gpu_chassis_serial"] == serial
        assert values["gpu_chassis_slot"] == str(3 + index)
        assert values["gpu_tray_index"] == str(5 + index)
        assert values["gpu_host_id"] == str(1 + index)
        assert values["gpu_platform_module_id"] == str(7 + index)
        assert values["gpu_fabric_guid"] == "0x" + bytes(255 - byte for byte in serial.encode().ljust(16, b"\0")).hex()


async def test_ecc_errors_list_only_locations_of_the_chip(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    for index, said in enumerate(fake.scenario.devices):
        for counter, metric in enumerate(("gpu_ecc_location_errors_total", "gpu_ecc_location_lifetime_errors_total")):
            assert dims(device(round_, index), metric) == {
                (place, severity): number(said, f"{G}MemoryErrorCounter,{s},{counter},{at}")
                for at, place in ((2, "dram"), (7, "sram"))
                for s, severity in enumerate(("corrected", "uncorrected"))
            }
    assert set(dims(device(round_, 0), "gpu_ecc_location_errors_total").values()) == {0}


async def test_without_ecc_no_place_has_errors_and_that_is_told_once(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].disable_ecc()
    fake.apply()
    slow = device(await start(fake).read(Lane.SLOW), 1)
    why = Absent(Reason.NOT_SUPPORTED, f"{G}MemoryErrorCounter")
    assert dims(slow, "gpu_ecc_location_errors_total") == {
        ("l1_cache", "corrected"): why,
        ("l1_cache", "uncorrected"): why,
    }


async def test_errors_of_memory_on_the_chip(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    for index, said in enumerate(fake.scenario.devices):
        slow = device(round_, index)
        (counts,) = said.rows[f"{G}SramEccErrorStatus"]
        assert dim(slow, "gpu_sram_lifetime_errors_total") == dict(
            zip(("parity", "secded", "corrected"), counts[:3], strict=True)
        )
        assert dim(slow, "gpu_sram_errors_total") == dict(
            zip(("parity", "secded", "corrected"), counts[3:6], strict=True)
        )
        assert dim(slow, "gpu_sram_uncorrected_lifetime_errors_total") == dict(
            zip(("l2_cache", "sm", "pcie", "microcontroller", "other"), counts[6:11], strict=True)
        )
        assert slow.values["gpu_sram_threshold_exceeded"] == index % 2


async def test_spare_rows_and_pages(fake: FakeNvml, start: Start) -> None:
    """Retired pages are not what newer chips have: absent, never 0, and never the remapped rows' name."""
    fake.scenario.driver = "610.43.02"
    fake.apply()
    round_ = await start(fake).read(Lane.SLOW)
    for index, said in enumerate(fake.scenario.devices):
        slow = device(round_, index)
        (banks,) = said.rows[f"{G}RowRemapperHistogram"]
        assert dim(slow, "gpu_row_remap_banks") == dict(
            zip(("max", "high", "partial", "low", "none"), banks, strict=True)
        )
        assert dim(slow, "gpu_remapped_rows_inactive") == {"correctable": 6 + index, "uncorrectable": 16 + index}
        assert dim(slow, "gpu_retired_pages") == {"single_bit": Absent(Reason.NOT_SUPPORTED, "FI 29")}
        assert slow.values["gpu_retired_pages_pending"] == Absent(Reason.NOT_SUPPORTED, "FI 31")


async def test_pcie_counts_bytes_and_errors(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    fast, slow = await reader.read(Lane.FAST), await reader.read(Lane.SLOW)
    kinds = {
        "replay_rollover": 95,
        "l0_to_recovery": 169,
        "correctable": 173,
        "naks_received": 174,
        "receiver": 175,
        "bad_tlp": 176,
        "naks_sent": 177,
        "bad_dllp": 178,
        "non_fatal": 179,
        "fatal": 180,
        "unsupported_request": 181,
        "lcrc": 182,
        "lane": 183,
    }
    for index, said in enumerate(fake.scenario.devices):
        assert device(fast, index).values["gpu_pcie_transmit_bytes_total"] == field(said, 197)
        assert device(fast, index).values["gpu_pcie_receive_bytes_total"] == field(said, 198)
        assert dim(device(slow, index), "gpu_pcie_errors_total") == {k: field(said, id_) for k, id_ in kinds.items()}


def test_the_call_that_waits_for_pcie_traffic_is_never_made() -> None:
    assert not [label for label in LABELS if "PcieThroughput" in label or "ViolationStatus" in label]


async def test_nvlink_as_a_whole_is_all_links_and_not_the_first(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    fast, slow, static = [await reader.read(lane) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)]
    for index, said in enumerate(fake.scenario.devices):
        every = 0xFFFFFFFF
        assert device(fast, index).values["gpu_nvlink_transmit_bytes_total"] == field(said, 138, every) * 1024
        assert device(fast, index).values["gpu_nvlink_receive_bytes_total"] == field(said, 139, every) * 1024
        assert device(slow, index).values["gpu_nvlinks"] == LINKS
        assert device(slow, index).values["gpu_nvlinks_active"] == LINKS - index
        assert device(slow, index).values["gpu_nvswitch_links"] == 17 - index
        assert device(static, index).values["gpu_nvlink_version"] == "4.0"
        switches = max(LINKS - index - (index + 1), 0)
        assert dim(device(static, index), "gpu_nvlink_peers") == {
            "gpu": LINKS - index - switches,
            "npu": 0,
            "switch": switches,
            "unknown": 0,
        }


async def test_each_nvlink(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    for index, said in enumerate(fake.scenario.devices):
        slow = device(round_, index)
        links = range(LINKS)
        assert dim(slow, "gpu_nvlink_up") == {str(link): int(link < LINKS - index) for link in links}
        assert dim(slow, "gpu_nvlink_speed_bytes_per_second") == {
            str(link): field(said, 164, link) * 1_000_000 for link in links
        }
        assert dim(slow, "gpu_nvlink_link_transmit_bytes_total") == {
            str(link): field(said, 138, link) * 1024 for link in links
        }
        assert dim(slow, "gpu_nvlink_link_receive_bytes_total") == {
            str(link): field(said, 139, link) * 1024 for link in links
        }
        assert dims(slow, "gpu_nvlink_errors_total") == {
            (str(link), kind): field(said, id_, link)
            for kind, id_ in (("replay", 161), ("recovery", 162), ("crc", 163))
            for link in links
        }


async def test_nvlink_of_blackwell_counts_otherwise(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].become_blackwell()
    fake.apply()
    reader = start(fake)
    fast, slow = device(await reader.read(Lane.FAST), 1), device(await reader.read(Lane.SLOW), 1)
    assert fast.values["gpu_nvlink_transmit_bytes_total"] == Absent(Reason.NOT_SUPPORTED, "FI 138")
    assert dim(slow, "gpu_nvlink_link_transmit_bytes_total") == {str(n): 202_000_000 + n for n in range(LINKS)}
    assert dim(slow, "gpu_nvlink_link_receive_bytes_total") == {str(n): 204_000_000 + n for n in range(LINKS)}
    errors = dims(slow, "gpu_nvlink_errors_total")
    assert errors.pop(("0", "replay")) == Absent(Reason.NOT_SUPPORTED, "FI 161")
    assert len(errors) == 11 * LINKS
    assert errors["17", "symbol"] == 221_000_017
    assert errors["3", "recovery_failed"] == 214_000_003
    assert dims(slow, "gpu_nvlink_bit_error_ratio") == {
        (str(n), rate): float(f"{1 + n % 9}e-{first + n}")
        for rate, first in (("effective", 12), ("symbol", 14))
        for n in range(LINKS)
    }
    static = device(await reader.read(Lane.STATIC), 1)
    assert dims(static, "gpu_nvlink_corrected_total") == {
        (str(n), str(at)): (235 + at) * 10**6 + n for at in range(16) for n in range(LINKS)
    }


@pytest.mark.parametrize(
    ("packed", "value"), [(0, 0.0), (0xF00, Absent), (0x10C, 1e-12), (0x1000, Absent), (0x1FF, 1e-255)]
)
async def test_a_packed_ratio_is_no_number_of_its_own(
    fake: FakeNvml, start: Start, packed: int, value: float | type[Absent]
) -> None:
    fake.scenario.devices[1].become_blackwell()
    fake.scenario.devices[1].fields[220, 5] = Field(packed, UINT)
    fake.apply()
    found = dims(device(await start(fake).read(Lane.SLOW), 1), "gpu_nvlink_bit_error_ratio")["5", "effective"]
    assert found == (Absent(Reason.INVALID_VALUE, "FI 220") if value is Absent else value)


async def test_a_board_without_nvlink_says_so_once(fake: FakeNvml, start: Start) -> None:
    said = fake.scenario.devices[1]
    said.numbers |= dict.fromkeys(key for key in said.numbers if "NvLink" in key)
    fake.apply()
    reader = start(fake)
    slow, static = device(await reader.read(Lane.SLOW), 1), device(await reader.read(Lane.STATIC), 1)
    assert slow.values["gpu_nvlinks"] == Absent(Reason.NOT_SUPPORTED, f"{G}NvLinkState")
    first = next(value for value in slow.dims if value.metric == "gpu_nvlink_errors_total")
    assert first.labels == ("0", "replay")
    assert sum(value.metric.startswith("gpu_nvlink") for value in slow.dims) == 6
    assert static.values["gpu_nvlink_version"] == Absent(Reason.NOT_SUPPORTED, f"{G}NvLinkVersion")
    asked = fake.calls()[(f"{G}NvLinkState", 1)]
    await reader.read(Lane.SLOW)
    assert fake.calls()[(f"{G}NvLinkState", 1)] - asked <= 2  # the static pass before attached it anew


async def test_the_chip_to_chip_link(superchips: FakeNvml, start: Start) -> None:
    reader = start(superchips)
    slow, static = await reader.read(Lane.SLOW), await reader.read(Lane.STATIC)
    for index, said in enumerate(superchips.scenario.devices):
        assert device(static, index).values["gpu_c2c_enabled"] == (index + 1) % 2
        links = (0, 1)
        assert dim(device(slow, index), "gpu_c2c_link_up") == {str(n): field(said, 171, n) for n in links}
        assert dim(device(slow, index), "gpu_c2c_link_speed_bytes_per_second") == {
            str(n): field(said, 172, n) * 1_000_000 for n in links
        }
        assert dims(device(slow, index), "gpu_c2c_errors_total") == {
            (str(n), kind): field(said, id_, n)
            for kind, id_ in (("interrupt", 231), ("replay", 232), ("replay_back_to_back", 233))
            for n in links
        }


async def test_the_fabric(superchips: FakeNvml, start: Start) -> None:
    round_ = await start(superchips).read(Lane.SLOW)
    conditions = ("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery")
    configurations = ("none", "system_guid", "chassis_serial", "no_partition", "insufficient_nvlinks",
                      "incompatible_firmware", "invalid_location", "gpu_state")  # fmt: skip
    for index in INDICES:
        slow = device(round_, index)
        assert slow.values["gpu_fabric_state"] == "completed"
        assert slow.values["gpu_fabric_status"] == "SUCCESS"
        assert slow.values["gpu_fabric_clique"] == str(4711 + index)
        digits = bytes(range(0x20 + index, 0x30 + index)).hex()
        assert slow.values["gpu_fabric_cluster_uuid"] == "-".join(
            (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        )
        assert dim(slow, "gpu_fabric_health") == {
            **{name: int(at == index) for at, name in enumerate(conditions)},
            "partition_assigned": int(index == 4),
            "fabric_manager_disconnected": int(index == 5),
        }
        assert slow.values["gpu_fabric_incorrect_configuration"] == configurations[index]
        assert slow.values["gpu_fabric_health_status"] == ("healthy", "unhealthy", "limited_capacity")[index % 3]


async def test_a_fabric_that_is_not_joined_yet_tells_nothing_of_it(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].rows[f"{G}GpuFabricInfoV"] = [(2, 999, 77, 0xFFFF, 2, 0x20)]
    fake.scenario.devices[2].rows[f"{G}GpuFabricInfoV"] = [(3, 15, 5, 0, 0, 0)]
    fake.apply()
    round_ = await start(fake).read(Lane.SLOW)
    joining, failed = device(round_, 1), device(round_, 2)
    info = f"{G}GpuFabricInfoV(v3)"
    assert joining.values["gpu_fabric_state"] == "in_progress"
    for name in ("gpu_fabric_status", "gpu_fabric_clique", "gpu_fabric_cluster_uuid"):
        assert joining.values[name] == Absent(Reason.NO_DATA, info)
    assert joining.values["gpu_fabric_health_status"] == "not_reported"
    assert set(dim(joining, "gpu_fabric_health").values()) == {Absent(Reason.NOT_SUPPORTED, info)}
    assert failed.values["gpu_fabric_status"] == "GPU_IS_LOST"
    assert failed.values["gpu_fabric_incorrect_configuration"] == "not_reported"


async def test_confidential_computing_of_devices(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    for index, said in enumerate(fake.scenario.devices):
        values = device(round_, index).values
        size = f"{G}ConfComputeMemSizeInfo"
        assert values["gpu_protected_memory_total_bytes"] == number(said, f"{size}_protected") * 1024
        assert values["gpu_unprotected_memory_total_bytes"] == number(said, f"{size}_unprotected") * 1024
        used = number(said, f"{G}ConfComputeProtectedMemoryUsage_used")
        assert values["gpu_protected_memory_used_bytes"] == used
