"""Scenario of the fake driver: devices with their values, and faults of calls.

Keys are those of the C files in `library/`: the NVML function, `_` and the part for calls that return several values,
and the arguments after commas. A value of None, like a missing key, makes the call return NVML_ERROR_NOT_SUPPORTED.

    python -m tests.fakes.nvml.scenario FILE [GPUS]     writes a healthy scenario to FILE
"""

import functools
import re
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

CRASH = -1
"""Return code with which the library crashes the process."""

HANG, STUBBORN_HANG = -1, -2
"""Delays with which a call hangs until the fault is removed. With the second, SIGTERM is ignored."""

ANY_GPU = -1

DOUBLE, UINT, ULONG, ULONGLONG, SLONGLONG, SINT, USHORT = range(7)
"""nvmlValueType_t."""

_PACK = {
    DOUBLE: "<d",
    UINT: "<Ixxxx",
    ULONG: "<Q",
    ULONGLONG: "<Q",
    SLONGLONG: "<q",
    SINT: "<ixxxx",
    USHORT: "<Hxxxxxx",
}

MIG_FORBIDS = (
    "nvmlDeviceGetUtilizationRates_gpu",
    "nvmlDeviceGetUtilizationRates_memory",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization",
)
ECC_KEYS = tuple(f"nvmlDeviceGetTotalEccErrors,{kind},{counter}" for kind in (0, 1) for counter in (0, 1))
GUEST_LACKS = (
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetNumFans",
    "nvmlDeviceGetMaxClockInfo,1",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetRemappedRows_correctable",
    "nvmlDeviceGetRepairStatus_channel",
    "nvmlDeviceGetUnrepairableMemoryFlag",
    "nvmlGpmQueryDeviceSupport",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetGspFirmwareMode_enabled",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetMemoryBusWidth",
    *(f"nvmlDeviceGetTemperatureThreshold,{n}" for n in range(8)),
    *(f"nvmlDeviceGetNvLinkState,{link}" for link in range(18)),
)


@dataclass
class Field:
    """Entry of nvmlDeviceGetFieldValues: a typed value, a return code, or left untouched."""

    value: int | float = 0
    type: int = UINT
    code: int = 0
    untouched: bool = False

    def bits(self) -> int:
        """Return the eight bytes of the value union, as a little-endian integer."""
        return int.from_bytes(struct.pack(_PACK[self.type], self.value), "little")


@dataclass
class Device:
    """GPU, or a part of it.

    Attributes:
        numbers: numeric results, by key.
        codes: return codes of numeric results that fail for this device alone, by key.
        texts: text results, by key.
        fields: field values, by id, or by id and scope.
        rows: records of list calls, by table.
        gpm: GPM metrics by id: a float is a value, an int a return code.
        parts: MIG devices, vGPUs and their instances, by the name of their subject in the scenario file
            (`3.0` is the MIG device in slot 0 of GPU 3, `vgpu17` the vGPU instance 17).
    """

    numbers: dict[str, int | None] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str | None] = field(default_factory=dict)
    fields: dict[int | tuple[int, int], Field] = field(default_factory=dict)
    rows: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    gpm: dict[int, float | int] = field(default_factory=dict)
    parts: dict[str, "Device"] = field(default_factory=dict)

    def become_superchip(self, index: int) -> None:
        """Make it a GPU on a module with a CPU in a rack, such as a GB200."""
        i = index
        self.numbers |= {
            "nvmlDeviceGetAddressingMode": 2,
            "nvmlDeviceGetNumaNodeId": 2 + i,
            "nvmlDeviceGetC2cModeInfoV": (i + 1) % 2,
        }
        self.rows |= {
            "nvmlDeviceGetPlatformInfo": [(3 + i, 5 + i, 1 + i, 1, 7 + i)],
            "nvmlDeviceGetGpuFabricInfoV": [(3, 0, 4711 + i, fabric_mask(i), 1 + i % 3, 0x20 + i)],
        }
        self.texts |= {"nvmlDeviceGetPlatformInfo_serial": f"182092400{i:04d}"}
        fields: dict[int | tuple[int, int], Field] = {
            (185, 1): Field(1_200_000 + 10_007 * i),
            (186, 1): Field(1_300_000 + 10_007 * i),
            (187, 1): Field(800_000 + i),
            (188, 1): Field(2_800_000 + i),
            (189, 1): Field(2_700_000 + i),
            (190, 1): Field(2_000_000 + i),
            (192, 1): Field(2_100_000 + i),
            170: Field(2),
            **{(171, link): Field(int(link <= i % 2)) for link in (0, 1)},
            **{(172, link): Field(45_000 + link + 10 * i) for link in (0, 1)},
            **{(id_, link): Field(id_ * 100 + 10 * i + link) for id_ in (231, 232, 233) for link in (0, 1)},
        }
        self.fields |= fields

    def become_blackwell(self) -> None:
        """Count NVLink traffic and errors as Blackwell does: in bytes, with other fields, per link only."""
        for id_, scope in [key for key in self.fields if isinstance(key, tuple)]:
            if id_ in (138, 139, 161, 162, 163):
                del self.fields[id_, scope]
        for link in range(LINKS):
            self.fields |= {(id_, link): Field(id_ * 10**6 + link, ULONGLONG) for id_ in (202, 204, *range(206, 216))}
            self.fields |= {(id_, link): Field(id_ * 10**6 + link, ULONGLONG) for id_ in (219, 221, *range(235, 251))}
            self.fields |= {(id_, link): Field((1 + link % 9) << 8 | (id_ - 208 + link), UINT) for id_ in (220, 222)}

    @property
    def uuid(self) -> str:
        """Return the UUID that the device reports."""
        return self.texts["nvmlDeviceGetUUID"] or ""

    def enable_mig(self) -> None:
        """Enable MIG mode, in which utilization is not defined."""
        self.numbers |= {"nvmlDeviceGetMigMode_current": 1, "nvmlDeviceGetMigMode_pending": 1}
        self.numbers |= dict.fromkeys(MIG_FORBIDS)

    def add_event(
        self, kind: int, data: int, gpu_instance: int = 0xFFFFFFFF, compute_instance: int = 0xFFFFFFFF
    ) -> None:
        """Add one driver event."""
        events = self.rows.setdefault("event", [])
        events.append((len(events) + 1, kind, data, gpu_instance, compute_instance))

    def disable_ecc(self) -> None:
        """Disable ECC, so that its counters are not supported."""
        self.numbers |= {"nvmlDeviceGetEccMode_current": 0, "nvmlDeviceGetEccMode_pending": 0}
        self.numbers |= dict.fromkeys(ECC_KEYS)
        self.numbers |= dict.fromkeys(key for key in self.numbers if "MemoryErrorCounter" in key)
        del self.rows["nvmlDeviceGetSramEccErrorStatus"]

    def become_vgpu_guest(self) -> None:
        """Make it look like a vGPU inside its guest."""
        self.numbers |= dict.fromkeys(GUEST_LACKS)
        self.numbers["nvmlDeviceGetVirtualizationMode"] = 2
        self.texts |= {"nvmlDeviceGetName": "NVIDIA H200X-141C", "nvmlDeviceGetSerial": None}
        self.fields.clear()
        for table in ("nvmlDeviceGetRowRemapperHistogram", "nvmlDeviceGetGpuFabricInfoV"):
            self.rows.pop(table, None)


@dataclass
class Fault:
    """Behaviour of one call instead of its result; `function` may be `*`."""

    function: str
    gpu: int = ANY_GPU
    code: int = 0
    delay_ms: int = 0


@dataclass
class Scenario:
    """Driver version and devices of the fake driver, and its faults."""

    driver: str = "580.159.04"
    library: str = "13.580.159.04"
    cuda: int = 13000
    devices: list[Device] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @classmethod
    def healthy(cls, gpus: int = 8) -> "Scenario":
        """Return healthy H200s. All values of all devices differ."""
        return cls(devices=[healthy_h200(index) for index in range(gpus)])

    def fault(self, function: str, *, gpu: int = ANY_GPU, code: int = 0, delay_ms: int = 0) -> None:
        """Make calls of `function` (or `*`) to one GPU or all GPUs fail, be slow, or both."""
        self.faults.append(Fault(function, gpu, code, delay_ms))

    def hang(self, function: str, *, gpu: int = ANY_GPU, stubborn: bool = False) -> None:
        """Make calls hang until the fault is removed."""
        self.fault(function, gpu=gpu, delay_ms=STUBBORN_HANG if stubborn else HANG)

    def render(self) -> str:
        """Return the text of the scenario file."""
        lines = [f"driver {self.driver}", f"library {self.library}", f"cuda {self.cuda}", f"count {len(self.devices)}"]
        for index, device in enumerate(self.devices):
            lines += _lines(str(index), device)
        lines += [f"fault {f.function} {f.gpu} {f.code} {f.delay_ms}" for f in self.faults]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Replace the scenario file atomically."""
        fresh = path.with_suffix(".new")
        fresh.write_text(self.render())
        fresh.replace(path)


def _lines(subject: str, device: Device) -> list[str]:
    lines = []
    for key, value in device.numbers.items():
        assert key.partition(",")[0] in keys(), f"the fake driver has no {key}"
        if value is not None:
            lines.append(f"number {subject} {key} {value} {device.codes.get(key, 0)}")
    for key, text in device.texts.items():
        assert key.partition(",")[0] in keys(), f"the fake driver has no {key}"
        if text is not None:
            lines.append(f"text {subject} {key} {text}")
    for id_, f in device.fields.items():
        number, scope = id_ if isinstance(id_, tuple) else (id_, 0)
        lines.append(f"number {subject} field,{number},{scope} {f.type} {f.code} {int(f.untouched)} {f.bits()}")
    for metric, result in device.gpm.items():
        bits = Field(result, DOUBLE).bits() if isinstance(result, float) else 0
        lines.append(f"number {subject} gpm,{metric} {0 if isinstance(result, float) else result} {bits}")
    for table, records in device.rows.items():
        assert table in keys(), f"the fake driver has no {table}"
        lines += [f"row {subject} {table} {' '.join(map(str, record))}" for record in records]
    for name, part in device.parts.items():
        lines += _lines(name, part)
    return lines


@functools.cache
def keys() -> frozenset[str]:
    """Return every key that the C files look up, and more: quoted identifiers and arguments of macros."""
    text = "".join(path.read_text() for path in Path(__file__).with_name("library").glob("*.c"))
    pairs = {
        f"{name}_{part}" for name, one, two in re.findall(r"PAIR32\((\w+), (\w+), (\w+)\)", text) for part in (one, two)
    }
    return frozenset({*re.findall(r'"(\w+)"', text), *re.findall(r"\(((?:nvml)\w+)[,)]", text), *pairs})


LINKS = 18
"""NVLinks of an H200."""

GPM_PERCENT, GPM_TRAFFIC = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13), (20, 21, 60, 61)
"""Ids of GPM metrics in percent, and in MiB per second."""

PCIE_ERRORS = (95, 169, *range(173, 184))
CLOCK_EVENTS = (*range(74, 82), 269, 270, 271)


def fabric_mask(i: int) -> int:
    """Return a health mask with one of six conditions set and one kind of faulty configuration; 0 is not reported."""
    conditions = {shift: 1 if at == i else 2 for at, shift in enumerate((0, 2, 4, 6, 12))}
    conditions[14] = 2 if i == 5 else 1
    return sum(value << shift for shift, value in conditions.items()) | (1 + i % 8) << 8


def bus_id(i: int) -> str:
    """Return the PCI address of the device at `i` as NVML writes it."""
    return f"00000000:{0x1B + 0x10 * i:02X}:00.0"


def linked_gpu(i: int, link: int) -> int:
    """Return the index of the GPU at the other end of a link of the device at `i`; link 7 ends where link 0 does."""
    return (i + 1 + link % 7) % 8


def extra_numbers(i: int, busy: int) -> dict[str, int | None]:
    """Return limits, modes, error counts by location, links and GPM support of the device at `i`."""
    return {
        **{f"nvmlDeviceGetTemperatureThreshold,{n}": 80 + 4 * n + i for n in (0, 1, 2, 3)},
        "nvmlDeviceGetSupportedClocksEventReasons": 0x1FF ^ 1 << i,
        "nvmlDeviceGetAccountingMode": i % 2,
        "nvmlDeviceGetDisplayMode": (i + 1) % 2,
        "nvmlDeviceGetDisplayActive": i // 2 % 2,
        "nvmlDeviceGetGspFirmwareMode_enabled": 1,
        "nvmlDeviceGetGspFirmwareMode_default": 1,
        "nvmlDeviceGetAddressingMode": i % 2,
        "nvmlDeviceGetNumGpuCores": 16896 + i,
        "nvmlDeviceGetMemoryBusWidth": 6144 + i,
        "nvmlSystemGetConfComputeState_environment": 2,
        "nvmlSystemGetConfComputeState_feature": 1,
        "nvmlSystemGetConfComputeState_devtools": 0,
        "nvmlSystemGetConfComputeSettings_multi_gpu": 1,
        "nvmlSystemGetConfComputeGpusReadyState": 1,
        "nvmlDeviceGetConfComputeMemSizeInfo_protected": (100 << 20) + i,
        "nvmlDeviceGetConfComputeMemSizeInfo_unprotected": (40 << 20) + i,
        "nvmlDeviceGetConfComputeProtectedMemoryUsage_used": busy * ((7 << 30) + i),
        **{
            f"nvmlDeviceGetMemoryErrorCounter,{severity},{counter},{place}": busy
            * (3000 + 100 * severity + 50 * counter + 10 * place + i)
            for severity in (0, 1)
            for counter in (0, 1)
            for place in (2, 7)
        },
        **{f"nvmlDeviceGetNvLinkState,{link}": int(link < LINKS - i) for link in range(LINKS)},
        **{f"nvmlDeviceGetNvLinkVersion,{link}": 6 for link in range(LINKS)},
        **{f"nvmlDeviceGetNvLinkRemoteDeviceType,{link}": 2 if link > i else 0 for link in range(LINKS)},
        "nvmlGpmQueryDeviceSupport": 1,
        "nvmlDeviceGetProcessUtilization_offered": 1,
    }


def extra_fields(i: int, busy: int) -> dict[int | tuple[int, int], Field]:
    """Return the field values of the device at `i`."""
    return {
        185: Field(74_000 + 90_001 * i),
        (185, 2): Field(33_000 + 1003 * i),
        (186, 2): Field(34_000 + 1003 * i),
        187: Field(200_000 + i),
        188: Field(900_000 + i),
        192: Field(690_500 + 1001 * i),
        **{id_: Field(at - 7 - 3 * i, SINT) for at, id_ in enumerate((193, 194, 195, 196))},
        **{id_: Field(busy * (id_ * 10**9 + i * 10**6 + 1), ULONGLONG) for id_ in CLOCK_EVENTS},
        197: Field(busy * (10**12 + i), ULONGLONG),
        198: Field(busy * (2 * 10**12 + i), ULONGLONG),
        **{id_: Field(busy * (id_ * 100 + i)) for id_ in PCIE_ERRORS},
        (138, 0xFFFFFFFF): Field(busy * (10**10 + i), ULONGLONG),
        (139, 0xFFFFFFFF): Field(busy * (2 * 10**10 + i), ULONGLONG),
        91: Field(LINKS),
        147: Field(17 - i),
        **{
            (id_, link): Field(busy * (id_ * 10**6 + 1000 * i + link), ULONGLONG)
            for id_ in (138, 139, 161, 162, 163)
            for link in range(LINKS)
        },
        **{(164, link): Field(26_562 + link) for link in range(LINKS)},
        301: Field(6 + i),
        302: Field(16 + i),
    }


def healthy_h200(index: int) -> Device:
    """Return the device at `index`. The first device is idle: its zeros are measured zeros."""
    i, busy = index, int(index > 0)
    gpm: dict[int, float | int] = {n: busy * (float(n) + i / 2) for n in GPM_PERCENT}
    gpm |= {n: busy * (100.5 * n + i) for n in GPM_TRAFFIC}
    total, reserved, used = 150_754_820_096, (600 + i) << 20, busy * ((10 + i) << 30) + 12_345_600 + i
    return Device(
        gpm=gpm,
        numbers={
            "nvmlDeviceGetUtilizationRates_gpu": busy * (50 + i),
            "nvmlDeviceGetUtilizationRates_memory": busy * (20 + i),
            "nvmlDeviceGetEncoderUtilization": busy * (1 + i),
            "nvmlDeviceGetDecoderUtilization": busy * (10 + i),
            "nvmlDeviceGetJpgUtilization": busy * (30 + i),
            "nvmlDeviceGetOfaUtilization": busy * (40 + i),
            "nvmlDeviceGetMemoryInfo_total": total + i,
            "nvmlDeviceGetMemoryInfo_reserved": reserved,
            "nvmlDeviceGetMemoryInfo_used": used,
            "nvmlDeviceGetMemoryInfo_free": total + i - reserved - used,
            "nvmlDeviceGetBAR1MemoryInfo_total": (256 << 30) + i,
            "nvmlDeviceGetBAR1MemoryInfo_used": (1 + i) << 21,
            "nvmlDeviceGetBAR1MemoryInfo_free": (256 << 30) + i - ((1 + i) << 21),
            "nvmlDeviceGetTemperature": 31 + i,
            "nvmlDeviceGetMarginTemperature": 50 - 10 * i,
            "nvmlDeviceGetPowerUsage": 75_123 + 80_001 * i,
            "nvmlDeviceGetEnforcedPowerLimit": 690_000 + 1001 * i,
            "nvmlDeviceGetPowerManagementLimit": 695_000 + 1001 * i,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700_000 + 7 * i,
            "nvmlDeviceGetTotalEnergyConsumption": 9_876_543_210 + 1_000_003 * i,
            "nvmlDeviceGetNumFans": None,
            "nvmlDeviceGetClockInfo,0": 345 + i,
            "nvmlDeviceGetClockInfo,1": 1965 + i,
            "nvmlDeviceGetClockInfo,2": 3201 + i,
            "nvmlDeviceGetClockInfo,3": 1515 + i,
            "nvmlDeviceGetMaxClockInfo,0": 1970 + i,
            "nvmlDeviceGetMaxClockInfo,1": 1980 + i,
            "nvmlDeviceGetMaxClockInfo,2": 3210 + i,
            "nvmlDeviceGetMaxClockInfo,3": 1530 + i,
            "nvmlDeviceGetCurrentClocksEventReasons": 1 << i,
            "nvmlDeviceGetPerformanceState": i,
            "nvmlDeviceGetTotalEccErrors,0,0": busy * (100 + i),
            "nvmlDeviceGetTotalEccErrors,0,1": 200 + i,
            "nvmlDeviceGetTotalEccErrors,1,0": busy * (300 + i),
            "nvmlDeviceGetTotalEccErrors,1,1": 400 + i,
            "nvmlDeviceGetRemappedRows_correctable": 60 + i,
            "nvmlDeviceGetRemappedRows_uncorrectable": 80 + i,
            "nvmlDeviceGetRemappedRows_pending": i % 2,
            "nvmlDeviceGetRemappedRows_failed": i // 2 % 2,
            "nvmlDeviceGetRepairStatus_channel": (i + 1) % 2,
            "nvmlDeviceGetRepairStatus_tpc": i // 2 % 2,
            "nvmlDeviceGetUnrepairableMemoryFlag": i // 4 % 2,
            "nvmlDeviceGetCurrPcieLinkGeneration": 1 + i % 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16 + i,
            "nvmlDeviceGetPcieReplayCounter": busy * (500 + i),
            "nvmlDeviceGetEccMode_current": 1,
            "nvmlDeviceGetEccMode_pending": 1,
            "nvmlDeviceGetMigMode_current": 0,
            "nvmlDeviceGetMigMode_pending": 0,
            "nvmlDeviceGetPersistenceMode": (i + 1) % 2,
            "nvmlDeviceGetComputeMode": i % 4,
            "nvmlDeviceGetVirtualizationMode": 0,
            "nvmlDeviceGetSupportedEventTypes": 0x19F,
            "nvmlDeviceGetArchitecture": 9,
            "nvmlDeviceGetCudaComputeCapability_major": 9,
            "nvmlDeviceGetCudaComputeCapability_minor": 0,
            "nvmlDeviceGetMinorNumber": i,
            **extra_numbers(i, busy),
            "nvmlDeviceGetModuleId": 1 + (i + 3) % 8,
        },
        texts={
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetUUID": f"GPU-{0xA0000000 + i:08x}-1111-2222-3333-{0x444455556666 + i:012x}",
            "nvmlDeviceGetSerial": f"165402{3000000 + i}",
            "nvmlDeviceGetBoardPartNumber": f"692-2G520-0280-{i:03d}",
            "nvmlDeviceGetVbiosVersion": f"96.00.BC.00.{i:02X}",
            "nvmlDeviceGetInforomImageVersion": f"G520.0280.00.{i:02d}",
            "nvmlDeviceGetGspFirmwareVersion": "580.159.04",
            "nvmlDeviceGetPciInfo": bus_id(i),
            **{f"nvmlDeviceGetNvLinkRemotePciInfo_v2,{link}": bus_id(linked_gpu(i, link)) for link in range(LINKS)},
        },
        fields={
            82: Field(41 + i),
            186: Field(76_000 + 90_001 * i),
            230: Field(i % 6),
            **extra_fields(i, busy),
        },
        rows={
            "nvmlDeviceGetSramEccErrorStatus": [(*(busy * (2000 + 20 * i + n) for n in range(11)), i % 2)],
            "nvmlDeviceGetRowRemapperHistogram": [tuple(2560 - 300 * n + i for n in range(5))],
            "nvmlDeviceGetGpuFabricInfoV": [(3, 0, 4711 + i, fabric_mask(i), 1 + i % 3, 0)],
            "nvmlDeviceGetGraphicsRunningProcesses": [
                (4_195_000 + 10 * i + n, (3 + n) << 20, 2**32 - 1, 2**32 - 1) for n in range(i // 2)
            ],
            "nvmlDeviceGetMPSComputeRunningProcesses": [
                (4_196_000 + 10 * i + n, (5 + n) << 20, 2**32 - 1, 2**32 - 1) for n in range(i // 3)
            ],
            "nvmlDeviceGetProcessUtilization": [
                (4_194_000 + 10 * i + n, 1_000 - n, 40 + n, 30 + n, 20 + n, 10 + n) for n in range(i)
            ],
            "nvmlDeviceGetComputeRunningProcesses": [
                (4_194_000 + 10 * i + n, (1 + n) << 30, 2**32 - 1, 2**32 - 1) for n in range(i)
            ],
        },
    )


if __name__ == "__main__":
    Scenario.healthy(int(sys.argv[2]) if len(sys.argv) > 2 else 8).write(Path(sys.argv[1]))
