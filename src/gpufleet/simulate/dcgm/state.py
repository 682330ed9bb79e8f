"""What a simulated host engine knows, and how it misbehaves."""

import enum
from dataclasses import dataclass, field

from gpufleet.simulate.dcgm.values import INT_BLANK, Told, healthy_values, part_values

NOT_SUPPORTED, UNKNOWN_FIELD, NO_DATA, NOT_WATCHED, GPU_LOST = -6, -13, -14, -16, -18
PROFILING_NOT_SUPPORTED = -36
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 4, 5


class Fault(enum.StrEnum):
    """One way in which an engine goes wrong."""

    # what is no engine, or none any more
    WRONG_MAGIC = "wrong_magic"  # another protocol answers
    HANG_UP = "hang_up"  # the connection ends in the middle of a reply
    NO_REPLY = "no_reply"  # a denied or malformed request is never answered
    UNKNOWN_VERSION = "unknown_version"  # it says that it is of a version that nobody has seen
    # frames
    LONG_BODY = "long_body"  # a frame that claims more than there is
    SHORT_BODY = "short_body"  # a reply that ends before its struct does
    WRONG_LENGTH = "wrong_length"  # the struct's length is not the frame's
    HUGE = "huge"  # every frame is padded to the most that a frame can hold, 4 MiB
    TRICKLE = "trickle"  # a byte at a time
    DRIP = "drip"  # a byte at a time, with pauses
    REORDER = "reorder"  # the reply to an earlier request comes first
    NOTIFY = "notify"  # pushed frames before every reply
    FLOOD = "flood"  # pushed frames without an end
    # answers
    ERROR = "error"  # every command fails with GENERIC_ERROR
    VERSION_MISMATCH = "version_mismatch"  # every latest-values form is refused with -12, its body sent back whole
    OTHER_COMMAND = "other_command"  # the reply is to a command that was not asked
    LYING_COUNT = "lying_count"  # more entities than there is room for
    WIDE_IDS = "wide_ids"  # ids of groups that do not fit where they are to be used
    # values
    ZERO_RECORD = "zero_record"  # a value record of no length
    LONG_RECORD = "long_record"  # a value record longer than its buffer
    UNASKED = "unasked"  # a buffer full of values that nobody asked for
    PARTIAL = "partial"  # every second value is missing
    BLOBS = "blobs"  # values are bytes
    FROZEN = "frozen"  # the values of the first answer, with their times, for ever
    STALE = "stale"  # numbers are an hour old, texts are not
    ESCAPES = "escapes"  # texts drive terminals
    SAME_NAME = "same_name"  # all GPUs have one UUID


@dataclass
class SimulatedGpu:
    """One GPU: field id to value; a blank stands for what it does not offer.

    Attributes:
        values: what it says now.
        statuses: field id to a dcgmReturn_t instead of a value.
        instances: profile name to number of slices, one entry a GPU instance.
        compute_slices: slices of the compute instances of each GPU instance; one with all of them where none is told.
    """

    values: dict[int, Told]
    statuses: dict[int, int] = field(default_factory=dict)
    instances: list[tuple[str, int]] = field(default_factory=list)
    compute_slices: dict[int, list[int]] = field(default_factory=dict)


@dataclass
class EngineState:
    """Everything an engine says.

    Attributes:
        version: as DCGM writes it.
        gpus: by DCGM's GPU id.
        parts: (GPU_INSTANCE or COMPUTE_INSTANCE, its id) to field id to value.
        hierarchy_error: the code with which the list of MIG devices is refused, or 0.
        group_error: the code with which it refuses to add an entity to a group, or 0.
        forms: command numbers of latest values that this version knows.
        unknown: field ids that this version does not know: they fail a whole group of fields.
        unknown_fail_all: whether they fail a whole question for live values too, or are told by their status.
        unwatchable: field id to the code with which a watch of it is refused, and all that is asked with it.
        clock_ahead: microseconds by which the guest's clock is ahead.
        xids: (entity group, id) to (microseconds, code), in the order in which they happened.
        faults: how it misbehaves.
        skip_replies: replies that are well before the faults begin.
    """

    version: str = "4.5.3"
    gpus: dict[int, SimulatedGpu] = field(default_factory=dict)
    parts: dict[tuple[int, int], dict[int, Told]] = field(default_factory=dict)
    hierarchy_error: int = 0
    group_error: int = 0
    forms: frozenset[int] = frozenset({22, 52, 63})
    unknown: frozenset[int] = frozenset()
    unknown_fail_all: bool = False
    unwatchable: dict[int, int] = field(default_factory=dict)
    clock_ahead: int = 0
    xids: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    faults: set[Fault] = field(default_factory=set)
    skip_replies: int = 0

    @classmethod
    def healthy(cls, gpus: int = 1) -> "EngineState":
        """Return an engine over H200s in health, no two values the same by chance."""
        return cls(gpus={index: SimulatedGpu(healthy_values(index)) for index in range(gpus)})

    @classmethod
    def cut(cls, gpus: int = 1) -> "EngineState":
        """Return an engine over H200s, the first of them cut into a 3g.71gb, and a 4g.71gb that is cut in two."""
        state = cls.healthy(gpus)
        first = state.gpus[0]
        first.values |= {67: 1, 203: INT_BLANK}
        first.instances, first.compute_slices = [("3g.71gb", 3), ("4g.71gb", 4)], {1: [1, 3]}
        for entity, name in enumerate(name for name, _ in first.instances):
            state.parts[GPU_INSTANCE, entity] = {50: name, 1005: 0.5 + entity / 10}
        for entity in range(3):
            state.parts[COMPUTE_INSTANCE, entity] = part_values(entity)
        return state
