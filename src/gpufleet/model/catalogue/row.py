"""Constructors and shared constants of rows about GPUs, MIG devices and vGPU instances."""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import (
    Absence,
    GpuRole,
    Lane,
    Metric,
    MetricKind,
    Storage,
    Subject,
    ValueType,
)

GAUGE, COUNTER, STATE, INFO = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.STATE, MetricKind.INFO
INT, FLOAT, ENUM, TEXT = ValueType.INT, ValueType.FLOAT, ValueType.ENUM, ValueType.TEXT
FAST, SLOW, STATIC = Lane.FAST, Lane.SLOW, Lane.STATIC
CORE, TAIL, DIM = Storage.CORE, Storage.TAIL, Storage.DIM
GPU = (Subject.GPU,)
GPU_MIG = (Subject.GPU, Subject.MIG)
GPU_VGPU = (Subject.GPU, Subject.VGPU)
ALL = (Subject.GPU, Subject.MIG, Subject.VGPU)
MIG = (Subject.MIG,)
VGPU = (Subject.VGPU,)

GUEST = Absence(Reason.NOT_IN_GUEST, "a vGPU guest cannot see it")
NO_BASEBOARD = Absence(Reason.NOT_SUPPORTED, "the GPU is not a module on a baseboard")
UNKNOWN_BOARD = Absence(Reason.NOT_REPORTED, "it is 1, and the product is not known: the GPU may be a card")
OLD_CHIP = Absence(Reason.NOT_SUPPORTED, "the chip does not support it")
OLD_DRIVER = Absence(Reason.NOT_IN_DRIVER, "the driver is older than the call")


def row(
    id: int,  # noqa: A002 - the column's own name
    name: str,
    kind: MetricKind,
    type: ValueType,  # noqa: A002 - the column's own name
    unit: str,
    help: str,  # noqa: A002 - the column's own name
    *,
    lane: Lane = FAST,
    storage: Storage = CORE,
    subjects: tuple[Subject, ...] = GPU,
    low: float | None = 0,
    high: float | None = None,
    dims: tuple[str, ...] = (),
    states: tuple[str, ...] = (),
    nvml: tuple[str, ...] = (),
    dcgm: tuple[int, ...] = (),
    smi: tuple[str, ...] = (),
    absent: tuple[Absence, ...] = (),
    otel: str = "",
    role: GpuRole | None = None,
) -> Metric:
    """Return a row of a GPU, MIG device or vGPU instance; the arguments are the attributes of `Metric`."""
    return Metric(
        id=id,
        name=name,
        kind=kind,
        type=type,
        unit=unit,
        low=low,
        high=high,
        dims=dims,
        help=help,
        subjects=subjects,
        sides=_sides(subjects, role),
        role=role,
        lane=lane,
        storage=storage,
        states=states,
        nvml=nvml,
        dcgm=dcgm,
        nvidia_smi=smi,
        absent_when=absent,
        otel=otel,
    )


def info(
    id: int,  # noqa: A002 - the column's own name
    name: str,
    help: str,  # noqa: A002 - the column's own name
    *,
    nvml: str,
    smi: str = "",
    dcgm: tuple[int, ...] = (),
    lane: Lane = STATIC,
    subjects: tuple[Subject, ...] = GPU,
    absent: tuple[Absence, ...] = (),
    role: GpuRole | None = None,
) -> Metric:
    """Return a row of a text that rarely changes."""
    return row(
        id,
        name,
        INFO,
        TEXT,
        "",
        help,
        lane=lane,
        storage=Storage.INFO,
        low=None,
        subjects=subjects,
        nvml=(nvml,),
        smi=(smi,) if smi else (),
        dcgm=dcgm,
        absent=absent,
        role=role,
    )


def _sides(subjects: tuple[Subject, ...], role: GpuRole | None) -> tuple[str, ...]:
    if subjects == VGPU:
        return ("vgpu_host",)
    if role is GpuRole.VGPU_HOST:
        return ("host",)
    return ("host", "guest", "vgpu_host") if Subject.VGPU in subjects else ("host", "guest")
