"""Content and faults of a simulated host engine."""

import enum
from dataclasses import dataclass, field

from gpufleet.simulate.dcgm.values import INT_BLANK, FieldValue, compute_instance_values, healthy_values

NOT_SUPPORTED, UNKNOWN_FIELD, NO_DATA, NOT_WATCHED, GPU_LOST = -6, -13, -14, -16, -18
PROFILING_NOT_SUPPORTED = -36
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 4, 5


class EngineFault(enum.StrEnum):
    """Fault of a simulated engine."""

    # not a host engine, or an engine that stops responding
    WRONG_MAGIC = "wrong_magic"  # another protocol answers
    HANG_UP = "hang_up"  # the connection ends in the middle of a reply
    NO_REPLY = "no_reply"  # a denied or malformed request is never answered
    UNKNOWN_VERSION = "unknown_version"  # it reports a version that does not exist
    # frames
    LONG_BODY = "long_body"  # a frame header with a length beyond its content
    SHORT_BODY = "short_body"  # a reply that ends before its struct
    WRONG_LENGTH = "wrong_length"  # the struct's length is not the frame's
    HUGE = "huge"  # every frame is padded to the maximum frame size, 4 MiB
    TRICKLE = "trickle"  # a byte at a time
    DRIP = "drip"  # a byte at a time, with pauses
    REORDER = "reorder"  # the reply to an earlier request comes first
    NOTIFY = "notify"  # notifications before every reply
    FLOOD = "flood"  # endless notifications
    # answers
    ERROR = "error"  # every command fails with GENERIC_ERROR
    VERSION_MISMATCH = "version_mismatch"  # every form of latest values fails with -12, with the whole body
    OTHER_COMMAND = "other_command"  # the reply is to another command
    WRONG_COUNT = "wrong_count"  # more entities than fit in the struct
    WIDE_IDS = "wide_ids"  # group ids that do not fit in the fields for them
    # values
    ZERO_RECORD = "zero_record"  # a value record of length 0
    LONG_RECORD = "long_record"  # a value record longer than its buffer
    UNREQUESTED = "unrequested"  # a buffer full of values that were not requested
    PARTIAL = "partial"  # every second value is missing
    BLOBS = "blobs"  # values are bytes
    FROZEN = "frozen"  # the first reply's values and times, permanently
    STALE = "stale"  # numbers are an hour old, texts are not
    ESCAPES = "escapes"  # texts contain terminal escape sequences
    SAME_NAME = "same_name"  # all GPUs have the same UUID


@dataclass
class SimulatedGpu:
    """GPU: field id to value; a blank marks a field that the GPU does not offer.

    Attributes:
        values: present values.
        statuses: field id to a dcgmReturn_t instead of a value.
        instances: (profile name, number of slices) of each GPU instance.
        compute_slices: slices of the compute instances of each GPU instance; by default a single one with all slices.
    """

    values: dict[int, FieldValue]
    statuses: dict[int, int] = field(default_factory=dict)
    instances: list[tuple[str, int]] = field(default_factory=list)
    compute_slices: dict[int, list[int]] = field(default_factory=dict)


@dataclass
class EngineState:
    """Content and faults of an engine.

    Attributes:
        version: as DCGM writes it.
        gpus: by DCGM's GPU id.
        parts: (GPU_INSTANCE or COMPUTE_INSTANCE, its id) to field id to value.
        part_statuses: of a part as in `parts`, field id to a dcgmReturn_t instead of a value.
        hierarchy_error: error code for the list of MIG devices, or 0.
        group_error: error code for adding an entity to a group, or 0.
        forms: command numbers of latest values that this version supports.
        unknown: field ids that this version does not have: they fail a whole field group.
        unknown_fail_all: whether they fail a whole request for live values, too, instead of having an error status.
        unwatchable: field id to the error code for a watch of it, which fails the whole request.
        clock_ahead: microseconds by which the guest's clock is ahead.
        xids: (entity group, id) to (microseconds, code), in the order of occurrence.
        faults: active faults.
        skip_replies: number of correct replies before the faults begin.
    """

    version: str = "4.5.3"
    gpus: dict[int, SimulatedGpu] = field(default_factory=dict)
    parts: dict[tuple[int, int], dict[int, FieldValue]] = field(default_factory=dict)
    part_statuses: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    hierarchy_error: int = 0
    group_error: int = 0
    forms: frozenset[int] = frozenset({22, 52, 63})
    unknown: frozenset[int] = frozenset()
    unknown_fail_all: bool = False
    unwatchable: dict[int, int] = field(default_factory=dict)
    clock_ahead: int = 0
    xids: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    faults: set[EngineFault] = field(default_factory=set)
    skip_replies: int = 0

    @classmethod
    def healthy(cls, gpus: int = 1) -> "EngineState":
        """Return an engine with healthy H200 GPUs whose values are all distinct."""
        return cls(gpus={index: SimulatedGpu(healthy_values(index)) for index in range(gpus)})

    @classmethod
    def with_mig(cls, gpus: int = 1) -> "EngineState":
        """Return an engine with H200 GPUs. The first has a 3g.71gb, and a 4g.71gb with two compute instances."""

        state = cls.healthy(gpus)
        first = state.gpus[0]
        first.values |= {67: 1, 203: INT_BLANK}
        first.instances, first.compute_slices = [("3g.71gb", 3), ("4g.71gb", 4)], {1: [1, 3]}
        for entity, name in enumerate(name for name, _ in first.instances):
            state.parts[GPU_INSTANCE, entity] = {50: name, 1005: 0.5 + entity / 10}
        for entity in range(3):
            state.parts[COMPUTE_INSTANCE, entity] = compute_instance_values(entity)
        return state
