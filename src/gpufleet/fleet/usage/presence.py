"""Presence of GPUs: intervals in which a device is known to exist and counts as a device of its own. Pure.

- A device is present from its first to its last report, while it is in its machine.
- A GPU that is divided into vGPUs does not count beside them. It counts before the first of them and after the last.
- A GPU that a guest sees does not count while its host reports GPUs, or reports that the guest's virtual machine has
  one: the host's device counts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS, UNBOUNDED, Interval, gaps
from gpufleet.fleet.usage.stays import clipped
from gpufleet.fleet.usage.units import Place
from gpufleet.model.view import View, ViewKind


def reported_spans(first: Mapping[Place, int], last: Mapping[Place, int], now: int) -> dict[Place, Interval]:
    """Return the time from the first to the last report of devices; without an end if the last one is recent.

    Args:
        first, last: times of reports, nanoseconds since 1970.
        now: nanoseconds since 1970 by the hub's clock.
    """
    return {place: (first[place], UNBOUNDED if at >= now - MAX_CLOCK_SKEW_NS else at) for place, at in last.items()}


def present_intervals(
    views: Mapping[Place, View],
    spans: Mapping[Place, Interval],
    stays: Mapping[Place, Sequence[Interval]],
    hosts: Mapping[str, str],
    hosted: Mapping[str, Sequence[Interval]],
) -> dict[Place, list[Interval]]:
    """Return the intervals in which devices are present.

    Args:
        views: every device, also those that ended.
        spans: as `reported_spans` returns them.
        stays: of GPUs that were not always in their machine.
        hosts: guest to its present hypervisor.
        hosted: guest to the intervals in which a host reported that its virtual machine had a device.
    """
    divided: dict[Place, list[Interval]] = defaultdict(list)
    of_machine: dict[str, list[Interval]] = defaultdict(list)
    for (machine, key), view in views.items():
        if view.kind is ViewKind.VGPU and view.parent is not None:
            divided[machine, view.parent].append(spans[machine, key])
        of_machine[machine].append(spans[machine, key])
    found: dict[Place, list[Interval]] = {}
    for place in views:
        hidden = divided.get(place, [])
        machine = place[0]
        if machine in hosts or machine in hosted:
            own = of_machine.get(hosts.get(machine, ""), ())
            by_host = [(min(a for a, _ in own), max(b for _, b in own))] if own else []
            hidden = [*hidden, *by_host, *hosted.get(machine, ())]
        start, end = spans[place]
        parts = clipped(stays.get(place, [(start, end)]), start, end)
        found[place] = [part for a, b in parts for part in gaps(hidden, a, b)]
    return found
