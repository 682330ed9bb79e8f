"""GPUs that several machines report: the number of reports that contradict each other. Pure.

A physical GPU is in one machine. Two machines with a current report of one UUID contradict each other, except:

- A guest and its hypervisor: both views can be of one GPU that is passed through.
- A guest and a node with its system UUID: both are the same virtual machine, read from outside and from inside.

A guest's report is its own claim. It counts for guests only, so that a guest cannot cause findings about machines.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from gpufleet.fleet.facts.supplied import MachineInputs
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.stored.readings import ViewColumns
from gpufleet.model.time import NANOS

DEFAULT_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 60.0, 600.0
"""Interval of a machine without a declared one, and the longest interval that counts."""

DUPLICATE_SECONDS = 2 * MAX_INTERVAL_SECONDS
"""Age of the oldest reports that the facts need: the argument of `FactStore.duplicate_views`."""


MAX_REPORTERS = 64
"""Maximum number of current reports of a GPU that are compared."""


class _GpuReporter(msgspec.Struct, frozen=True):
    """Machine with a report of a GPU: its id, whether it is a guest, its hypervisor and its system UUID."""

    machine: str
    is_guest: bool = False
    hypervisor: str = ""
    system_uuid: str | None = None

    def contradicts(self, other: "_GpuReporter") -> bool:
        """Return whether the other report and this one cannot both be true."""
        if self.machine == other.machine or (other.is_guest and not self.is_guest):
            return False
        if not self.is_guest or other.is_guest:
            return True
        is_same = self.system_uuid is not None and self.system_uuid == other.system_uuid
        return other.machine != self.hypervisor and not is_same


class GpuReporters:
    """Machines of all clusters, to judge which of them report a GPU now."""

    def __init__(self) -> None:
        self._inputs: list[MachineInputs] = []
        self._known: dict[str, _GpuReporter] = {}
        self._seconds: dict[str, float] = {}

    def add(self, inputs: MachineInputs) -> None:
        """Add the machines of a cluster. Retired ones do not count."""
        self._inputs.append(inputs)

    def contradictions(self, duplicates: ViewColumns, now: int) -> dict[tuple[str, str], int]:
        """Return (machine id, view key) of each report to the number of machines with contradicting reports.

        Args:
            duplicates: GPUs that several machines reported.
            now: nanoseconds since 1970 by the hub's clock.
        """
        for inputs in self._inputs:
            self._find(inputs, frozenset(duplicates.machine))
        reports: dict[str, list[str]] = {}
        current: dict[str, list[_GpuReporter]] = {}
        for machine, view, at in zip(duplicates.machine, duplicates.view, duplicates.received_at, strict=True):
            reports.setdefault(view, []).append(machine)
            found = current.setdefault(view, [])
            is_current = machine in self._known and abs(now - at) / NANOS <= self._seconds[machine]
            if is_current and len(found) < MAX_REPORTERS:
                found.append(self._known[machine])
        return {
            (machine, view): self._count(machine, current.get(view, ()))
            for view, machines in reports.items()
            for machine in machines
        }

    def _find(self, inputs: MachineInputs, wanted: Collection[str]) -> None:
        """Record the `wanted` machines of a cluster."""
        if not wanted:
            return
        intervals = np.nan_to_num(inputs.numbers("interval_seconds"), nan=DEFAULT_INTERVAL_SECONDS)
        uuids = inputs.system_uuids or [None] * len(inputs.machines)
        columns = zip(inputs.machines, inputs.retired, inputs.hypervisors, uuids, intervals.tolist(), strict=True)
        for machine, is_retired, hypervisor, uuid, interval in columns:
            if machine in wanted and not is_retired:
                self._known[machine] = _GpuReporter(machine, hypervisor is not None, hypervisor or "", uuid)
                self._seconds[machine] = 2 * min(interval, MAX_INTERVAL_SECONDS)

    def _count(self, machine: str, current: Iterable[_GpuReporter]) -> int:
        """Return the number of machines whose current reports contradict that of a machine, itself included."""
        own = self._known.get(machine, _GpuReporter(machine))
        rivals = {one.machine for one in current if own.contradicts(one)}
        return len(rivals) + any(one.machine == machine for one in current)


def machines_column(
    machines: Sequence[str], views: Sequence[str], named: Column, counts: Mapping[tuple[str, str], int]
) -> Column:
    """Return the input `machines` of GPUs.

    Args:
        machines, views: machine id and view key of each GPU.
        named: whether each GPU has a UUID.
        counts: result of `GpuReporters.contradictions`.
    """
    found = np.where(named, 1.0, np.nan)
    if counts:
        for at, place in enumerate(zip(machines, views, strict=True)):
            number = counts.get(place)
            if number is not None:
                found[at] = max(1, number)
    return found
