"""The NVLink fabric that the GPU is part of."""

import struct

from gpufleet.readers.nvml.calls.call import Call, Calls, Function
from gpufleet.readers.nvml.calls.fields import Fields
from gpufleet.readers.nvml.calls.raw import ask_struct
from gpufleet.readers.nvml.context import Context
from gpufleet.readers.nvml.protocol import Value

INFO = "nvmlDeviceGetGpuFabricInfoV"
_V3, _V2 = struct.Struct("<I16sIIB3xIB3x"), struct.Struct("<I16sIIB3xI")


def _info_v3(context: Context) -> Value:
    _, cluster, status, clique, state, mask, summary = ask_struct(context, INFO, _V3, 0x03000028)
    return [state, status, clique, cluster.hex(), mask, summary]


def _info_v2(context: Context) -> Value:
    _, cluster, status, clique, state, mask = ask_struct(context, INFO, _V2, 0x02000024)
    return [state, status, clique, cluster.hex(), mask]


CALLS: Calls = {
    # drivers before 580 refuse version 3 of the struct, which has a summary
    "slow": (Call(INFO, (Function(f"{INFO}(v3)", _info_v3), Function(f"{INFO}(v2)", _info_v2))),),
}
"""State, status, clique, cluster in hexadecimal digits, health mask, and health summary if there is one."""

FIELDS: Fields = {}
