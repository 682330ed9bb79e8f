"""What a simulated host engine knows, and how it misbehaves."""

import enum
from dataclasses import dataclass, field

NOT_SUPPORTED, NO_DATA, NOT_WATCHED, GPU_LOST = -6, -14, -16, -18
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 4, 5

PROFILING = range(1001, 1097)
"""Fields that only a watch gives."""

INT_BLANK, DOUBLE_BLANK, TEXT_BLANK = 0x7FFF_FFFF_FFFF_FFF2, 140_737_488_355_330.0, "<<<NOT_SUPPORTED>>>"
"""What DCGM says with status 0 where a device does not offer a field."""

Told = int | float | str


class Fault(enum.StrEnum):
    """One way in which an engine goes wrong."""

    WRONG_MAGIC = "wrong_magic"  # another protocol answers
    NO_REPLY = "no_reply"  # a denied or malformed request is never answered
    VERSION_MISMATCH = "version_mismatch"  # every latest-values form is refused with -12, its body sent back whole
    ZERO_RECORD = "zero_record"  # a value record of no length
    LONG_RECORD = "long_record"  # a value record longer than its buffer
    LONG_BODY = "long_body"  # a frame that claims more than there is
    LYING_COUNT = "lying_count"  # more entities than there is room for
    SHORT_BODY = "short_body"  # a reply that ends before its struct does
    TRICKLE = "trickle"  # a byte at a time
    REORDER = "reorder"  # the reply to an earlier request comes first
    NOTIFY = "notify"  # pushed frames before every reply
    FLOOD = "flood"  # pushed frames without an end
    HANG_UP = "hang_up"  # the connection ends in the middle of a reply


@dataclass
class SimulatedGpu:
    """One GPU: field id to value; a blank stands for what it does not offer.

    Attributes:
        values: what it says now.
        statuses: field id to a dcgmReturn_t instead of a value.
        instances: profile name to number of slices, one entry a GPU instance with one compute instance each.
    """

    values: dict[int, Told]
    statuses: dict[int, int] = field(default_factory=dict)
    instances: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class EngineState:
    """Everything an engine says.

    Attributes:
        version: as DCGM writes it.
        gpus: by DCGM's GPU id.
        instance_values: GPU instance id to field id to value.
        forms: command numbers of latest values that this version knows.
        unknown: field ids that this version does not know: they fail a whole group of fields.
        clock_ahead: microseconds by which the guest's clock is ahead.
        xids: GPU id to (microseconds, code), in the order in which they happened.
        faults: how it misbehaves.
        skip_replies: replies that are well before the faults begin.
    """

    version: str = "4.5.3"
    gpus: dict[int, SimulatedGpu] = field(default_factory=dict)
    instance_values: dict[int, dict[int, Told]] = field(default_factory=dict)
    forms: frozenset[int] = frozenset({22, 52, 63})
    unknown: frozenset[int] = frozenset()
    clock_ahead: int = 0
    xids: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    faults: set[Fault] = field(default_factory=set)
    skip_replies: int = 0

    @classmethod
    def healthy(cls, gpus: int = 1) -> "EngineState":
        """Return an engine over H200s in health, no two values the same by chance."""
        return cls(gpus={index: SimulatedGpu(healthy_values(index)) for index in range(gpus)})


def healthy_values(index: int) -> dict[int, Told]:
    """Return what one GPU in health says: DCGM's own units (MiB, MHz, mJ, percent, ns)."""
    return {
        1: "580.105.08",
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
        140: 41 + index,
        150: 35 + index,
        153: 52 - index,
        155: 312.25 + index,
        156: 123_456_789 + index,
        157: 318.5 + index,
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
        250: 143_771,
        251: 142_000 - 100 * index,
        252: 1_100 + 100 * index,
        253: 671,
        310: 7 + index,
        311: 1,
        312: 17 + index,
        313: 3,
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
    }


def vgpu_guest_values() -> dict[int, Told]:
    """Return what an H100-20C vGPU says inside its guest (seen in published pages of such guests)."""
    values = healthy_values(0)
    for hidden in (53, 140, 150, 153, 155, 156, 157, 163, 164, 202, 235, 236, 237, 238, 393, 394, 395, 396):
        told = values[hidden]
        values[hidden] = TEXT_BLANK if isinstance(told, str) else INT_BLANK if isinstance(told, int) else DOUBLE_BLANK
    values |= {50: "NVIDIA H100-20C", 250: 20_480, 251: 18_000, 252: 480, 253: 2_000, 500: 2, 526: 1}
    return {number: told for number, told in values.items() if number not in PROFILING}
