"""What is asked of the driver, lane by lane: the child runs this table, the parent reads its answers by it.

Only getters. The binding is used where it is right; where it is not (`nvmlDeviceGetModuleId` shares one result
object between all callers, the process lists guess a stride), the way around is here. Imports without pynvml.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from gpufleet.readers.nvml.protocol import NOT_OFFERED, UNTOUCHED, Value

NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED, INVALID_ARGUMENT, INSUFFICIENT_SIZE = 3, 13, 26, 2, 7
VERSION_MISMATCH = 25


class Context(NamedTuple):
    """What a call works with.

    Attributes:
        nvml: the binding, the module `pynvml`, initialised.
        handle: of the device.
        driver: major number of the driver's version, or 0 if it is not known.
        mark: leaves the breadcrumb of a further function that a call is about to enter.
    """

    nvml: Any
    handle: Any
    driver: int
    mark: Callable[[str], None]


class Function(NamedTuple):
    """One function with its arguments as people write it, and how to ask it."""

    label: str
    ask: Callable[[Context], Value]


class Call(NamedTuple):
    """One reading's call; `functions` are tried in turn while a driver does not have them."""

    key: str
    functions: tuple[Function, ...]


def _plain(name: str, *arguments: int, shown: str = "") -> Call:
    """Return a call of the binding's function of that name that gives a number or a text."""
    key = f"{name}({shown})" if shown else name
    return Call(key, (_function(name, *arguments, shown=shown),))


def _function(name: str, *arguments: int, shown: str = "") -> Function:
    def ask(context: Context) -> Value:
        value: Value = getattr(context.nvml, name)(context.handle, *arguments)
        return value

    return Function(f"{name}({shown})" if shown else name, ask)


def _custom(name: str, ask: Callable[[Context], Value]) -> Call:
    return Call(name, (Function(name, ask),))


def _utilization(context: Context) -> Value:
    rates = context.nvml.nvmlDeviceGetUtilizationRates(context.handle)
    return [rates.gpu, rates.memory]


def _memory(context: Context) -> Value:
    memory = context.nvml.nvmlDeviceGetMemoryInfo(context.handle, version=context.nvml.nvmlMemory_v2)
    return [memory.total, memory.used, memory.free, memory.reserved]


def _bar1(context: Context) -> Value:
    bar1 = context.nvml.nvmlDeviceGetBAR1MemoryInfo(context.handle)
    return [bar1.bar1Total, bar1.bar1Used]


def _raw(context: Context, name: str) -> Callable[..., int]:
    """Return the library's own function, for what the binding gets wrong."""
    try:
        function: Callable[..., int] = getattr(context.nvml.nvmlLib, name)
    except AttributeError:
        raise context.nvml.NVMLError(FUNCTION_NOT_FOUND) from None
    return function


def _compute_processes(context: Context) -> Value:
    """Count them as nvml.h says: with no room given, the call fails with the number in `count`."""
    count = ctypes.c_uint(0)
    code = _raw(context, "nvmlDeviceGetComputeRunningProcesses_v3")(context.handle, ctypes.byref(count), None)
    if code not in (0, INSUFFICIENT_SIZE):
        raise context.nvml.NVMLError(code)
    return count.value


def _fans(context: Context) -> Value:
    speeds: list[Value] = []
    count = context.nvml.nvmlDeviceGetNumFans(context.handle)
    context.mark(FAN_SPEED)
    for fan in range(count):
        try:
            speeds.append([0, context.nvml.nvmlDeviceGetFanSpeed_v2(context.handle, fan)])
        except context.nvml.NVMLError as error:
            speeds.append([error.value, None])
    return speeds


def _module_id(context: Context) -> Value:
    number: int = context.nvml.nvmlDeviceGetModuleId(context.handle, ctypes.c_uint())
    return number


def _gsp_version(context: Context) -> Value:
    version: bytes = context.nvml.nvmlDeviceGetGspFirmwareVersion(context.handle)
    return version.decode("utf-8", "replace")


FIELD_SINCE = {82: 0, 186: 535, 230: 570}
"""Field id to the first driver branch that knows it (nvml.h and nvidia-ml-py releases 535 to 615).

An id that a driver does not know may fail the whole batch, so it is not asked.
"""

FIELD = struct.Struct("<IIqqIiQ")
"""nvmlFieldValue_t: id, scope, timestamp, latency, value type, return code, value union."""

_TYPES = {0: "<d", 1: "<I", 2: "<Q", 3: "<Q", 4: "<q", 5: "<i", 6: "<H"}
"""nvmlValueType_t to how the union is read."""


def _fields(*ids: int) -> Call:
    """Return one batched call; its value is a list of [code, value], one an id."""

    def ask(context: Context) -> Value:
        known = [id_ for id_ in ids if context.driver >= FIELD_SINCE[id_]]
        try:
            found = _ask_fields(context, known)
        except context.nvml.NVMLError as error:
            if error.value != INVALID_ARGUMENT or len(known) < 2:
                raise
            found = {id_: entry for one in known for id_, entry in _ask_one_field(context, one).items()}
        return [found.get(id_, [NOT_OFFERED, None]) for id_ in ids]

    label = f"nvmlDeviceGetFieldValues({', '.join(map(str, ids))})"
    return Call(label, (Function(label, ask),))


def _ask_one_field(context: Context, id_: int) -> dict[int, Value]:
    try:
        return _ask_fields(context, [id_])
    except context.nvml.NVMLError as error:
        if error.value != INVALID_ARGUMENT:
            raise
        return {id_: [INVALID_ARGUMENT, None]}


def _ask_fields(context: Context, ids: list[int]) -> dict[int, Value]:
    """Ask with entries that are fresh every time: a driver may leave an entry as it found it."""
    if not ids:
        return {}
    buffer = ctypes.create_string_buffer(FIELD.size * len(ids))
    for position, id_ in enumerate(ids):
        FIELD.pack_into(buffer, position * FIELD.size, id_, 0, 0, 0, 0, UNTOUCHED, 0)
    code = _raw(context, "nvmlDeviceGetFieldValues")(context.handle, len(ids), buffer)
    if code:
        raise context.nvml.NVMLError(code)
    return decode_fields(buffer.raw)


def decode_fields(entries: bytes) -> dict[int, Value]:
    """Decode nvmlFieldValue_t entries to {id: [code, value]}, each value by its own type.

    An entry is untouched when its code still is, or when a driver only zeroed it: a real answer has a
    timestamp. A type that nvml.h does not have is untouched, too: nothing can be read from it.
    """
    found: dict[int, Value] = {}
    for id_, _scope, timestamp, latency, kind, code, bits in FIELD.iter_unpack(entries):
        if code == UNTOUCHED or (code == 0 and not (timestamp or latency)) or (code == 0 and kind not in _TYPES):
            found[id_] = [UNTOUCHED, None]
        elif code:
            found[id_] = [code, None]
        else:
            found[id_] = [0, struct.unpack_from(_TYPES[kind], bits.to_bytes(8, "little"))[0]]
    return found


def _engine(name: str) -> Call:
    """Return a call that gives percent and sample period; only the percent is kept."""

    def ask(context: Context) -> Value:
        percent: int = getattr(context.nvml, name)(context.handle)[0]
        return percent

    return _custom(name, ask)


MIG_MODE = _plain("nvmlDeviceGetMigMode")
VIRTUALIZATION_MODE = _plain("nvmlDeviceGetVirtualizationMode")

CALLS: dict[str, tuple[Call, ...]] = {
    "fast": (
        _custom("nvmlDeviceGetUtilizationRates", _utilization),
        _engine("nvmlDeviceGetEncoderUtilization"),
        _engine("nvmlDeviceGetDecoderUtilization"),
        _engine("nvmlDeviceGetJpgUtilization"),
        _engine("nvmlDeviceGetOfaUtilization"),
        _custom("nvmlDeviceGetMemoryInfo_v2", _memory),
        _custom("nvmlDeviceGetBAR1MemoryInfo", _bar1),
        Call("temperature", (_function("nvmlDeviceGetTemperatureV", 0), _function("nvmlDeviceGetTemperature", 0))),
        _plain("nvmlDeviceGetMarginTemperature"),
        _plain("nvmlDeviceGetPowerUsage"),
        _plain("nvmlDeviceGetEnforcedPowerLimit"),
        _plain("nvmlDeviceGetTotalEnergyConsumption"),
        _custom("nvmlDeviceGetNumFans", _fans),
        _plain("nvmlDeviceGetClockInfo", 0, shown="GRAPHICS"),
        _plain("nvmlDeviceGetClockInfo", 1, shown="SM"),
        _plain("nvmlDeviceGetClockInfo", 2, shown="MEM"),
        _plain("nvmlDeviceGetClockInfo", 3, shown="VIDEO"),
        Call(
            "clock event reasons",
            (
                _function("nvmlDeviceGetCurrentClocksEventReasons"),
                _function("nvmlDeviceGetCurrentClocksThrottleReasons"),
            ),
        ),
        _plain("nvmlDeviceGetPerformanceState"),
        _plain("nvmlDeviceGetTotalEccErrors", 0, 0, shown="CORRECTED, VOLATILE"),
        _plain("nvmlDeviceGetTotalEccErrors", 1, 0, shown="UNCORRECTED, VOLATILE"),
        _plain("nvmlDeviceGetCurrPcieLinkGeneration"),
        _plain("nvmlDeviceGetCurrPcieLinkWidth"),
        _plain("nvmlDeviceGetPcieReplayCounter"),
        _custom("nvmlDeviceGetComputeRunningProcesses_v3", _compute_processes),
        _fields(82, 186),
    ),
    "slow": (
        _plain("nvmlDeviceGetTotalEccErrors", 0, 1, shown="CORRECTED, AGGREGATE"),
        _plain("nvmlDeviceGetTotalEccErrors", 1, 1, shown="UNCORRECTED, AGGREGATE"),
        _plain("nvmlDeviceGetRemappedRows"),
        _fields(230),
    ),
    "static": (
        _plain("nvmlDeviceGetPowerManagementDefaultLimit"),
        _plain("nvmlDeviceGetMaxClockInfo", 1, shown="SM"),
        _plain("nvmlDeviceGetMaxPcieLinkGeneration"),
        _plain("nvmlDeviceGetMaxPcieLinkWidth"),
        _plain("nvmlDeviceGetEccMode"),
        _plain("nvmlDeviceGetPersistenceMode"),
        _plain("nvmlDeviceGetComputeMode"),
        _plain("nvmlDeviceGetName"),
        _plain("nvmlDeviceGetSerial"),
        _plain("nvmlDeviceGetBoardPartNumber"),
        _plain("nvmlDeviceGetVbiosVersion"),
        _plain("nvmlDeviceGetArchitecture"),
        _plain("nvmlDeviceGetCudaComputeCapability"),
        _plain("nvmlDeviceGetMinorNumber"),
        _plain("nvmlDeviceGetInforomImageVersion"),
        _custom("nvmlDeviceGetGspFirmwareVersion", _gsp_version),
        _custom("nvmlDeviceGetModuleId", _module_id),
    ),
}
"""The calls of each lane, in the order in which they are made and answered."""

INIT, DRIVER_VERSION, LIBRARY_VERSION = "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"
CUDA_VERSION, COUNT = "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCount_v2"
HANDLE, PCI_INFO, UUID = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID"
NOTHING, SHUTDOWN, OPEN = "", "nvmlShutdown", "open /dev/nvidiactl"
FAN_SPEED = "nvmlDeviceGetFanSpeed_v2"

LABELS: tuple[str, ...] = (
    NOTHING,
    *(INIT, DRIVER_VERSION, LIBRARY_VERSION, CUDA_VERSION, COUNT, HANDLE, PCI_INFO, UUID, SHUTDOWN, OPEN, FAN_SPEED),
    *(function.label for call in (MIG_MODE, VIRTUALIZATION_MODE) for function in call.functions),
    *(function.label for calls in CALLS.values() for call in calls for function in call.functions),
)
"""Every function that can hang, by breadcrumb number; 0 is none."""

NUMBERS: dict[str, int] = {label: number for number, label in enumerate(LABELS)}
