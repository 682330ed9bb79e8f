"""What a GPU does at an instant: load, heat and power, with the faults that bear on it."""

from collections.abc import Iterable

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.simulate.fleet.faults import Fault, FaultKind
from gpufleet.simulate.fleet.layout import Gpu

HOT_LEAVES = 0.6
"""Share of its load that a GPU does while it is too hot."""

LOST = Absent(Reason.GPU_LOST, "nvmlDeviceGetPowerUsage")
HUNG = Absent(Reason.TIMEOUT, "nvmlDeviceGetPowerUsage")


class Strain(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one instant.

    Attributes:
        load: 0 to 1, as it is done.
        heat: what its temperature follows, 0 to 1.
        done: load-seconds since it was booted.
        watts: what it draws.
        joules: what it has drawn since it was booted: the integral of `watts`.
        celsius: of the die.
        hot: whether the hardware slows it down.
        working: works that hold memory on it.
        silent: why it says nothing, or None.
    """

    load: float
    heat: float
    done: float
    watts: float
    joules: float
    celsius: float
    hot: bool
    working: int
    silent: Absent | None


def strain_of(gpu: Gpu, at: int, booted_at: int, faults: Iterable[Fault] = ()) -> Strain:
    """Return what a GPU does.

    Args:
        gpu: which.
        at: nanoseconds since 1970.
        booted_at: when its counters began; not after `at`.
        faults: of this GPU.
    """
    load = heat = 0.0
    working = 0
    for share, work in gpu.loads:
        _, second = work.day(at)
        load += share * work.cycle.load_at(second)
        heat += share * work.cycle.heat_at(second)
        working += work.cycle.span_at(second) >= 0
    done = _done(gpu, booted_at, at)
    hot, slowdown, silent = False, gpu.model.slowdown_celsius, None
    for fault in faults:
        if fault.kind is FaultKind.HOT_GPU:
            begin, end = max(fault.begin, booted_at), min(fault.end, at)
            if end > begin:
                done -= (1 - HOT_LEAVES) * _done(gpu, begin, end)
            if fault.begin <= at < fault.end:
                hot, slowdown = True, slowdown + fault.amount
        elif fault.begin <= at < fault.end:
            silent = {FaultKind.GPU_LOST: LOST, FaultKind.GPU_HUNG: HUNG}.get(fault.kind, silent)
    load *= HOT_LEAVES if hot else 1.0
    idle, span = gpu.model.idle_watts, gpu.peak_watts - gpu.model.idle_watts
    return Strain(
        load=load,
        heat=heat,
        done=done,
        watts=idle + span * load,
        joules=idle * (at - booted_at) / 1e9 + span * done,
        celsius=slowdown if hot else gpu.ambient + 5.0 + gpu.rise * heat,
        hot=hot,
        working=working,
        silent=silent,
    )


def _done(gpu: Gpu, begin: int, end: int) -> float:
    """Return the load-seconds between two instants."""
    return sum(share * (work.done_by(end) - work.done_by(begin)) for share, work in gpu.loads)
