"""What the fake driver shall say: devices with their values, and faults of calls.

Keys are those of the C files in `library/`: the NVML function, `_` and the part where a call gives several values,
and its arguments after commas. A value of None (or a missing key) makes the call answer NVML_ERROR_NOT_SUPPORTED.

    python -m tests.fakes.nvml.scenario FILE [GPUS]     writes a healthy scenario to FILE
"""

import functools
import re
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

CRASH = -1
"""As a return code: the library crashes the process."""

HANG, STUBBORN_HANG = -1, -2
"""As a delay: the call comes back when the fault leaves the scenario; in the second SIGTERM is ignored."""

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
)


@dataclass
class Field:
    """One entry of nvmlDeviceGetFieldValues: a value of a type, a return code, or left untouched."""

    value: int | float = 0
    type: int = UINT
    code: int = 0
    untouched: bool = False

    def bits(self) -> int:
        """Return the eight bytes of the value union, as a little-endian integer."""
        return int.from_bytes(struct.pack(_PACK[self.type], self.value), "little")


@dataclass
class Device:
    """One GPU, or a part of one.

    Attributes:
        numbers: key to what a call answers.
        texts: the same for texts.
        fields: field values, by id, or by id and scope.
        rows: table to records, for calls that give lists.
        parts: what it is cut into or shared as, by the name of the subject that the scenario file gives them
            (`3.0` is the MIG device in slot 0 of GPU 3, `vgpu17` the vGPU instance 17).
    """

    numbers: dict[str, int | None] = field(default_factory=dict)
    texts: dict[str, str | None] = field(default_factory=dict)
    fields: dict[int | tuple[int, int], Field] = field(default_factory=dict)
    rows: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    parts: dict[str, "Device"] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        """Return the UUID it answers with."""
        return self.texts["nvmlDeviceGetUUID"] or ""

    def enable_mig(self) -> None:
        """Cut it into MIG instances: utilisation is not defined any more."""
        self.numbers |= {"nvmlDeviceGetMigMode_current": 1, "nvmlDeviceGetMigMode_pending": 1}
        self.numbers |= dict.fromkeys(MIG_FORBIDS)

    def disable_ecc(self) -> None:
        """Switch ECC off: its counters are not supported any more."""
        self.numbers |= {"nvmlDeviceGetEccMode_current": 0, "nvmlDeviceGetEccMode_pending": 0}
        self.numbers |= dict.fromkeys(ECC_KEYS)

    def become_vgpu_guest(self) -> None:
        """Look as a vGPU does from inside the guest."""
        self.numbers |= dict.fromkeys(GUEST_LACKS)
        self.numbers["nvmlDeviceGetVirtualizationMode"] = 2
        self.texts |= {"nvmlDeviceGetName": "NVIDIA H200X-141C", "nvmlDeviceGetSerial": None}
        self.fields.clear()


@dataclass
class Fault:
    """What one call does instead of answering; `function` may be `*`."""

    function: str
    gpu: int = ANY_GPU
    code: int = 0
    delay_ms: int = 0


@dataclass
class Scenario:
    """A driver and its devices."""

    driver: str = "580.159.04"
    library: str = "13.580.159.04"
    cuda: int = 13000
    devices: list[Device] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @classmethod
    def healthy(cls, gpus: int = 8) -> "Scenario":
        """Return H200s in health. No two values of a device, nor of two devices, are the same by chance."""
        return cls(devices=[healthy_h200(index) for index in range(gpus)])

    def fault(self, function: str, *, gpu: int = ANY_GPU, code: int = 0, delay_ms: int = 0) -> None:
        """Make calls of `function` (or `*`) to one GPU or to any fail, be slow, or both."""
        self.faults.append(Fault(function, gpu, code, delay_ms))

    def hang(self, function: str, *, gpu: int = ANY_GPU, stubborn: bool = False) -> None:
        """Make calls hang until the scenario no longer says so."""
        self.fault(function, gpu=gpu, delay_ms=STUBBORN_HANG if stubborn else HANG)

    def render(self) -> str:
        """Return the text of the scenario file."""
        lines = [f"driver {self.driver}", f"library {self.library}", f"cuda {self.cuda}", f"count {len(self.devices)}"]
        for index, device in enumerate(self.devices):
            lines += _lines(str(index), device)
        lines += [f"fault {f.function} {f.gpu} {f.code} {f.delay_ms}" for f in self.faults]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Put it in force: the file is replaced at once, never half written."""
        fresh = path.with_suffix(".new")
        fresh.write_text(self.render())
        fresh.replace(path)


def _lines(subject: str, device: Device) -> list[str]:
    lines = []
    for key, value in device.numbers.items():
        assert key.partition(",")[0] in keys(), f"the fake driver asks for no {key}"
        if value is not None:
            lines.append(f"number {subject} {key} {value}")
    for key, text in device.texts.items():
        assert key in keys(), f"the fake driver asks for no {key}"
        if text is not None:
            lines.append(f"text {subject} {key} {text}")
    for id_, f in device.fields.items():
        number, scope = id_ if isinstance(id_, tuple) else (id_, 0)
        lines.append(f"number {subject} field,{number},{scope} {f.type} {f.code} {int(f.untouched)} {f.bits()}")
    for table, records in device.rows.items():
        assert table in keys(), f"the fake driver asks for no {table}"
        lines += [f"row {subject} {table} {' '.join(map(str, record))}" for record in records]
    for name, part in device.parts.items():
        lines += _lines(name, part)
    return lines


@functools.cache
def keys() -> frozenset[str]:
    """Return every key that the C files ask a scenario for, and then some: words in quotes and macros' arguments."""
    text = "".join(path.read_text() for path in Path(__file__).with_name("library").glob("*.c"))
    pairs = {
        f"{name}_{part}" for name, one, two in re.findall(r"PAIR32\((\w+), (\w+), (\w+)\)", text) for part in (one, two)
    }
    return frozenset({*re.findall(r'"(\w+)"', text), *re.findall(r"\(((?:nvml)\w+)[,)]", text), *pairs})


def healthy_h200(index: int) -> Device:
    """Return the device at `index`. The first one idles: its zeros are measured zeros."""
    i, busy = index, int(index > 0)
    total, reserved, used = 150_754_820_096, (600 + i) << 20, busy * ((10 + i) << 30) + 12_345_600 + i
    return Device(
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
            "nvmlDeviceGetArchitecture": 9,
            "nvmlDeviceGetCudaComputeCapability_major": 9,
            "nvmlDeviceGetCudaComputeCapability_minor": 0,
            "nvmlDeviceGetMinorNumber": i,
            "nvmlDeviceGetModuleId": (i + 3) % 8,
        },
        texts={
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetUUID": f"GPU-{0xA0000000 + i:08x}-1111-2222-3333-{0x444455556666 + i:012x}",
            "nvmlDeviceGetSerial": f"165402{3000000 + i}",
            "nvmlDeviceGetBoardPartNumber": f"692-2G520-0280-{i:03d}",
            "nvmlDeviceGetVbiosVersion": f"96.00.BC.00.{i:02X}",
            "nvmlDeviceGetInforomImageVersion": f"G520.0280.00.{i:02d}",
            "nvmlDeviceGetGspFirmwareVersion": "580.159.04",
            "nvmlDeviceGetPciInfo": f"00000000:{0x1B + 0x10 * i:02X}:00.0",
        },
        fields={
            82: Field(41 + i),
            186: Field(76_000 + 90_001 * i),
            230: Field(i % 6),
        },
        rows={
            "nvmlDeviceGetComputeRunningProcesses": [
                (4_194_000 + 10 * i + n, (1 + n) << 30, 2**32 - 1, 2**32 - 1) for n in range(i)
            ],
        },
    )


if __name__ == "__main__":
    Scenario.healthy(int(sys.argv[2]) if len(sys.argv) > 2 else 8).write(Path(sys.argv[1]))
