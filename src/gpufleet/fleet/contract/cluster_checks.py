"""Checks of a cluster as a whole, from its registration, its collectors and its coverage. Pure."""

from collections.abc import Callable, Iterable

from gpufleet.fleet.contract.check import (
    CheckOutcome,
    ClusterCheck,
    ContractLimits,
    met,
    not_applicable,
    not_met,
    unknown,
)
from gpufleet.fleet.contract.facts import ClusterFacts
from gpufleet.model.api.kubernetes import CollectionState, CollectorRecord
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.kubernetes import CopyState
from gpufleet.model.liveness import ExpectedGpus
from gpufleet.model.text import counted

INVENTORY = ("nodes", "pods")
CLAIMS = ("resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io")
"""Resources of the checks of permissions, as `CopyRecord.resource`."""

HOUR_SECONDS = 3600.0


def _registered(facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    if facts.spec is None:
        return not_met(f"{facts.cluster} is only named in the configuration of the hub")
    return met(f"{facts.cluster} is registered")


def _field(name: str) -> Callable[[ClusterFacts, ContractLimits], CheckOutcome]:
    """Return the check of a text of the registration."""

    def run(facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
        spec = facts.spec or ClusterSpec()
        value: str | None = getattr(spec, name)
        return met(f"{name}: {value}") if value else not_met(f"the registration has no {name}")

    return run


def _expected_registered(facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    if facts.spec is None or not facts.spec.expected:
        return not_met("the registration has no expected number of GPUs")
    return met(", ".join(f"{name}: {count}" for name, count in sorted(facts.spec.expected.items())))


def _expected_agrees(facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    coverage = facts.coverage
    if coverage is None:
        return unknown("the coverage of the cluster")
    registered, sources = coverage.sources.registration, coverage.sources
    if registered is None:
        return not_applicable("no number is registered")
    others = ExpectedGpus(pci=sources.pci, nvml=sources.nvml, kubernetes=sources.kubernetes)
    best = others.best(coverage.kubernetes_shares)
    if best is None:
        return unknown("an expected number of GPUs from PCI buses, drivers or Kubernetes")
    count, source = best
    found = f"{registered} registered, {count} by {source}"
    if count == registered:
        return met(found)
    missing = _missing_counts(facts)
    return unknown(f"{missing}; {found}") if count < registered and missing else not_met(found)


def _missing_counts(facts: ClusterFacts) -> str:
    """Return which part of the GPUs of a cluster no source counts at present; empty if every known source does."""
    if facts.machines is None:
        return "the machines of the cluster"
    if facts.is_kubernetes and not _current_collectors(facts):
        return "the GPUs of the nodes in Kubernetes, because no collector reports"
    uncounted = sum(len(one.names) for one in facts.machines if one.facts.gpus is None)
    return f"the number of GPUs of {counted(uncounted, 'machine')}" if uncounted else ""


def _gpus_located(facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    """Compare the expected GPUs of the cluster with those of its known machines."""
    if facts.coverage is None or facts.coverage.expected is None:
        return unknown("the expected number of GPUs of the cluster")
    if facts.machines is None:
        return unknown("the machines of the cluster")
    expected, counts = facts.coverage.expected, [(one.facts.gpus, len(one.names)) for one in facts.machines]
    located = sum((gpus or 0) * machines for gpus, machines in counts)
    found = f"{located} of {expected} expected GPUs are on known machines"
    if located >= expected:
        return met(found)
    unsized = sum(machines for gpus, machines in counts if gpus is None)
    if unsized:
        return unknown(f"the number of GPUs of {counted(unsized, 'machine')}; {found}")
    return not_met(found, expected - located)


def _cluster_current(facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    liveness = facts.liveness
    if liveness is None:
        return unknown("the liveness of the cluster")
    age = "" if liveness.unseen_seconds is None else f", last report {liveness.unseen_seconds:.0f} s ago"
    found = f"{liveness.state}{age}"
    return met(found) if liveness.is_current else not_met(found)


def _current_collectors(facts: ClusterFacts) -> tuple[CollectorRecord, ...] | None:
    """Return the collectors that report now, the newest first; None if they are unknown."""
    if facts.collection is None:
        return None
    return tuple(one for one in facts.collection.collectors if one.current)


def _collector_reports(facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    collectors = _current_collectors(facts)
    if collectors is None or facts.collection is None:
        return unknown("the collectors of the cluster")
    if not collectors:
        return not_met(facts.collection.detail or "no collector reports")
    newest = collectors[0]
    return met(f"{newest.sender} reported {newest.age_seconds:.0f} s ago")


def _kubernetes_identity(facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
    collectors = _current_collectors(facts)
    if not collectors or facts.collection is None:
        return unknown("a report of a collector")
    if facts.collection.state is CollectionState.CONFLICT:
        return not_met(facts.collection.detail)
    uids = sorted({one.system_uid for one in collectors if one.system_uid})
    if not uids:
        return unknown("the UID of the namespace kube-system, which no collector could read")
    return met(f"UID of kube-system: {uids[0]}") if len(uids) == 1 else not_met(f"several UIDs: {', '.join(uids)}")


def _copied(resources: Iterable[str], complete: frozenset[CopyState]) -> Callable[..., CheckOutcome]:
    """Return the check that the newest collector copies resources.

    Args:
        resources: names of the resources.
        complete: states of a copy that count as met.
    """
    names = tuple(resources)

    def run(facts: ClusterFacts, _: ContractLimits) -> CheckOutcome:
        collectors = _current_collectors(facts)
        if not collectors:
            return unknown("a report of a collector")
        copies = {one.resource: one for one in max(collectors, key=lambda one: len(one.copies)).copies}
        bad, open_ = [], []
        for name in names:
            copy = copies.get(name)
            if copy is None:
                bad.append(f"{name} is not collected")
            elif copy.state is CopyState.FORBIDDEN or copy.rejected or not copy.is_complete:
                bad.append(f"{name}: {copy.detail or copy.example or copy.state}")
            elif copy.state not in complete:
                open_.append(f"{name}: {copy.state}")
        if bad:
            return not_met("; ".join(bad))
        if open_:
            return unknown("; ".join(open_))
        return met(", ".join(f"{name}: {copies[name].state}, {copies[name].objects} objects" for name in names))

    return run


def _critical_acknowledged(facts: ClusterFacts, limits: ContractLimits) -> CheckOutcome:
    seconds = facts.unacknowledged_critical_seconds
    if seconds is None:
        return unknown("the findings of the cluster")
    if seconds <= 0:
        return met("no critical finding is open without an acknowledgement")
    hours = seconds / HOUR_SECONDS
    found = f"a critical finding is open for {hours:.1f} h without an acknowledgement"
    return met(found) if hours <= limits["hours"] else not_met(found)


CLUSTER_CHECKS = (
    ClusterCheck(name="cluster_registered", help="The cluster is registered at the hub.", run=_registered),
    ClusterCheck(name="environment_declared", help="The registration has an environment.", run=_field("environment")),
    ClusterCheck(name="team_declared", help="The registration has a team.", run=_field("team")),
    ClusterCheck(name="contact_declared", help="The registration has a contact.", run=_field("contact")),
    ClusterCheck(
        name="expected_gpus_declared",
        help="The registration has the expected number of GPUs of at least one class.",
        run=_expected_registered,
    ),
    ClusterCheck(
        name="expected_gpus_agree",
        help="The registered number of GPUs equals the largest number of PCI buses, drivers and Kubernetes.",
        run=_expected_agrees,
    ),
    ClusterCheck(
        name="gpus_located",
        help="The known machines have as many GPUs as the cluster should have.",
        run=_gpus_located,
    ),
    ClusterCheck(name="cluster_current", help="The state of the cluster is live or late.", run=_cluster_current),
    ClusterCheck(name="collector_reports", help="A collector reports now.", run=_collector_reports),
    ClusterCheck(
        name="kubernetes_identity",
        help="All collectors report the same UID of the namespace kube-system.",
        run=_kubernetes_identity,
    ),
    ClusterCheck(
        name="inventory_copied",
        help="The collector has complete copies of nodes and pods.",
        run=_copied(INVENTORY, frozenset({CopyState.SYNCED})),
    ),
    ClusterCheck(
        name="claims_copied",
        help="The collector has copies of resource slices and claims, or the API server does not have them.",
        run=_copied(CLAIMS, frozenset({CopyState.SYNCED, CopyState.NOT_SERVED})),
    ),
    ClusterCheck(
        name="critical_findings_acknowledged",
        help="No critical finding is open for longer than `hours` without an acknowledgement.",
        limits={"hours": "h"},
        run=_critical_acknowledged,
    ),
)
