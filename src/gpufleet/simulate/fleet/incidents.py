"""Incidents of the simulated fleet: faults of single GPUs from time to time, chosen by its seed."""

from collections.abc import Iterator

from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault
from gpufleet.simulate.fleet.random_values import number

INTERVAL_SECONDS = 120.0
"""Interval between incidents of a large fleet."""

GPU_SECONDS = 7200.0
"""Minimum mean interval between incidents of one GPU. A small fleet has fewer incidents."""

DAYS = 30
"""Duration of the schedule. It bounds its size."""

KINDS = (FaultKind.XID, FaultKind.HOT_GPU, FaultKind.ECC_ERROR, FaultKind.GPU_LOST)
"""Kinds in the order of their turns."""

LASTS_SECONDS = {FaultKind.HOT_GPU: 300, FaultKind.GPU_LOST: 180}

APPLICATION_XIDS = (13, 31, 43, 45)
"""XIDs of application errors, which a fleet has most often."""

MAX_CELSIUS_ABOVE = 5


def make_incidents(seed: int, clusters: int, nodes: int, gpus: int, start: int) -> Iterator[FleetFault]:
    """Yield the incidents of a fleet of this size, in order, from `start` (nanoseconds since 1970)."""
    total = clusters * nodes * gpus
    interval = max(INTERVAL_SECONDS, GPU_SECONDS / total)
    for turn in range(int(DAYS * 86_400 / interval)):
        kind = KINDS[turn % len(KINDS)]
        place = number(total, seed, "incident", turn)
        begin = start + int((turn + 1) * interval * NANOS)
        yield FleetFault(
            kind=kind,
            begin=begin,
            end=begin + LASTS_SECONDS.get(kind, 0) * NANOS,
            cluster=place // (nodes * gpus) + 1,
            node=place // gpus % nodes + 1,
            gpu=place % gpus,
            amount=_amount(kind, seed, turn),
        )


def _amount(kind: FaultKind, seed: int, turn: int) -> float:
    chance = number(1 << 16, seed, "incident amount", turn)
    match kind:
        case FaultKind.XID:
            return APPLICATION_XIDS[chance % len(APPLICATION_XIDS)]
        case FaultKind.HOT_GPU:
            return 1 + chance % MAX_CELSIUS_ABOVE
        case FaultKind.ECC_ERROR:
            return 1
        case _:
            return 0
