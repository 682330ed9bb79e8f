"""Field values of simulated GPUs, by field id, in DCGM's own units."""

FieldValue = int | float | str

PROFILING = range(1001, 1097)
"""Fields that are only available through a watch."""

INT_BLANK, DOUBLE_BLANK, TEXT_BLANK = 0x7FFF_FFFF_FFFF_FFF2, 140_737_488_355_330.0, "<<<NOT_SUPPORTED>>>"
"""Values with status 0 for a field that a device does not offer."""


def compute_instance_values(entity: int) -> dict[int, FieldValue]:
    """Return the values of a compute instance."""
    return {
        90: 65_536,
        92: 1 + entity,
        250: 71_000,
        251: 70_000 - entity,
        252: 800 + entity,
        253: 200,
        1001: 0.91 - entity / 100,
        1002: 0.82 - entity / 100,
        1003: 0.41 + entity / 100,
        1004: 0.54 + entity / 100,
        1006: 0.0,
        1007: 0.21 + entity / 100,
        1008: 0.16 + entity / 100,
        1013: 0.0,
        1014: 0.13 + entity / 100,
        1015: 0.0,
        1016: 0.07 + entity / 100,
    }


def healthy_values(index: int) -> dict[int, FieldValue]:
    """Return the values of a healthy GPU in DCGM's own units (MiB, MHz, mJ, percent, ns)."""
    return {
        1: "580.105.08",
        2: "13.580.105.08",
        5: 13000,
        50: "NVIDIA H200",
        52: index,
        53: f"16500240{index:05d}",
        54: f"GPU-5b4e07f6-3a86-4340-039d-{index:012x}",
        55: index,
        57: f"00000000:{0x05 + index:02X}:00.0",
        65: 0,
        66: 1,
        67: 0,
        85: "96.00.CF.00.01",
        90: 262144,
        92: 3 + index,
        100: 1980 - 15 * index,
        101: 3201,
        102: 1545 - 15 * index,
        112: 4,
        113: 1995,
        114: 3201,
        140: 41 + index,
        150: 35 + index,
        151: 95,
        152: 87,
        153: 52 - index,
        155: 312.25 + index,
        156: 123_456_789 + index,
        157: 318.5 + index,
        158: 89,
        159: 92,
        160: 695.0,
        161: 200.0,
        162: 700.0,
        163: 700.0,
        164: 690.0,
        190: 0,
        191: INT_BLANK,
        202: 2 + index,
        203: 87 - index,
        204: 33 + index,
        206: 0,
        207: 5 + index,
        230: 0,
        235: 5,
        236: 16,
        237: 4,
        238: 15,
        240: 5_000_000_000 + index,
        241: 0,
        242: 0,
        243: 1_500_000_000,
        244: 0,
        245: 0,
        246: 0,
        247: 0,
        250: 143_771,
        251: 142_000 - 100 * index,
        252: 1_100 + 100 * index,
        253: 671,
        300: 1,
        301: 1,
        310: 7 + index,
        311: 1,
        312: 17 + index,
        313: 3,
        385: 2559 - index,
        386: 1,
        387: 0,
        388: 0,
        389: 0,
        390: INT_BLANK,
        391: INT_BLANK,
        392: INT_BLANK,
        393: 4,
        394: 9,
        395: 0,
        396: 1,
        500: 1,
        1001: 0.81 - index / 100,
        1002: 0.72 - index / 100,
        1003: 0.31 + index / 100,
        1004: 0.44 + index / 100,
        1005: 0.27 + index / 100,
        1006: 0.0,
        1007: 0.11 + index / 100,
        1008: 0.06 + index / 100,
        1009: 1_200_000 + index,
        1010: 2_300_000 + index,
        1011: 34_000_000 + index,
        1012: 45_000_000 + index,
        1013: 0.02 + index / 100,
        1014: 0.38 + index / 100,
        1015: 0.0,
        1016: 0.09 + index / 100,
        1422: 250_000_000,
        1423: 0,
        1424: 0,
        1523: 0,
    }


def vgpu_guest_values() -> dict[int, FieldValue]:
    """Return the values of an H100-20C vGPU inside its guest (from published output of such guests)."""
    values = healthy_values(0)
    hidden_fields = (53, 140, *range(150, 154), *range(155, 165), 202, *range(235, 239), *range(240, 248))
    for hidden in (one for one in (*hidden_fields, *range(385, 397), *range(1422, 1425)) if one in values):
        value = values[hidden]
        values[hidden] = TEXT_BLANK if isinstance(value, str) else INT_BLANK if isinstance(value, int) else DOUBLE_BLANK
    values |= {50: "NVIDIA H100-20C", 250: 20_480, 251: 18_000, 252: 480, 253: 2_000, 500: 2, 526: 1}
    return {number: value for number, value in values.items() if number not in PROFILING}


BASE_UNITS = {90: 1600, 92: 1601, 100: 1603, 101: 1604, 102: 1605, 113: 1608, 114: 1609, 156: 1611, 191: 1612}
"""Fields whose values DCGM 4.6.1 reports in base units under another id."""


def in_base_units(values: dict[int, FieldValue]) -> dict[int, FieldValue]:
    """Return the values of a GPU for an engine with base-unit fields only: bytes, hertz, joules, ratios."""
    factors = {90: 1 << 20, 92: 1 << 20, 156: 0.001, 191: 0.01}
    found = {number: value for number, value in values.items() if number not in BASE_UNITS}
    for old, new in BASE_UNITS.items():
        value = values[old]
        assert not isinstance(value, str)
        found[new] = value if value in (INT_BLANK, DOUBLE_BLANK) else value * factors.get(old, 1_000_000)
    return found
