"""Units that an allocation has over time, and the devices that it lacks. Pure."""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from gpufleet.fleet.usage.segments import HeldPart, UnitKey
from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation


class AllocatedUnit(NamedTuple):
    """Unit of an allocation: its id in a cluster, the allocated part, and the interval in which it has the unit."""

    id: str
    part: HeldPart
    start: int
    end: int


class AllocatedUnits(msgspec.Struct, frozen=True):
    """Units of an allocation, and why there are not more.

    Attributes:
        units: the units.
        reason, detail: why there are not more.
        ambiguous: intervals in which its units are unknown, each with a number of GPUs.
        uncertain: number of devices with holdings that are not certain, or None if there are none of these.
        possible: units of holdings that give no hours, because they are not certain.
    """

    units: tuple[AllocatedUnit, ...]
    reason: Reason = Reason.NOT_COLLECTED
    detail: str = ""
    ambiguous: tuple[tuple[int, int, int], ...] = ()
    uncertain: int | None = None
    possible: tuple[AllocatedUnit, ...] = ()


def missing_devices(
    allocation: Allocation,
    had: Sequence[AllocatedUnit],
    units: dict[UnitKey, PhysicalUnit],
    span: tuple[int, int],
    ambiguous: Sequence[tuple[int, int, int]] = (),
) -> tuple[int, list[tuple[PhysicalUnit, int, int]]]:
    """Return the largest number of devices that an allocation lacks within an interval, and their stand-ins.

    A stand-in is a unit with the interval in which it represents a missing device: a GPU that moved away is missing
    from then on, until another one is present. In an ambiguous interval, a number of devices is missing at least.
    """
    spec = allocation.spec
    listed = [name for name in spec.devices or () if not name.startswith("MIG-")]
    if any(unit.part.name != WHOLE for unit in had) and not listed:
        return 0, []  # it has shares of GPUs, and its expected GPUs cannot be compared with them
    wanted = max(len(listed), sum(spec.expected.values()))
    if not wanted and not ambiguous:
        return 0, []
    cluster = spec.target.cluster
    known = [unit for unit in had if (cluster, unit.id) in units]
    there = [(unit.start, unit.end, unit.id) for unit in known if unit.part.name == WHOLE]
    others = [units[cluster, unit.id] for unit in known]
    model = _model_of(spec.expected, {unit.model for unit in others})
    changes = sorted({at for unit in others for at, _ in unit.models})
    models = tuple((at, _model_of(spec.expected, {unit.model_at(at) for unit in others})) for at in changes)
    most, stand_ins = 0, []
    for start, end in pairwise(sorted({*span, *(at for one in (*there, *ambiguous) for at in one[:2])})):
        least = max((number for first, last, number in ambiguous if first <= start and end <= last), default=0)
        lacking = max(wanted, least) - len({id_ for first, last, id_ in there if first <= start and end <= last})
        most = max(most, lacking)
        names = (f"missing/{allocation.id}/{number}" for number in range(lacking))
        stand_ins += [(PhysicalUnit(cluster, name, (), model, {}, models=models), start, end) for name in names]
    return most, stand_ins


def _model_of(expected: Collection[str], others: Iterable[str | None]) -> str | None:
    """Return the model of a missing GPU: the driver's name of the other GPUs of its class, if they have a single name.

    Classes are short names such as `H200`; groups and prices use the driver's `NVIDIA H200`.
    """
    if len(expected) != 1:
        return None
    (kind,) = expected
    alike = {name for name in others if name is not None and kind.casefold() in name.casefold()}
    return alike.pop() if len(alike) == 1 else kind
