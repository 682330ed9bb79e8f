"""Product names of GPUs: parts that they lack although the driver reports 0, modules, chips with MIG, and vGPU types.

NVML, nvidia-smi and DCGM report no engine counts of a whole GPU, so the product name decides. Sources: NVIDIA's support
matrix of video encoders, its documentation of nvJPEG (hardware decoding: GA100, Hopper, Ada and later) and of the
optical flow SDK (Turing except TU117), and the engines that Linux's nouveau driver creates for each chip. Chips of
products are those of the table of PCI ids in NVIDIA's open kernel modules 610. Seen with 0 on H100, H200, T4, RTX 2080
Super and GTX 1650.

Boards without a fan mostly have no fan speed. nvidia-smi of drivers 515 to 580 prints 0 % at any load for the
data-center boards with GA102 and GA107.

DCGM reports NVLink traffic of 0 for boards without NVLink (seen on L40S with dcgm-exporter 3, on RTX 5090 with 4), and
ECC counts of 0 for a GeForce board without ECC (RTX 5090, driver 590).

The driver reports a memory activity of 0 at any load for a GPU that uses the memory of its CPU (seen on GB10; on Thor
with driver 595 by a public report).
"""

import functools
import re

ENCODER, JPEG, OPTICAL_FLOW, FAN, NVLINK = "encoder", "jpeg", "optical flow", "fan", "nvlink"
MEMORY = "memory"

_DATA_CENTRE = r"\b(?:A(?:30|100|X?800)|G?H(?:20|100|200|800)|G?B(?:100|200|300))[A-Z]{0,3}\b|\bPG50[69]-2\d\d\b"
"""GA100, GH100, GB100 and GB110, also as vGPU types (`A100D-80C`)."""

_TU117 = r"\bT[1-9]\d{2,3}E?\b|\bGTX 16[35]0(?: Ti)?(?: with|$)|\bMX[45]50\b|\bDGX Display\b"
_TURING = (
    r"\bT(?:4G?|10|40)\b|\bQuadro RTX [3-8]000\b|\bRTX[568]000P?-\d|\bGTX 16[56]0\b|\bRTX 20[678]0\b|\bTITAN RTX\b|"
    r"\bMatrox D-Series D24[58]0\b|\bCMP [345]0HX\b"
)
_PASSIVE_GA10X = r"\bA(?:2|10[GM]?|16|40)\b"
_GA10X = (
    rf"{_PASSIVE_GA10X}|"
    r"\bRTX ?A\d{3,4}H?\b|\bRTX 2050\b|\bRTX 30[5-9]0(?:Ti)?(?: [^A]|$)|\bMX570\b|"
    r"\bCMP [79]0HX\b"
)

_NO_NVLINK = (
    r"\bGeForce (?:GTX|GT|MX|RTX (?:20[56]0|30[5-8]0|40\d0|50\d0))|\bT(?:4G?|10|40)\b|\bA(?:2|10[GM]?|16)\b|"
    r"\bRTX A(?:400|500|1000|2000|3000|4000)H?\b|\bL(?:2|4|20|40[GS]?)\b|\bAda\b|\bRTX (?:P(?:RO|ro)\b|6000D)|\bGB10\b|"
    r"\b[VP]100S?-(?:PCIE|FHHL)\b|\bRTX 2070(?: with|$)|\bQuadro RTX [34]000\b|\bTITAN V\b"
)

PRODUCTS_WITHOUT = {
    ENCODER: re.compile(rf"{_DATA_CENTRE}|\bCMP 170HX\b"),
    JPEG: re.compile(f"{_TU117}|{_TURING}|{_GA10X}"),
    OPTICAL_FLOW: re.compile(_TU117),
    FAN: re.compile(_PASSIVE_GA10X),
    NVLINK: re.compile(f"{_TU117}|{_NO_NVLINK}"),
    MEMORY: re.compile(r"\b(?:GB10|Thor)\b"),
}
"""Part to the pattern, found in the names of products that lack it. RE2 has the same syntax."""

RARELY_LACKED = frozenset({MEMORY})
"""Parts that a product of unknown name is taken to have."""


@functools.lru_cache(maxsize=1024)
def lacking_parts(product: str) -> tuple[str, ...]:
    """Return the parts that a product is known to lack, of the keys of `PRODUCTS_WITHOUT`; often none.

    Args:
        product: product name or vGPU type as the driver reports it, such as `NVIDIA H100 80GB HBM3`.
    """
    return tuple([part for part, products in PRODUCTS_WITHOUT.items() if products.search(product)])


_MIG = re.compile(
    rf"{_DATA_CENTRE}|\bRTX P(?:RO|ro) (?:4500|5000|6000) (?:72GB )?Blackwell(?! (?:Generation|Embedded))"
)
"""Products of the chips, and the workstation products, that NVIDIA's MIG user guide (610) lists."""


def supports_mig(product: str) -> bool:
    """Return whether the chip of a product is known to support MIG."""
    return _MIG.search(product) is not None


_MODULE = re.compile(r"\bSXM\d?\b|\bH(?:20|100|200|800)\b(?!.*\b(?:PCIe|NVL|CNX)\b)|\bGH200\b|\bG?B(?:100|200|300)\b")


def is_module(product: str) -> bool:
    """Return whether a product is known to be a module on a baseboard, and no card."""
    return _MODULE.search(product) is not None


_RARELY_WITH_ECC = re.compile(rf"\bGeForce\b|\bTITAN\b|\bGB10\b|{_TU117}")


def may_lack_ecc(product: str) -> bool:
    """Return whether a product may lack ECC and yet count 0 errors. Some GeForce boards have ECC (RTX 4090)."""
    return _RARELY_WITH_ECC.search(product) is not None


_VGPU_TYPE = re.compile(r"-\d{1,3}(?:[ACQ]|B4?)(?:ME)?\Z")


def is_vgpu_type(product: str) -> bool:
    """Return whether a product name is a vGPU type, such as `NVIDIA A40-48Q`, `GRID A100D-1-10C` or `GRID T4-2B4`."""
    return _VGPU_TYPE.search(product) is not None
