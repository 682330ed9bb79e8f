"""Calls that give a struct: asked of the library itself, in memory of one's own."""

import ctypes
import struct
from typing import Any

from gpufleet.readers.nvml.calls.call import Call, custom
from gpufleet.readers.nvml.context import Context, check, raw_function
from gpufleet.readers.nvml.protocol import Value


def ask_struct(context: Context, name: str, layout: struct.Struct, *given: int) -> tuple[Any, ...]:
    """Call `name(handle, struct)`; return the struct's members.

    Args:
        context: of the call.
        name: the library's function.
        layout: of the struct, padding included.
        given: the first members, as the function wants them: the struct's version, and what is asked about.

    Raises:
        NVMLError: what the function answers.
    """
    buffer = ctypes.create_string_buffer(layout.size)
    struct.pack_into(f"<{len(given)}I", buffer, 0, *given)
    check(context, raw_function(context, name)(context.handle, buffer))
    return layout.unpack(buffer.raw)


def struct_call(name: str, layout: str, *given: int) -> Call:
    """Return a call that gives the members of a struct that come after the given ones, bytes as hexadecimal digits."""
    shape = struct.Struct(layout)

    def ask(context: Context) -> Value:
        members = ask_struct(context, name, shape, *given)[len(given) :]
        return [member.hex() if isinstance(member, bytes) else member for member in members]

    return custom(name, ask)
