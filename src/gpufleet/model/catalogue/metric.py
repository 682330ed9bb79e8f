"""Columns of the catalogue."""

import enum

import msgspec

from gpufleet.model.absence import Reason


class MetricKind(enum.StrEnum):
    """Behaviour of a metric over time."""

    GAUGE = "gauge"
    COUNTER = "counter"  # only grows within a driver session or boot
    STATE = "state"  # one of a closed list of names
    INFO = "info"  # a text that rarely changes


class ValueType(enum.StrEnum):
    """Type of a value."""

    INT = "int"  # stays an integer everywhere: byte counters pass 2^53
    FLOAT = "float"
    ENUM = "enum"  # the name of a state
    TEXT = "text"


class Lane(enum.StrEnum):
    """Schedule of a reading."""

    STATIC = "static"
    FAST = "fast"
    SLOW = "slow"
    EVENT = "event"


class Storage(enum.StrEnum):
    """Location in the store."""

    CORE = "core"  # a typed column of the samples table
    TAIL = "tail"  # (metric id, value) arrays of the samples table
    DIM = "dim"  # the dim_samples table
    INFO = "info"  # the info table, written on change


class Subject(enum.StrEnum):
    """Subject of a metric."""

    MACHINE = "machine"
    GPU = "gpu"
    MIG = "mig"
    VGPU = "vgpu"


class GpuRole(enum.StrEnum):
    """Role of a GPU that a metric requires."""

    MIG_PARENT = "mig_parent"  # MIG mode is on
    VGPU_HOST = "vgpu_host"  # this machine shares it as vGPUs
    VGPU_GUEST = "vgpu_guest"  # it is a vGPU, seen from inside the guest


class Absence(msgspec.Struct, frozen=True):
    """Expected case of absence of a metric."""

    reason: Reason
    when: str


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """Row of the catalogue.

    Attributes:
        id: small number of the metric in stored tails; never reused.
        name: with its base unit, without the `gpufleet_` prefix.
        kind, type: behaviour over time and type of a value.
        unit: base unit (`ratio`, `bytes`, `watts`, `joules`, `celsius`, `hertz`, `seconds`,
            `bytes_per_second`), or empty for counts, numbers, states and texts.
        low, high: valid range, both ends included; None is open. A value outside becomes
            `Absent(invalid_value)`.
        dims: names of its dimensions, in order; empty for most.
        help: one-line description.
        subjects: possible subjects.
        sides: sides that can see it (`host`, `guest`, `vgpu_host`).
        role: required role of the GPU; other GPUs have neither a value nor an absence. None for most. Instances (MIG
            devices, vGPU instances) have no role.
        lane: schedule.
        storage: location in the store.
        states: names of a state metric; the position is the stored number.
        nvml: NVML call or `FI <id>`.
        dcgm: DCGM field ids.
        nvidia_smi: `--query-gpu` names.
        kernel: kernel files.
        absent_when: expected cases of absence.
        otel: OpenTelemetry name, or empty if no convention exists.
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
    role: GpuRole | None = None
    lane: Lane
    storage: Storage
    states: tuple[str, ...] = ()
    nvml: tuple[str, ...] = ()
    dcgm: tuple[int, ...] = ()
    nvidia_smi: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    absent_when: tuple[Absence, ...] = ()
    otel: str = ""
