"""gpufleet: truthful GPU telemetry from every host, VM guest, pod and job, to one trusted store.

The public library is what `__all__` names; `docs/library.md` describes it. Its modules load on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufleet.library import (
        ConfigError,
        Device,
        GpufleetError,
        Hub,
        Reading,
        RecordingError,
        RequestError,
        ResponseError,
        Snapshot,
        Watch,
        WireError,
        asnapshot,
        decode,
        devices,
        snapshot,
        vgpus,
        watch,
    )

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Device",
    "GpufleetError",
    "Hub",
    "Reading",
    "RecordingError",
    "RequestError",
    "ResponseError",
    "Snapshot",
    "Watch",
    "WireError",
    "__version__",
    "asnapshot",
    "decode",
    "devices",
    "snapshot",
    "vgpus",
    "watch",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("gpufleet.library"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
