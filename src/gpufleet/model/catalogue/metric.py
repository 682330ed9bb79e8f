"""The columns of the catalogue."""

import enum

import msgspec

from gpufleet.model.absence import Reason


class MetricKind(enum.StrEnum):
    """How a metric behaves over time."""

    GAUGE = "gauge"
    COUNTER = "counter"  # only grows within a driver session or boot
    STATE = "state"  # one of a closed list of names
    INFO = "info"  # a text that seldom changes


class ValueType(enum.StrEnum):
    """What a value is."""

    INT = "int"  # stays an integer everywhere: byte counters pass 2^53
    FLOAT = "float"
    ENUM = "enum"  # the name of a state
    TEXT = "text"


class Lane(enum.StrEnum):
    """A reading's schedule."""

    STATIC = "static"
    FAST = "fast"
    SLOW = "slow"
    EVENT = "event"


class Storage(enum.StrEnum):
    """Where the store keeps it."""

    CORE = "core"  # a typed column of the samples table
    TAIL = "tail"  # (metric id, value) arrays of the samples table
    DIM = "dim"  # the dim_samples table
    INFO = "info"  # the info table, written on change


class Subject(enum.StrEnum):
    """What a metric can be about."""

    MACHINE = "machine"
    GPU = "gpu"
    MIG = "mig"
    VGPU = "vgpu"


class Role(enum.StrEnum):
    """What makes of a GPU one that a metric can be told of."""

    MIG_PARENT = "mig_parent"  # MIG mode is on
    VGPU_HOST = "vgpu_host"  # it is shared out as vGPUs by this machine
    VGPU_GUEST = "vgpu_guest"  # it is a vGPU, seen from inside the guest


class Absence(msgspec.Struct, frozen=True):
    """A case in which the metric is absent by nature."""

    reason: Reason
    when: str


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue.

    Attributes:
        id: small number that names the metric in stored tails; never reused.
        name: with its base unit, without the `gpufleet_` prefix.
        kind, type: how it behaves and what a value is.
        unit: base unit (`ratio`, `bytes`, `watts`, `joules`, `celsius`, `hertz`, `seconds`,
            `bytes_per_second`), or empty for counts, numbers, states and texts.
        low, high: valid range, both ends included; None is open. A value outside becomes
            `Absent(invalid_value)`.
        dims: names of its dimensions, in order; empty for most.
        help: one line for people.
        subjects: what it can be about.
        sides: sides that can see it (`host`, `guest`, `vgpu_host`).
        role: it is told only of GPUs in this role, and of no other GPU is anything said; None for most. Instances
            (MIG devices, vGPU instances) have no role.
        lane: its schedule.
        storage: where the store keeps it.
        states: for a state, its names; the position is the stored number.
        nvml: NVML call or `FI <id>` it comes from.
        dcgm: DCGM field ids.
        nvidia_smi: `--query-gpu` names.
        kernel: kernel files it comes from.
        absent_when: cases in which it is absent by nature.
        otel: OpenTelemetry name, or empty where no convention exists.
    """

    id: int
    name: str
    kind: MetricKind
    type: ValueType
    unit: str = ""
    low: float | None = None
    high: float | None = None
    dims: tuple[str, ...] = ()
    help: str
    subjects: tuple[Subject, ...]
    sides: tuple[str, ...] = ("host", "guest")
    role: Role | None = None
    lane: Lane
    storage: Storage
    states: tuple[str, ...] = ()
    nvml: tuple[str, ...] = ()
    dcgm: tuple[int, ...] = ()
    nvidia_smi: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    absent_when: tuple[Absence, ...] = ()
    otel: str = ""
