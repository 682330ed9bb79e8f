"""What vGPU instances use of their GPU: one question a GPU and pass, from which every instance has its part.

NVML keeps samples in a ring, and gives those after a time stamp. A pass takes the newest of each instance; where
there is none since the pass before, there is no value: an old one would look like the load of now.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from gpufleet.readers.nvml.calls import stamps
from gpufleet.readers.nvml.calls.call import Call, Function
from gpufleet.readers.nvml.context import INSUFFICIENT_SIZE, NO_DATA, NOT_FOUND, Context, raw_function
from gpufleet.readers.nvml.protocol import Value

INFO, OLD = "nvmlDeviceGetVgpuInstancesUtilizationInfo", "nvmlDeviceGetVgpuUtilization"
"""The second is of drivers before 550, and has no JPEG engine and no optical flow accelerator."""

_INFO_VERSION = 0x01000020
_INFO_ENTRY, _OLD_ENTRY = struct.Struct("<QIxxxx6Q"), struct.Struct("<IxxxxQ4Q")
_VALUES = {0: "<d", 1: "<I", 2: "<Q", 3: "<Q", 4: "<q", 5: "<i", 6: "<H"}
"""nvmlValueType_t; the union's other bytes are not to be looked at."""

ENGINES = 6
"""SM, memory, encoder, decoder, JPEG, optical flow; in per cent of the GPU's time."""

_SAME_TIME_US = 5_000_000
"""Samples this much older than the newest of the GPU are of an instance that has none of now."""

_ATTEMPTS = 3
_ROOM, _MOST = 512, 65_536

Answered = tuple[int, dict[int, list[Value]]]
"""A code, and what each instance uses."""


class _Info(ctypes.Structure):
    """nvmlVgpuInstancesUtilizationInfo_v1_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("type", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("last_seen", ctypes.c_ulonglong),
        ("samples", ctypes.c_void_p),
    )


class Use:
    """Of one GPU; kept between passes."""

    def __init__(self) -> None:
        self._device: Context | None = None
        self._answered: dict[str, Answered] = {}

    def begin(self, device: Context) -> None:
        """Start a pass over the GPU."""
        self._device, self._answered = device, {}

    def of(self, instance: int, function: str) -> Value:
        """Return the per cents of an instance in this pass.

        Raises:
            NVMLError: if the driver does not tell; NO_DATA where it has no new sample of the instance.
        """
        assert self._device is not None, "a pass begins with finding the instances"
        if function not in self._answered:
            self._answered[function] = self._ask(self._device, function)
        code, used = self._answered[function]
        if code == 0 and instance in used:
            return used[instance]
        raise self._device.nvml.NVMLError(code or NO_DATA)

    def _ask(self, device: Context, function: str) -> Answered:
        last_seen, latest = stamps.last_seen(device, function), stamps.latest()
        ask = _ask_info if function == INFO else _ask_old
        try:
            code, samples = _with_room(ask, device, last_seen)
        except device.nvml.NVMLError as error:
            return error.value, {}
        if code == NOT_FOUND:  # no new samples: not an error
            return NO_DATA, {}
        samples = [sample for sample in samples if sample[1] <= latest]
        fresh = {instance: sample for instance, sample in newest(samples).items() if sample[0] > last_seen}
        device.memory.seen[function] = max([last_seen, *(at for at, _ in fresh.values())])
        return code, {instance: values for instance, (_, values) in fresh.items()}


Sample = tuple[int, int, list[Value]]
"""Instance, time stamp in microseconds, per cents by engine."""


def newest(samples: list[Sample]) -> dict[int, tuple[int, list[Value]]]:
    """Return instance to its newest sample, without those that are much older than the newest of all."""
    found: dict[int, tuple[int, list[Value]]] = {}
    for instance, at, values in samples:
        if instance not in found or at > found[instance][0]:
            found[instance] = at, values
    latest = max((at for at, _ in found.values()), default=0)
    return {instance: one for instance, one in found.items() if latest - one[0] <= _SAME_TIME_US}


def _with_room(
    ask: Callable[[Context, int, int], tuple[int, int, list[Sample]]], device: Context, last_seen: int
) -> tuple[int, list[Sample]]:
    """Ask with more room until it is enough: samples are added while we ask."""
    room, code = _ROOM, INSUFFICIENT_SIZE
    for _ in range(_ATTEMPTS):
        code, count, samples = ask(device, last_seen, room)
        if code != INSUFFICIENT_SIZE:
            return code, samples
        room = min(max(count, room) * 2, _MOST)
    return code, []


def _ask_info(device: Context, last_seen: int, room: int) -> tuple[int, int, list[Sample]]:
    buffer = ctypes.create_string_buffer(room * _INFO_ENTRY.size)
    info = _Info(_INFO_VERSION, 0, room, last_seen, ctypes.addressof(buffer))
    code = raw_function(device, INFO)(device.handle, ctypes.byref(info))
    return code, info.count, [] if code else _samples(_INFO_ENTRY, buffer, min(info.count, room), info.type)


def _ask_old(device: Context, last_seen: int, room: int) -> tuple[int, int, list[Sample]]:
    buffer = ctypes.create_string_buffer(room * _OLD_ENTRY.size)
    kind, count = ctypes.c_uint(), ctypes.c_uint(room)
    code = raw_function(device, OLD)(
        device.handle, ctypes.c_ulonglong(last_seen), ctypes.byref(kind), ctypes.byref(count), buffer
    )
    return code, count.value, [] if code else _samples(_OLD_ENTRY, buffer, min(count.value, room), kind.value)


def _samples(entry: struct.Struct, buffer: Any, count: int, kind: int) -> list[Sample]:
    value = _VALUES.get(kind)
    samples: list[Sample] = []
    for fields in entry.iter_unpack(buffer.raw[: count * entry.size]):
        at, instance = fields[:2] if entry is _INFO_ENTRY else (fields[1], fields[0])
        used: list[Value] = [
            None if value is None else struct.unpack_from(value, bits.to_bytes(8, "little"))[0] for bits in fields[2:]
        ]
        samples.append((instance, at, used))
    return samples


def _asking(function: str) -> Function:
    def ask(context: Context) -> Value:
        use: Use = context.memory.keep("vgpu use", Use)
        return use.of(context.handle, function)

    return Function(function, ask)


USE_CALL = Call("vgpu use", (_asking(INFO), _asking(OLD)))
