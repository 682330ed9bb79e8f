"""Definition of a driver call, the constructors of common calls, and sample timestamps.

The driver keeps samples of utilisation in a ring and returns those after a timestamp: microseconds since 1970 by the
machine's clock. If the clock was set back, the ring holds samples with timestamps in the future. They predate the step
and are ignored. The ring also holds old samples of idle processes and instances; they are not reported as current.
"""

import ctypes
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpufleet.readers.nvml.context import DEVICE_ENDED_CODES, Context, check, raw_function
from gpufleet.readers.nvml.protocol import PERMANENT_ENTRY_CODES, CallResult, Value

Calls = dict[str, tuple["Call", ...]]
"""Calls by lane."""

MIG_PARENT, VGPU_HOST, VGPU_GUEST = "mig_parent", "vgpu_host", "vgpu_guest"
"""Roles of a GPU, as in the catalogue: MIG mode is on; it hosts vGPUs; it is a vGPU seen from its guest."""

MAX_AHEAD_US = 5_000_000
"""Tolerance for a sample timestamp ahead of the clock."""

MAX_AGE_US = 10_000_000
"""Maximum age of a current sample: the fast lane's default interval. The driver adds several samples a second."""


class Function(NamedTuple):
    """NVML function with fixed arguments.

    Attributes:
        label: name and arguments, for breadcrumbs and details.
        query: calls it.
    """

    label: str
    query: Callable[[Context], Value]


class Call(NamedTuple):
    """Call of a lane.

    Attributes:
        key: name of the call in the mapping.
        functions: alternatives, tried in order while the driver does not offer them.
        inner: labels of further functions that the call enters, for breadcrumbs.
        role: limits the call to GPUs in this role; empty for all.
    """

    key: str
    functions: tuple[Function, ...]
    inner: tuple[str, ...] = ()
    role: str = ""


class FoundInstance(NamedTuple):
    """MIG device or vGPU instance of a GPU.

    Attributes:
        name: unique on its GPU for the lifetime of the instance.
        handle: handle for its calls.
        identity: its identifiers by name.
        code: 0, or the reason that it cannot be identified; it is then not queried further.
    """

    name: str
    handle: Any
    identity: dict[str, CallResult]
    code: int = 0


class InstanceList(NamedTuple):
    """Instances of one kind on a GPU.

    Attributes:
        instances: identified instances, and slots that may hold an instance but cannot be identified.
        total: number of instances; exceeds `instances` if there are more than one pass reports.
        code: 0, or the reason that the number is unknown.
    """

    instances: list[FoundInstance]
    total: int
    code: int = 0


class InstanceKind(NamedTuple):
    """A kind of GPU instance.

    Attributes:
        role: role of the GPUs that have such instances.
        find: lists them; raises NVMLError if the driver does not list them.
        exists: whether the handle still belongs to the same instance; used when a call about it fails unexpectedly.
        calls: calls for each instance, by lane.
    """

    role: str
    find: Callable[[Context], InstanceList]
    exists: Callable[[Context, FoundInstance], bool]
    calls: Calls


def getter(name: str, *arguments: int, shown: str = "") -> Call:
    """Return a call of the binding's function of that name. It returns a number, a text or a list of them."""
    return Call(f"{name}({shown})" if shown else name, (function(name, *arguments, shown=shown),))


def function(name: str, *arguments: int, shown: str = "") -> Function:
    """Return the binding's function of that name, with these arguments after the handle."""

    def query(context: Context) -> Value:
        value: Value = getattr(context.nvml, name)(context.handle, *arguments)
        return value

    return Function(f"{name}({shown})" if shown else name, query)


def custom(name: str, query: Callable[[Context], Value], *, inner: tuple[str, ...] = ()) -> Call:
    """Return a call with its own query function."""
    return Call(name, (Function(name, query),), inner)


def attributes(name: str, *members: str, shown: str = "") -> Call:
    """Return a call of the binding's function that returns a struct, and read these members of it."""

    def query(context: Context) -> Value:
        found = getattr(context.nvml, name)(context.handle)
        return [getattr(found, member) for member in members]

    return custom(shown or name, query)


def raw_struct(name: str, layout: str, *header: int) -> Call:
    """Return a call of the library that fills a struct, and read its members after `header`; bytes as hex digits."""
    shape = struct.Struct(layout)

    def query(context: Context) -> Value:
        members = read_struct(context, name, shape, *header)[len(header) :]
        return [member.hex() if isinstance(member, bytes) else member for member in members]

    return custom(name, query)


def read_struct(context: Context, name: str, layout: struct.Struct, *header: int) -> tuple[Any, ...]:
    """Call the library's `name(handle, struct)` with a buffer of its own; return the struct's members.

    Args:
        context: of the call.
        name: the library's function.
        layout: of the struct, padding included.
        header: first members, set by the caller: the struct's version, and arguments of the query.

    Raises:
        NVMLError: the function's return code.
    """
    buffer = ctypes.create_string_buffer(layout.size)
    struct.pack_into(f"<{len(header)}I", buffer, 0, *header)
    check(context, raw_function(context, name)(context.handle, buffer))
    return layout.unpack(buffer.raw)


def query_each(context: Context, name: str, query: Callable[[Any], Value], arguments: Iterable[Any]) -> Value:
    """Query once for each argument; return a list of [code, value]. A failed entry does not affect the others.

    Unsupported arguments are cached under `name` and not queried again.

    Raises:
        NVMLError: if the device as a whole is gone.
    """
    permanent: dict[Any, Value] = context.cache.get_or_create(name, dict)
    entries: list[Value] = []
    for argument in arguments:
        if argument in permanent:
            entries.append(permanent[argument])
            continue
        try:
            entries.append([0, query(argument)])
        except context.nvml.NVMLError as error:
            if error.value in DEVICE_ENDED_CODES:
                raise
            entries.append([error.value, None])
            if error.value in PERMANENT_ENTRY_CODES:
                permanent[argument] = entries[-1]
    return entries


def max_timestamp() -> int:
    """Return the maximum plausible timestamp of a sample taken now."""
    return time.time_ns() // 1000 + MAX_AHEAD_US


def last_timestamp(context: Context, name: str) -> int:
    """Return the lower bound for new samples of a function: the newest sample's timestamp, at most `MAX_AGE_US` old."""
    seen = context.cache.last_timestamps.get(name, 0)
    return max(seen if seen <= max_timestamp() else 0, time.time_ns() // 1000 - MAX_AGE_US)
