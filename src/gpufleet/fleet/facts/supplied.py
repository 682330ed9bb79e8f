"""Records that the hub supplies for the facts: its knowledge of machines and holders, beside the newest readings."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from gpufleet.fleet.rules.logic import Column
from gpufleet.model.stored.readings import EventCount, NewestColumns

Numbers = Column | Sequence[float | None]
"""Number of each machine or device, None or NaN for an unknown one."""


class MachineInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of a cluster as the hub knows them, in columns. A column that is None is unknown for all machines.

    The inputs of `rules/inputs.py` have their names.

    Attributes:
        machines: ids of all machines of the cluster that are listed, retired ones too.
        retired: whether each machine is retired.
        hypervisors: of a guest, the id of its hypervisor or an empty text if that is unknown; None for a node.
        system_uuids: system UUID of each machine, None if unknown.
        pools: pool of each machine, such as its instance type; None if unknown: the product name of its system counts.
        last_errors: newest error of each machine's readers, None if there is none.
        unseen_seconds, interval_seconds, pci_gpus, passthrough_gpus, kubernetes_gpus, allocatable_gpus,
            allocated_gpus, identity_conflict, agents, unresolved_devices, node_deleted_seconds: inputs of the
            scope machine. If `passthrough_gpus` is unknown, GPUs that the PCI bus shows as passed through count.
        is_ahead: whether the clock of each machine is so far ahead that the hub does not store its values.
        is_queried: whether the sources of expected GPUs (PCI inventory, Kubernetes) could be queried.
    """

    machines: Sequence[str]
    retired: Sequence[bool] | Column
    hypervisors: Sequence[str | None]
    system_uuids: Sequence[str | None] | None = None
    pools: Sequence[str | None] | None = None
    last_errors: Sequence[str | None] | None = None
    unseen_seconds: Numbers | None = None
    interval_seconds: Numbers | None = None
    pci_gpus: Numbers | None = None
    passthrough_gpus: Numbers | None = None
    kubernetes_gpus: Numbers | None = None
    allocatable_gpus: Numbers | None = None
    allocated_gpus: Numbers | None = None
    identity_conflict: Numbers | None = None
    agents: Numbers | None = None
    unresolved_devices: Numbers | None = None
    node_deleted_seconds: Numbers | None = None
    is_ahead: Column | None = None
    is_queried: bool = True

    def numbers(self, name: str) -> Column:
        """Return a column of numbers by name, NaN for unknown ones."""
        found = getattr(self, name)
        return np.full(len(self.machines), np.nan) if found is None else np.array(found, np.float64)

    @property
    def is_guest(self) -> Column:
        """Whether each machine is a guest that is read through its host."""
        return np.array([one is not None for one in self.hypervisors], bool)


class HolderColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Holders of GPUs of a cluster, in columns. A GPU that is not listed has unknown holders.

    Attributes:
        machine, view: machine id and view key of each GPU.
        held: 1 with a holder of the GPU or of a part of it, 0 without one, NaN if unknown.
        since: start of the newest holding, nanoseconds since 1970; 0 if unknown.
        conflict: whether a holding has the verdict `conflict`.
    """

    machine: Sequence[str]
    view: Sequence[str]
    held: Sequence[float]
    since: Sequence[int]
    conflict: Sequence[bool]


class ClusterInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about a cluster at a judgement.

    Attributes:
        cluster: id.
        newest: newest readings of `FACT_METRICS`.
        machines: its machines.
        holders: holders of its GPUs, or None if they could not be queried.
        events: events of `FACT_EVENTS` within `EVENT_SECONDS`, or None if they could not be queried.
        ingest_age: returns the seconds in which the hub ingested since a time, nanoseconds since 1970. None counts all
            seconds.
        flush_seconds: seconds of newest readings that may not be in the store yet.
    """

    cluster: str
    newest: NewestColumns
    machines: MachineInputs
    holders: HolderColumns | None = None
    events: Sequence[EventCount] | None = None
    ingest_age: Callable[[int], float] | None = None
    flush_seconds: float = 0.0
