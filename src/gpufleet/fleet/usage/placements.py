"""Instance type and region of GPUs over time, from what their machines reported. Pure.

- A text of a machine holds from its first report until another text is reported. Before that it is unknown.
- A GPU has the placement of the machine that it is in. A GPU that its host and a guest see has that of the host, from
  the host's first report of it on.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.fleet.usage.residence import UNBOUNDED, Interval
from gpufleet.fleet.usage.stays import clipped
from gpufleet.fleet.usage.units import Place, UnitPlacement

Texts = Sequence[tuple[int, str]]
"""Times from which texts hold, nanoseconds since 1970 and ascending, and the texts."""

_ALWAYS: Sequence[Interval] = ((0, UNBOUNDED),)


class MachinePlacement(msgspec.Struct, frozen=True):
    """Instance type and region of a machine over time.

    Attributes:
        is_guest: whether the machine is a guest.
        instance_types, regions: as reported.
    """

    is_guest: bool
    instance_types: Texts
    regions: Texts


def placements_of(
    views: Sequence[Place],
    machines: Mapping[str, MachinePlacement],
    stays: Mapping[Place, Sequence[Interval]],
    first: Mapping[Place, int] = {},
) -> tuple[UnitPlacement, ...]:
    """Return the placements of a GPU, in order of time.

    Args:
        views: its views.
        machines: placements of their machines, by id.
        stays: intervals in which a view's GPU was in its machine; one without stays was always there.
        first: first reports of views, nanoseconds since 1970. A GPU that a guest reported before its host has the
            placement of the host from that on only.
    """
    views = [one for one in views if one[0] in machines]
    begun: dict[str, int] = {}
    for place in views:
        if place in first:
            begun[place[0]] = min(first[place], begun.get(place[0], UNBOUNDED))
    inside = min((at for id_, at in begun.items() if machines[id_].is_guest), default=UNBOUNDED)
    own: list[tuple[MachinePlacement, Sequence[Interval]]] = []
    for place in views:
        machine, intervals, since = machines[place[0]], stays.get(place, _ALWAYS), begun.get(place[0], 0)
        is_later = not machine.is_guest and inside < since
        own.append((machine, clipped(intervals, since, UNBOUNDED) if is_later else intervals))
    edges = {0}
    for machine, intervals in own:
        edges.update(at for interval in intervals for at in interval if at < UNBOUNDED)
        edges.update(at for at, _ in (*machine.instance_types, *machine.regions))
    found: list[UnitPlacement] = []
    for at in sorted(edges):
        present = sorted(
            (one.is_guest, _at(one.instance_types, at), _at(one.regions, at))
            for one, intervals in own
            if any(start <= at < end for start, end in intervals)
        )
        type_ = next((one for _, one, _ in present if one), None)
        region = next((one for _, _, one in present if one), None)
        if not found or found[-1][1:] != (type_, region):
            found.append(UnitPlacement(at, type_, region))
    return tuple(found)


def _at(texts: Texts, at: int) -> str:
    """Return the text at an instant, empty if it is unknown."""
    return next((text for since, text in reversed(texts) if since <= at), "")
