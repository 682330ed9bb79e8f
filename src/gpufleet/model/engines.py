"""Product names of GPUs: engines that their chips lack although the driver reports 0, and vGPU types.

NVML, nvidia-smi and DCGM report no engine counts of a whole GPU, so the product name decides. Sources: NVIDIA's support
matrix of video encoders, its documentation of nvJPEG (hardware decoding: GA100, Hopper, Ada and later), and the engines
that Linux's nouveau driver creates for each chip. Seen with 0 on H100, H200, T4 and RTX 2080 Super.
"""

import functools
import re

ENCODER, JPEG = "encoder", "jpeg"

_DATA_CENTRE = r"\b(?:A(?:30|100|800)|G?H(?:20|100|200|800)|G?B(?:100|200|300))[A-Z]{0,3}\b"
"""GA100, GH100, GB100 and GB110, also as vGPU types (`A100D-80C`)."""
_TURING = (
    r"\bT(?:4G?|10|40|[1-9]\d{2,3})\b|\bQuadro RTX [3-8]000\b|\bRTX[568]000P?-\d|"
    r"\bGTX 16[356]0\b|\bRTX 20[5-8]0\b|\bTITAN RTX\b|\bMX[45]50\b"
)
_GA10X = r"\bA(?:2|10[GM]?|16|40)\b|\bRTX ?A\d{3,4}\b|\bRTX 30[5-9]0\b"

CHIPS_WITHOUT = {ENCODER: re.compile(_DATA_CENTRE), JPEG: re.compile(f"{_TURING}|{_GA10X}")}
"""Engine to the pattern, found in the names of products whose chip lacks it. RE2 has the same syntax."""


@functools.lru_cache(maxsize=1024)
def lacking_engines(product: str) -> tuple[str, ...]:
    """Return the engines that the chip of a product is known to lack: `ENCODER`, `JPEG`, both or none.

    Args:
        product: product name or vGPU type as the driver reports it, such as `NVIDIA H100 80GB HBM3`.
    """
    return tuple([engine for engine, chips in CHIPS_WITHOUT.items() if chips.search(product)])


_VGPU_TYPE = re.compile(r"-\d{1,3}[ABCQ](?:ME)?\Z")


def is_vgpu_type(product: str) -> bool:
    """Return whether a product name is a vGPU type, such as `NVIDIA A40-48Q` or `GRID A100D-1-10C`."""
    return _VGPU_TYPE.search(product) is not None
