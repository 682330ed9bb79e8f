"""Inputs about machines and GPUs that the hub supplies: from reports, the registry, and the scan of machines."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpufleet.fleet.facts.holders import holder_columns
from gpufleet.fleet.facts.supplied import HolderColumns, MachineInputs
from gpufleet.fleet.identity import EVIDENCE
from gpufleet.fleet.rules.logic import Column
from gpufleet.hub.findings.deleted_nodes import DeletionTimes
from gpufleet.hub.findings.reports import MachineColumns
from gpufleet.hub.findings.scan import ScannedMachine
from gpufleet.hub.flush.normalise import FUTURE_TOLERANCE_SECONDS
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.machine import MachineKind
from gpufleet.model.time import NANOS

NOTHING = ScannedMachine(second=0)
"""Result for a machine that was not read yet, or too long ago."""

Scanned = Sequence[ScannedMachine | None]
"""Newest scan of each machine, None if there is none."""


def machine_inputs(
    machines: MachineColumns,
    scanned: Scanned,
    agents: Callable[[str, str], int | None],
    *,
    is_queried: bool,
    deleted_seconds: Column | None = None,
) -> MachineInputs:
    """Return the inputs of the machines of a cluster.

    The time without a report of a guest is unknown: its host decides which guests exist. Sources of expected GPUs count
    as queried once every expected machine was read.

    Args:
        machines: the machines.
        scanned: newest scan of each of them.
        agents: returns the number of senders with the boot of a sender's machine, by cluster and sender.
        is_queried: whether the store answered.
        deleted_seconds: result of `node_deleted_seconds`.
    """
    records, known = machines.records, [NOTHING if one is None else one for one in scanned]
    is_known = [one is not None for one in scanned]
    is_guest = np.array([one.machine.kind is MachineKind.GUEST for one in records], bool)
    return MachineInputs(
        machines=[one.id for one in records],
        retired=machines.retired,
        hypervisors=[_hypervisor(one) for one in records],
        system_uuids=[one.machine.system_uuid for one in records],
        pools=[one.machine.instance_type for one in records],
        last_errors=[one.last_error for one in known],
        unseen_seconds=np.where(is_guest, np.nan, machines.unseen),
        interval_seconds=machines.interval,
        pci_gpus=[one.pci_gpus for one in known],
        kubernetes_gpus=[one.kubernetes_gpus for one in known],
        allocatable_gpus=[one.allocatable_gpus for one in known],
        allocated_gpus=[one.allocated_gpus for one in known],
        identity_conflict=_conflicting(machines),
        agents=[agents(one.cluster, one.sender) for one in records],
        unresolved_devices=[one.unresolved_devices for one in known],
        node_deleted_seconds=deleted_seconds,
        is_ahead=machines.ahead > FUTURE_TOLERANCE_SECONDS,
        is_queried=is_queried and all(known or gone for known, gone in zip(is_known, machines.retired, strict=True)),
    )


def node_deleted_seconds(machines: MachineColumns, deleted: DeletionTimes | None, now: int) -> Column | None:
    """Return the time since the deletion of the Kubernetes node by which each machine was retired.

    Infinite for every other machine; NaN for a retired machine whose cause is not known yet. None if nothing is
    known.
    """
    if deleted is None:
        return None
    found = np.full(len(machines.records), np.inf)
    for place in np.flatnonzero(machines.retired).tolist():
        one = machines.records[place]
        at = deleted.get(one.id)
        if at is not None:
            found[place] = max(0, now - at) / NANOS
        elif one.id not in deleted and one.retired_at == one.last_seen:
            found[place] = np.nan
    return found


def _conflicting(machines: MachineColumns) -> Sequence[bool | None]:
    """Return whether each machine shares evidence with another machine while both report.

    None for a machine with a conflict if neither it nor another machine with its evidence reports.

    The registry keeps a conflict for as long as the machine has the evidence, even if the other machine is gone. It
    records each conflict of two machines for both of them. It compares guests of one hypervisor only.
    """
    evidence = [() if one.conflict is None else _evidence(one) for one in machines.records]
    is_current = machines.is_current.tolist()
    counts = Counter(item for own, current in zip(evidence, is_current, strict=True) if current for item in own)
    found: list[bool | None] = []
    for own, current in zip(evidence, is_current, strict=True):
        reporting = max((counts[item] for item in own), default=0)
        found.append(None if own and not reporting else current and reporting > 1)
    return found


def _evidence(machine: MachineRecord) -> Sequence[tuple[str | None, str, str]]:
    """Return hypervisor (None for a node), field and value of the evidence that identifies a machine."""
    fields = [(field, getattr(machine.machine, field)) for field in EVIDENCE if field != "name"]
    return [(_hypervisor(machine), field, value) for field, value in fields if value]


def _hypervisor(machine: MachineRecord) -> str | None:
    return None if machine.machine.kind is not MachineKind.GUEST else machine.hypervisor_id or ""


def current_holders(machines: MachineColumns, scanned: Scanned) -> HolderColumns:
    """Return the holders of the GPUs of machines whose newest report describes the present."""
    return holder_columns(
        (record.id, one.holders)
        for record, one, current in zip(machines.records, scanned, machines.is_current.tolist(), strict=True)
        if one is not None and current
    )


def attribution(scanned: Scanned) -> Mapping[str, int]:
    """Return the cluster's inputs `allocated_devices` and `unattributed_devices`; empty if no source reports them.

    Kubernetes allocates devices to pods; some of them have a known holder. SLURM allocates the devices of its jobs,
    and those whose name identifies no device.
    """
    allocated = unattributed = 0
    is_known = False
    for one in scanned:
        if one is None:
            continue
        if one.allocated_gpus is not None:
            allocated += one.allocated_gpus
            unattributed += max(0, one.allocated_gpus - one.attributed)
        if one.unresolved_jobs is not None:
            allocated += one.jobs + one.unresolved_jobs
            unattributed += one.unresolved_jobs
        is_known = is_known or one.allocated_gpus is not None or one.unresolved_jobs is not None
    return {"allocated_devices": allocated, "unattributed_devices": unattributed} if is_known else {}
