"""Call groups: every value of the scenario appears in its catalogue row and unit."""

import pytest

from gpufleet.fleet.ecc import ECC_COUNTS
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.view import normalise_pci_address
from gpufleet.readers.nvml.calls import LABELS
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import LINKS, UINT, Device, Field, bus_id, linked_gpu
from tests.readers.nvml.rig import Start, device, dim, dims, own

G = "nvmlDeviceGet"
INDICES = range(8)


def field(fake_gpu: Device, id_: int, scope: int | None = None) -> int:
    """Return a field value of the scenario."""
    return int(fake_gpu.fields[id_ if scope is None else (id_, scope)].value)


def number(fake_gpu: Device, key: str) -> int:
    """Return a number of the scenario."""
    found = fake_gpu.numbers[key]
    assert found is not None
    return found


@pytest.fixture
def superchips(fake: FakeNvml) -> FakeNvml:
    """Return a machine with eight GPUs on modules with a CPU."""
    for index, each in enumerate(fake.scenario.devices):
        each.become_superchip(index)
    fake.apply()
    return fake


async def test_temperature_thresholds(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.STATIC)
    for index, fake_gpu in enumerate(fake.scenario.devices):
        static = device(round_, index)
        assert dim(static, "gpu_temperature_threshold_celsius") == {
            name: number(fake_gpu, f"{G}TemperatureThreshold,{at}")
            for at, name in enumerate(("shutdown", "slowdown", "memory_max", "gpu_max"))
        }
        margins = dim(static, "gpu_temperature_margin_threshold_celsius")
        assert margins == {
            name: field(fake_gpu, 193 + at) for at, name in enumerate(("shutdown", "slowdown", "memory_max", "gpu_max"))
        }
        assert margins["shutdown"] == -7 - 3 * index  # negative, not 4294967289


async def test_power_of_board_and_module(superchips: FakeNvml, start: Start) -> None:
    reader = start(superchips)
    fast, slow, static = [await reader.read(lane) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)]
    for index, fake_gpu in enumerate(superchips.scenario.devices):
        values = device(fast, index).values | device(slow, index).values | device(static, index).values
        assert values["gpu_power_average_watts"] == field(fake_gpu, 185) / 1000
        assert values["gpu_power_instant_watts"] == field(fake_gpu, 186) / 1000
        assert values["gpu_module_power_average_watts"] == field(fake_gpu, 185, 1) / 1000
        assert values["gpu_module_power_watts"] == field(fake_gpu, 186, 1) / 1000
        assert values["gpu_module_power_limit_watts"] == field(fake_gpu, 190, 1) / 1000
        assert values["gpu_module_power_default_limit_watts"] == field(fake_gpu, 189, 1) / 1000
        assert values["gpu_module_power_requested_limit_watts"] == field(fake_gpu, 192, 1) / 1000
        assert values["gpu_module_power_limit_min_watts"] == field(fake_gpu, 187, 1) / 1000
        assert values["gpu_module_power_limit_max_watts"] == field(fake_gpu, 188, 1) / 1000
        assert values["gpu_memory_power_average_watts"] == field(fake_gpu, 185, 2) / 1000
        assert values["gpu_memory_power_watts"] == field(fake_gpu, 186, 2) / 1000
        assert values["gpu_power_requested_limit_watts"] == field(fake_gpu, 192) / 1000
        assert values["gpu_power_limit_min_watts"] == field(fake_gpu, 187) / 1000
        assert values["gpu_power_limit_max_watts"] == field(fake_gpu, 188) / 1000


async def test_board_without_a_module_has_no_module_power(fake: FakeNvml, start: Start) -> None:
    values = device(await start(fake).read(Lane.FAST), 1).values
    assert values["gpu_module_power_watts"] == Absent(Reason.NOT_SUPPORTED, "FI 186")


async def test_changed_limits_are_reported_by_the_next_pass(fake: FakeNvml, start: Start) -> None:
    """Guards against reading a limit once and caching it, a known defect of other tools."""
    reader = start(fake)
    await reader.read(Lane.FAST)
    await reader.read(Lane.SLOW)
    fake_gpu = fake.scenario.devices[1]
    fake_gpu.numbers |= {f"{G}EnforcedPowerLimit": 400_000, f"{G}CurrPcieLinkGeneration": 1}
    fake_gpu.fields[192].value = 410_000
    fake.apply()
    fast, slow = device(await reader.read(Lane.FAST), 1).values, device(await reader.read(Lane.SLOW), 1).values
    assert (fast["gpu_power_limit_watts"], fast["gpu_pcie_link_generation"]) == (400, 1)
    assert slow["gpu_power_requested_limit_watts"] == 410


async def test_clock_event_durations(fake: FakeNvml, start: Start) -> None:
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
    for index, fake_gpu in enumerate(fake.scenario.devices):
        times = dim(device(round_, index), "gpu_clock_event_seconds_total")
        assert times == {name: field(fake_gpu, id_) / 1e9 for name, id_ in ids.items()}
    assert set(dim(device(round_, 0), "gpu_clock_event_seconds_total").values()) == {0}


async def test_maximum_clocks_and_supported_clock_events(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.STATIC)
    for index, fake_gpu in enumerate(fake.scenario.devices):
        static = device(round_, index)
        assert static.values["gpu_graphics_clock_max_hertz"] == number(fake_gpu, f"{G}MaxClockInfo,0") * 1_000_000
        assert static.values["gpu_memory_clock_max_hertz"] == number(fake_gpu, f"{G}MaxClockInfo,2") * 1_000_000
        assert dim(static, "gpu_clock_event_supported") == {
            name: int(bit != 1 << index) for name, bit in CLOCK_EVENT_REASONS
        }


async def test_fan_speeds_in_rpm(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].numbers |= {f"{G}NumFans": 2, f"{G}FanSpeedRPM,0": 1234, f"{G}FanSpeedRPM,1": 0}
    fake.apply()
    round_ = await start(fake).read(Lane.SLOW)
    assert dim(device(round_, 1), "gpu_fan_speed_rpm") == {"0": 1234, "1": 0}
    assert dim(device(round_, 0), "gpu_fan_speed_rpm") == {"0": Absent(Reason.NOT_SUPPORTED, "fan turns")}


async def test_impossible_fan_count_is_no_data(fake: FakeNvml, start: Start) -> None:
    """Querying each of the fans would never end."""
    fake.scenario.devices[1].numbers[f"{G}NumFans"] = 0xFFFFFFFF
    fake.apply()
    reader = start(fake)
    none = {"0": Absent(Reason.NO_DATA, f"{G}NumFans")}
    fast, slow = await reader.read(Lane.FAST), await reader.read(Lane.SLOW)
    assert dim(device(fast, 1), "gpu_fan_speed_ratio") == none
    assert {value.reason for value in dim(device(slow, 1), "gpu_fan_speed_rpm").values()} == {Reason.NO_DATA}  # type: ignore[union-attr]
    assert device(fast, 1).values["gpu_state"] == "ok"


async def test_board_modes_and_sizes(superchips: FakeNvml, start: Start) -> None:
    reader = start(superchips)
    static, slow = await reader.read(Lane.STATIC), await reader.read(Lane.SLOW)
    on = ("disabled", "enabled")
    for index, fake_gpu in enumerate(superchips.scenario.devices):
        values = device(static, index).values
        assert values["gpu_accounting_mode"] == on[index % 2]
        is_attached, is_active = (index + 1) % 2, index // 2 % 2
        unproven = Absent(Reason.NO_DATA, "gpu_display_attached")
        assert values["gpu_display_attached"] == (unproven if is_attached and not is_active else on[is_attached])
        assert values["gpu_display_active"] == on[is_active]
        assert values["gpu_gsp_firmware_mode"] == "enabled"
        assert values["gpu_addressing_mode"] == "ats"
        assert values["gpu_memory_numa_node"] == 2 + index
        assert values["gpu_cuda_cores"] == number(fake_gpu, f"{G}NumGpuCores")
        assert values["gpu_memory_bus_width"] == number(fake_gpu, f"{G}MemoryBusWidth")
        assert values["gpu_ecc_mode_pending"] == "enabled"
        assert device(slow, index).values["gpu_mig_mode_pending"] == "disabled"


async def test_pending_modes_differ_from_current_ones(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].numbers |= {f"{G}MigMode_pending": 1, f"{G}EccMode_pending": 0}
    fake.apply()
    reader = start(fake)
    slow, static = device(await reader.read(Lane.SLOW), 1).values, device(await reader.read(Lane.STATIC), 1).values
    assert (slow["gpu_mig_mode"], slow["gpu_mig_mode_pending"]) == ("disabled", "enabled")
    assert (static["gpu_ecc_mode"], static["gpu_ecc_mode_pending"]) == ("enabled", "disabled")


async def test_rack_location(superchips: FakeNvml, start: Start) -> None:
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
    for index, fake_gpu in enumerate(fake.scenario.devices):
        for counter, metric in enumerate(("gpu_ecc_location_errors_total", "gpu_ecc_location_lifetime_errors_total")):
            assert dims(device(round_, index), metric) == {
                (place, severity): number(fake_gpu, f"{G}MemoryErrorCounter,{s},{counter},{at}")
                for at, place in ((2, "dram"), (7, "sram"))
                for s, severity in enumerate(("corrected", "uncorrected"))
            }
    assert set(dims(device(round_, 0), "gpu_ecc_location_errors_total").values()) == {0}


async def test_without_ecc_error_locations_are_absent_once(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].disable_ecc()
    fake.apply()
    slow = device(await start(fake).read(Lane.SLOW), 1)
    why = Absent(Reason.NOT_SUPPORTED, f"{G}MemoryErrorCounter")
    assert dims(slow, "gpu_ecc_location_errors_total") == {
        ("l1_cache", "corrected"): why,
        ("l1_cache", "uncorrected"): why,
    }


async def test_sram_errors(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    for index, fake_gpu in enumerate(fake.scenario.devices):
        slow = device(round_, index)
        (counts,) = fake_gpu.rows[f"{G}SramEccErrorStatus"]
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


async def test_pending_repairs_and_unrepairable_memory(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    for index, fake_gpu in enumerate(fake.scenario.devices):
        values = device(round_, index).values
        assert values["gpu_channel_repair_pending"] == number(fake_gpu, f"{G}RepairStatus_channel") == (index + 1) % 2
        assert values["gpu_tpc_repair_pending"] == number(fake_gpu, f"{G}RepairStatus_tpc") == index // 2 % 2
        assert values["gpu_unrepairable_memory"] == number(fake_gpu, f"{G}UnrepairableMemoryFlag") == index // 4


async def test_row_remapping_and_retired_pages(fake: FakeNvml, start: Start) -> None:
    """Newer chips have no retired pages: the metric is absent, not 0 and not the number of remapped rows."""
    fake.scenario.driver = "610.43.02"
    fake.apply()
    round_ = await start(fake).read(Lane.SLOW)
    for index, fake_gpu in enumerate(fake.scenario.devices):
        slow = device(round_, index)
        (banks,) = fake_gpu.rows[f"{G}RowRemapperHistogram"]
        assert dim(slow, "gpu_row_remap_banks") == dict(
            zip(("max", "high", "partial", "low", "none"), banks, strict=True)
        )
        assert dim(slow, "gpu_remapped_rows_inactive") == {"correctable": 6 + index, "uncorrectable": 16 + index}
        assert dim(slow, "gpu_retired_pages") == {"single_bit": Absent(Reason.NOT_SUPPORTED, "FI 29")}
        assert slow.values["gpu_retired_pages_pending"] == Absent(Reason.NOT_SUPPORTED, "FI 31")


async def test_pcie_bytes_and_errors(fake: FakeNvml, start: Start) -> None:
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
    for index, fake_gpu in enumerate(fake.scenario.devices):
        assert device(fast, index).values["gpu_pcie_transmit_bytes_total"] == field(fake_gpu, 197)
        assert device(fast, index).values["gpu_pcie_receive_bytes_total"] == field(fake_gpu, 198)
        assert dim(device(slow, index), "gpu_pcie_errors_total") == {
            k: field(fake_gpu, id_) for k, id_ in kinds.items()
        }


def test_blocking_pcie_throughput_call_is_never_made() -> None:
    assert not [label for label in LABELS if "PcieThroughput" in label or "ViolationStatus" in label]


async def test_nvlink_totals_cover_all_links(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    fast, slow, static = [await reader.read(lane) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)]
    for index, fake_gpu in enumerate(fake.scenario.devices):
        every = 0xFFFFFFFF
        assert device(fast, index).values["gpu_nvlink_transmit_bytes_total"] == field(fake_gpu, 138, every) * 1024
        assert device(fast, index).values["gpu_nvlink_receive_bytes_total"] == field(fake_gpu, 139, every) * 1024
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
        direct = [linked_gpu(index, link) for link in range(LINKS - index - switches)]
        assert dim(device(static, index), "gpu_nvlink_gpu_links") == {
            normalise_pci_address(bus_id(other)): direct.count(other) for other in direct
        }


async def test_address_of_a_linked_gpu_is_checked(fake: FakeNvml, start: Start) -> None:
    first, second, third = fake.scenario.devices[:3]
    first.texts["nvmlDeviceGetNvLinkRemotePciInfo_v2,0"] = "none"
    second.texts["nvmlDeviceGetNvLinkRemotePciInfo_v2,0"] = None
    third.numbers |= {f"nvmlDeviceGetNvLinkRemoteDeviceType,{link}": 2 for link in range(LINKS)}
    fake.apply()
    static = await start(fake).read(Lane.STATIC)
    found = [dim(device(static, index), "gpu_nvlink_gpu_links") for index in range(3)]
    assert isinstance(found[0]["unknown"], Absent)
    assert found[0]["unknown"].reason is Reason.INVALID_VALUE
    assert found[1:] == [{}, {}]  # not supported; no link to a GPU


async def test_values_of_each_nvlink(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    for index, fake_gpu in enumerate(fake.scenario.devices):
        slow = device(round_, index)
        links = range(LINKS)
        assert dim(slow, "gpu_nvlink_up") == {str(link): int(link < LINKS - index) for link in links}
        assert dim(slow, "gpu_nvlink_speed_bytes_per_second") == {
            str(link): field(fake_gpu, 164, link) * 1_000_000 for link in links
        }
        assert dim(slow, "gpu_nvlink_link_transmit_bytes_total") == {
            str(link): field(fake_gpu, 138, link) * 1024 for link in links
        }
        assert dim(slow, "gpu_nvlink_link_receive_bytes_total") == {
            str(link): field(fake_gpu, 139, link) * 1024 for link in links
        }
        assert dims(slow, "gpu_nvlink_errors_total") == {
            (str(link), kind): field(fake_gpu, id_, link)
            for kind, id_ in (("replay", 161), ("recovery", 162), ("crc", 163))
            for link in links
        }


async def test_nvlink_counters_of_blackwell(fake: FakeNvml, start: Start) -> None:
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
    ("packed", "value"),
    [
        *[(0, 0.0), (0xF00, Reason.INVALID_VALUE), (0x10C, 1e-12), (0x1000, Reason.INVALID_VALUE)],
        *[(0x1FF, 1e-255), (0xFFE, 1.5e-253), (0xFFF, Reason.NO_DATA)],
    ],
)
async def test_packed_bit_error_ratio_is_decoded(
    fake: FakeNvml, start: Start, packed: int, value: float | Reason
) -> None:
    fake.scenario.devices[1].become_blackwell()
    fake.scenario.devices[1].fields[220, 5] = Field(packed, UINT)
    fake.apply()
    found = dims(device(await start(fake).read(Lane.SLOW), 1), "gpu_nvlink_bit_error_ratio")["5", "effective"]
    assert found == (Absent(value, "FI 220") if isinstance(value, Reason) else value)


async def test_board_without_nvlink_is_absent_and_queried_once(fake: FakeNvml, start: Start) -> None:
    fake_gpu = fake.scenario.devices[1]
    fake_gpu.numbers |= dict.fromkeys(key for key in fake_gpu.numbers if "NvLink" in key)
    del fake_gpu.fields[91]
    fake.apply()
    reader = start(fake)
    slow, static = device(await reader.read(Lane.SLOW), 1), device(await reader.read(Lane.STATIC), 1)
    assert slow.values["gpu_nvlinks"] == Absent(Reason.NOT_SUPPORTED, f"{G}FieldValues")
    first = next(value for value in slow.dims if value.metric == "gpu_nvlink_errors_total")
    assert first.labels == ("0", "replay")
    assert sum(value.metric.startswith("gpu_nvlink") for value in slow.dims) == 6
    assert static.values["gpu_nvlink_version"] == Absent(Reason.NOT_SUPPORTED, f"{G}FieldValues")
    await reader.read(Lane.SLOW)  # the static pass had reattached the GPU
    calls_before = fake.calls()[(f"{G}FieldValues", 1)]
    await reader.read(Lane.SLOW)
    assert fake.calls()[(f"{G}FieldValues", 1)] - calls_before == 1  # the batch of the lane
    assert not fake.calls()[(f"{G}NvLinkState", 1)]


async def test_links_that_answer_are_not_links_of_the_board(fake: FakeNvml, start: Start) -> None:
    """A board without NVLink answers that each link is down; a board with four answers for eighteen."""
    for index, links in ((1, 0), (2, 4)):
        fake_gpu = fake.scenario.devices[index]
        fake_gpu.fields[91] = Field(links)
        fake_gpu.numbers |= {f"{G}NvLinkState,{link}": int(link < 3 and links > 0) for link in range(LINKS)}
    fake.apply()
    reader = start(fake)
    slow, static = await reader.read(Lane.SLOW), await reader.read(Lane.STATIC)
    none, four = device(slow, 1), device(slow, 2)
    why = Absent(Reason.NOT_SUPPORTED, f"{G}FieldValues")
    assert (none.values["gpu_nvlinks"], none.values["gpu_nvlinks_active"]) == (why, why)
    assert device(static, 1).values["gpu_nvlink_version"] == why
    for metric in ("gpu_nvlink_up", "gpu_nvlink_speed_bytes_per_second"):
        assert dim(none, metric) == {"0": why}
    assert (four.values["gpu_nvlinks"], four.values["gpu_nvlinks_active"]) == (4, 3)
    assert dim(four, "gpu_nvlink_up") == {"0": 1, "1": 1, "2": 1, "3": 0}


async def test_zero_traffic_of_a_board_without_nvlink_is_no_value(fake: FakeNvml, start: Start) -> None:
    fake_gpu = fake.scenario.devices[1]
    fake_gpu.fields |= {91: Field(0), 147: Field(0), (138, 0xFFFFFFFF): Field(0), (139, 0xFFFFFFFF): Field(0)}
    fake.apply()
    reader = start(fake)
    fast, slow = await reader.read(Lane.FAST), await reader.read(Lane.SLOW)
    values = device(fast, 1).values | device(slow, 1).values
    for name in ("gpu_nvlink_transmit_bytes_total", "gpu_nvlink_receive_bytes_total", "gpu_nvswitch_links"):
        assert values[name] == Absent(Reason.NOT_SUPPORTED, name)
    others = device(fast, 2).values | device(slow, 2).values
    assert others["gpu_nvlink_transmit_bytes_total"] == field(fake.scenario.devices[2], 138, 0xFFFFFFFF) * 1024


@pytest.mark.parametrize("mode", [0, None])
async def test_zero_errors_without_ecc_are_no_values(fake: FakeNvml, start: Start, mode: int | None) -> None:
    """The driver answers the SRAM counts with zeros while ECC is off, or where the board has none."""
    fake.scenario.devices[1].numbers |= {f"{G}EccMode_current": mode, f"{G}EccMode_pending": mode}
    fake.apply()
    reader = start(fake)
    fast, slow = await reader.read(Lane.FAST), await reader.read(Lane.SLOW)
    for each, count in ((device(fast, 1), 2), (device(slow, 1), 20)):
        found = {name: value for name, value in each.values.items() if name in ECC_COUNTS}
        found |= {f"{one.metric} {one.labels}": one.value for one in each.dims if one.metric in ECC_COUNTS}
        assert len(found) >= count
        assert {value.reason for value in found.values() if isinstance(value, Absent)} == {Reason.NOT_SUPPORTED}
        assert all(isinstance(value, Absent) for value in found.values())
    assert isinstance(device(slow, 2).values["gpu_sram_threshold_exceeded"], int)


async def test_zero_errors_with_an_unreadable_ecc_mode_are_no_values(fake: FakeNvml, start: Start) -> None:
    """A count above zero proves that the zeros beside it were counted."""
    fake.scenario.fault(f"{G}EccMode", gpu=1, code=999)
    fake.scenario.fault(f"{G}EccMode", gpu=2, code=999)
    fake.scenario.devices[1].numbers |= {f"{G}TotalEccErrors,0,0": 0, f"{G}TotalEccErrors,1,0": 0}
    fake.scenario.devices[2].numbers |= {f"{G}TotalEccErrors,0,0": 3, f"{G}TotalEccErrors,1,0": 0}
    fake.apply()
    fast = await start(fake).read(Lane.FAST)
    corrected, uncorrected = "gpu_ecc_corrected_errors_total", "gpu_ecc_uncorrected_errors_total"
    why = Absent(Reason.DRIVER_ERROR, f"{G}EccMode(current)")
    assert [device(fast, 1).values[name] for name in (corrected, uncorrected)] == [why, why]
    assert [device(fast, 2).values[name] for name in (corrected, uncorrected)] == [3, 0]


async def test_unknown_number_of_links_is_queried_again(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].fields[91] = Field(code=999)
    fake.apply()
    reader = start(fake)
    found = device(await reader.read(Lane.SLOW), 1).values["gpu_nvlinks"]
    assert found == Absent(Reason.DRIVER_ERROR, f"{G}FieldValues: UNKNOWN")
    fake.scenario.devices[1].fields[91] = Field(LINKS)
    fake.apply()
    assert device(await reader.read(Lane.SLOW), 1).values["gpu_nvlinks"] == LINKS


async def test_chip_to_chip_links(superchips: FakeNvml, start: Start) -> None:
    reader = start(superchips)
    slow, static = await reader.read(Lane.SLOW), await reader.read(Lane.STATIC)
    for index, fake_gpu in enumerate(superchips.scenario.devices):
        assert device(static, index).values["gpu_c2c_enabled"] == (index + 1) % 2
        links = (0, 1)
        assert dim(device(slow, index), "gpu_c2c_link_up") == {str(n): field(fake_gpu, 171, n) for n in links}
        assert dim(device(slow, index), "gpu_c2c_link_speed_bytes_per_second") == {
            str(n): field(fake_gpu, 172, n) * 1_000_000 for n in links
        }
        assert dims(device(slow, index), "gpu_c2c_errors_total") == {
            (str(n), kind): field(fake_gpu, id_, n)
            for kind, id_ in (("interrupt", 231), ("replay", 232), ("replay_back_to_back", 233))
            for n in links
        }


async def test_board_without_chip_to_chip_links_has_no_readings(superchips: FakeNvml, start: Start) -> None:
    for fake_gpu in superchips.scenario.devices:
        fake_gpu.fields[170] = Field(0)
        fake_gpu.numbers["nvmlDeviceGetC2cModeInfoV"] = 0
    superchips.apply()
    reader = start(superchips)
    static, slow = [device(await reader.read(lane), 0) for lane in (Lane.STATIC, Lane.SLOW)]
    assert static.values["gpu_c2c_enabled"] == Absent(Reason.NOT_SUPPORTED, "nvmlDeviceGetFieldValues")
    absent = {one.metric: one.value for one in slow.dims if one.metric.startswith("gpu_c2c")}
    assert len(absent) == 3
    assert {one.reason for one in absent.values() if isinstance(one, Absent)} == {Reason.NOT_SUPPORTED}


async def test_fabric_state_and_health(superchips: FakeNvml, start: Start) -> None:
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


async def test_fabric_details_are_absent_before_joining(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].rows[f"{G}GpuFabricInfoV"] = [(2, 999, 77, 0xFFFF, 2, 0x20)]
    fake.scenario.devices[2].rows[f"{G}GpuFabricInfoV"] = [(3, 15, 5, 0, 0, 0)]
    fake.apply()
    round_ = await start(fake).read(Lane.SLOW)
    joining, failed = device(round_, 1), device(round_, 2)
    info = f"{G}GpuFabricInfoV(v3)"
    assert joining.values["gpu_fabric_state"] == "in_progress"
    for name in ("gpu_fabric_status", "gpu_fabric_clique", "gpu_fabric_cluster_uuid"):
        assert joining.values[name] == Absent(Reason.NO_DATA, info)
    assert joining.values["gpu_fabric_health_status"] == Absent(Reason.NO_DATA, "gpu_fabric_state")
    assert set(dim(joining, "gpu_fabric_health").values()) == {Absent(Reason.NO_DATA, "gpu_fabric_state")}
    assert failed.values["gpu_fabric_status"] == "GPU_IS_LOST"
    for name in ("gpu_fabric_incorrect_configuration", "gpu_fabric_health_status"):
        assert failed.values[name] == Absent(Reason.NOT_SUPPORTED, name)


async def test_gpu_outside_a_fabric_has_no_state_of_one(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].rows[f"{G}GpuFabricInfoV"] = [(0, 0, 0, 0, 0, 0)]
    fake.apply()
    slow = device(await start(fake).read(Lane.SLOW), 1)
    found = {name: value for name, value in slow.values.items() if name.startswith("gpu_fabric_")}
    assert len(found) == 6
    assert {value.reason if isinstance(value, Absent) else None for value in found.values()} == {Reason.NOT_SUPPORTED}
    assert found["gpu_fabric_state"] == Absent(Reason.NOT_SUPPORTED, "gpu_fabric_state")


async def test_confidential_computing_of_devices(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.SLOW)
    for index, fake_gpu in enumerate(fake.scenario.devices):
        values = device(round_, index).values
        size = f"{G}ConfComputeMemSizeInfo"
        assert values["gpu_protected_memory_total_bytes"] == number(fake_gpu, f"{size}_protected") * 1024
        assert values["gpu_unprotected_memory_total_bytes"] == number(fake_gpu, f"{size}_unprotected") * 1024
        used = number(fake_gpu, f"{G}ConfComputeProtectedMemoryUsage_used")
        assert values["gpu_protected_memory_used_bytes"] == used


async def test_gpus_without_confidential_computing_lack_its_state(fake: FakeNvml, start: Start) -> None:
    system = fake.scenario.devices[0].numbers
    system |= {f"nvmlSystemGetConfComputeState_{name}": 0 for name in ("environment", "feature", "devtools")}
    system |= {"nvmlSystemGetConfComputeSettings_multi_gpu": 0, "nvmlSystemGetConfComputeGpusReadyState": 0}
    for one in fake.scenario.devices:
        one.numbers |= {f"{G}ConfComputeMemSizeInfo_protected": 0, f"{G}ConfComputeProtectedMemoryUsage_used": 0}
    fake.apply()
    reader = start(fake)
    machine = own(await reader.read(Lane.STATIC))
    assert machine["nvidia_confidential_computing"] == "disabled"
    assert machine["nvidia_confidential_gpus_ready"] == Absent(Reason.NOT_SUPPORTED, "nvidia_confidential_computing")
    slow = device(await reader.read(Lane.SLOW), 0).values
    sizes = {name: value for name, value in slow.items() if "protected_memory" in name}
    assert len(sizes) == 3
    assert {value.reason if isinstance(value, Absent) else None for value in sizes.values()} == {Reason.NOT_SUPPORTED}
