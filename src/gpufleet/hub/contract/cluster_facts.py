"""Facts about clusters for the adoption contract, from what an evaluation of the rules read."""

from collections.abc import Container, Mapping, Sequence

import msgspec
import numpy as np

from gpufleet import __version__
from gpufleet.fleet.contract.facts import ClusterFacts, MachineGroup
from gpufleet.fleet.facts.fleet import FleetTables
from gpufleet.fleet.rules.facts import FactTable
from gpufleet.hub.contract.machine_facts import ClusterColumns, machine_groups
from gpufleet.hub.findings.instant import HubInstant
from gpufleet.hub.findings.states import ClusterState
from gpufleet.hub.liveness.tally import NO_MACHINES, roll_up, tally
from gpufleet.hub.query.kubernetes_records import cluster_collection
from gpufleet.model.api.answer import Coverage
from gpufleet.model.liveness import Liveness
from gpufleet.model.stored.kubernetes import StoredCollector


class GatheredTables(msgspec.Struct, frozen=True):
    """Tables of an evaluation.

    Attributes:
        fleet: machines and GPUs.
        senders: senders.
        coverage: coverage by cluster; without a cluster whose coverage is unknown.
    """

    fleet: FleetTables
    senders: FactTable
    coverage: Mapping[str, Coverage]


def contract_facts(
    states: Sequence[ClusterState],
    tables: GatheredTables,
    collectors: Mapping[str, Sequence[StoredCollector]] | None,
    instant: HubInstant,
    unread: Container[str],
    stale_after_seconds: float,
) -> tuple[ClusterFacts, ...]:
    """Return the facts about every served cluster, without those about its findings.

    Args:
        states: all clusters.
        tables: tables with a row for each of their machines and senders, in the same order.
        collectors: newest report of the collectors of each cluster; None if they could not be read.
        instant: state of the hub.
        unread: clusters whose machines or readings could not be read.
        stale_after_seconds: the hub's freshness limit for values.
    """
    found, first_machine, first_sender, now = [], 0, 0, instant.liveness.now
    for one in states:
        reports = tables.fleet.gpu_reports.get(one.id)
        groups: tuple[MachineGroup, ...] | None = None
        if not one.is_retired and reports is not None and one.id not in unread:
            columns = ClusterColumns(
                state=one,
                machines=tables.fleet.machines,
                first_machine=first_machine,
                senders=tables.senders,
                first_sender=first_sender,
                reports=reports,
                now=now,
                stale_after_seconds=stale_after_seconds,
            )
            groups = machine_groups(columns)
        first_machine += len(one.machines.records)
        first_sender += len(one.senders.names)
        if one.is_retired:
            continue
        found.append(
            ClusterFacts(
                cluster=one.id,
                at=now,
                hub_version=__version__,
                spec=one.spec,
                tier=None if one.spec is None else one.spec.tier,
                liveness=_liveness(one, instant),
                coverage=tables.coverage.get(one.id),
                collection=None if collectors is None else cluster_collection(collectors.get(one.id, ()), now),
                machines=groups,
            )
        )
    return tuple(found)


def _liveness(cluster: ClusterState, instant: HubInstant) -> Liveness:
    names = np.array(cluster.senders.names, object)[cluster.retired_senders]
    total = tally(instant.liveness, cluster.id, NO_MACHINES, frozenset(names.tolist()), {})
    return roll_up(total, None, closed=False, missing=0).liveness
