"""Facts by which the contract is judged: a cluster as the hub knows it, and a node or cluster as `doctor` examines it.

A fact that is not known is None, and the verdict of a check that needs it is unknown. Machines with equal facts are one
group, so that a judgement of 100,000 machines costs a few calls. `MachineFacts` has therefore few different values:
round times with `rounded_up`.
"""

import enum
import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from gpufleet.fleet.contract.records import (
    HOST_TIERS,
    KUBERNETES_TIERS,
    CheckPlace,
)
from gpufleet.model.api.answer import Coverage
from gpufleet.model.api.kubernetes import ClusterCollection
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.contract import Tier
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.machine import MachineKind


class GpuSource(enum.StrEnum):
    """Origin of the readings of a machine's GPUs."""

    AGENT = "agent"  # an agent reads the driver or DCGM, on the machine or on its host
    EXPORTER = "exporter"  # an agent reads an exporter or Netdata of the machine
    PULL = "pull"  # the hub scrapes or imports pages of an exporter
    NONE = "none"  # no readings: the machine is listed only


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about a machine that is not retired.

    Attributes:
        is_read: whether its readings and the sources of its expected GPUs could be read. If not, every item about it
            is unknown.
        kind: node or guest.
        state: liveness.
        unseen_days: whole days since its last report; None if it never reported.
        source: origin of its GPU readings.
        is_scraped: whether the hub connects to it, or to its exporter.
        in_kubernetes: whether it is a node of a Kubernetes cluster.
        version: gpufleet version of its sender, as reported; None if the hub creates its batches.
        heartbeat_seconds: interval that its sender declares; None likewise.
        clock_ahead_seconds: offset of its sender's clock from the hub's, negative if behind, away from 0 to whole
            seconds.
        missing_batches: batches of its sender that are missing and not in its backlog.
        dropped_batches: batches that its sender dropped in the last hour.
        expected_gpus: largest number of GPUs that the PCI bus, Kubernetes or the driver shows, without GPUs that are
            passed through to guests; 0 for a Kubernetes node without a GPU resource.
        reporting_gpus: GPUs with a current value.
        identified_gpus: reporting GPUs that are known by UUID.
        usage_gpus: reporting GPUs with current utilisation and memory. An absence with `not_supported`,
            `not_in_mig_mode` or `not_in_guest` counts: the device has no such value. So does one with
            `ambiguous_zero`: the source reports idle GPUs in this way.
        condition_gpus: reporting GPUs with current power and temperature, by the same rule.
        invalid_gpus: GPUs with a reading that is absent with `invalid_value`.
        unattributed_gpus: GPUs with unknown holders.
        interval_seconds: interval of its fastest readings of GPUs.
        value_age_seconds: age of its newest GPU value, up to whole minutes.
        driver_works: whether the state of its driver is `ok`.
        xids_watched: whether XIDs are read from the driver or the kernel log.
        evidence: identifying fields of `Machine` that it reports, as in `fleet.identity.EVIDENCE`.
        identity_conflict: whether its evidence contradicts another machine's, or another machine uses its epoch.
        region, zone, instance_type: as reported by the machine, or by Kubernetes about its node.
        has_pool: whether a label names its node pool; None without a Kubernetes node.
    """

    is_read: bool = True
    kind: MachineKind = MachineKind.NODE
    state: State | None = None
    unseen_days: int | None = None
    source: GpuSource | None = None
    is_scraped: bool | None = None
    in_kubernetes: bool = False
    version: str | None = None
    heartbeat_seconds: float | None = None
    clock_ahead_seconds: float | None = None
    missing_batches: int | None = None
    dropped_batches: int | None = None
    expected_gpus: int | None = None
    reporting_gpus: int | None = None
    identified_gpus: int | None = None
    usage_gpus: int | None = None
    condition_gpus: int | None = None
    invalid_gpus: int | None = None
    unattributed_gpus: int | None = None
    interval_seconds: float | None = None
    value_age_seconds: float | None = None
    driver_works: bool | None = None
    xids_watched: bool | None = None
    evidence: tuple[str, ...] = ()
    identity_conflict: bool | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    has_pool: bool | None = None

    @property
    def is_current(self) -> bool | None:
        """Return whether its newest report describes the present; None if its liveness is unknown."""
        return None if self.state is None else self.state in (State.LIVE, State.LATE)

    @property
    def gpus(self) -> int | None:
        """Return its number of GPUs: the larger of the expected and reporting ones; None if both are unknown."""
        counts = [one for one in (self.expected_gpus, self.reporting_gpus) if one is not None]
        return max(counts, default=None)


class MachineGroup(msgspec.Struct, frozen=True):
    """Machines with equal facts: the facts, and the names of the machines in order."""

    facts: MachineFacts
    names: tuple[str, ...]


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a cluster that the hub serves.

    Attributes:
        cluster: id.
        at: nanoseconds since 1970 by the hub's clock.
        hub_version: version of the hub.
        spec: registration; None if the cluster is only named in the hub's configuration.
        tier: declared tier; None if none was declared.
        liveness: liveness of the cluster.
        coverage, collection: as in `ClusterRecord`.
        machines: its machines that are not retired, without removed guests; None if they could not be read.
        unacknowledged_critical_seconds: time since its oldest open, critical and unacknowledged finding opened; 0 if
            there is none, None if the rules were not evaluated.
    """

    cluster: str
    at: int
    hub_version: str
    spec: ClusterSpec | None = None
    tier: Tier | None = None
    liveness: Liveness | None = None
    coverage: Coverage | None = None
    collection: ClusterCollection | None = None
    machines: tuple[MachineGroup, ...] | None = None
    unacknowledged_critical_seconds: float | None = None

    @property
    def is_kubernetes(self) -> bool:
        """Return whether the cluster is known to be a Kubernetes cluster."""
        if self.collection is not None and self.collection.collectors:
            return True
        if self.coverage is not None and self.coverage.kubernetes:
            return True
        return any(one.facts.in_kubernetes for one in self.machines or ())

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Return the tiers that the cluster can reach, lowest first."""
        return KUBERNETES_TIERS if self.is_kubernetes else HOST_TIERS


class PlaceResult(msgspec.Struct, frozen=True):
    """Result of a check of `gpufleet doctor`: its verdict and what it found, as in `doctor.facts.CheckResult`."""

    verdict: Literal["ok", "warning", "failed", "unknown", "not_applicable"]
    found: str


class PlaceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Results of `gpufleet doctor` at a place: on a node, or with a collector's credentials; by name of the check."""

    place: CheckPlace
    results: Mapping[str, PlaceResult]


def group_machines(machines: Iterable[tuple[str, MachineFacts]]) -> tuple[MachineGroup, ...]:
    """Return the machines in groups of equal facts, in order of their first names.

    Args:
        machines: name and facts of each machine.
    """
    names: dict[MachineFacts, list[str]] = {}
    for name, facts in machines:
        names.setdefault(facts, []).append(name)
    groups = [MachineGroup(facts, tuple(sorted(own))) for facts, own in names.items()]
    return tuple(sorted(groups, key=lambda one: one.names[0]))


def rounded_up(seconds: float, step: float) -> float:
    """Return seconds rounded away from 0 to a multiple of `step`, so that few different values exist."""
    return math.copysign(math.ceil(abs(seconds) / step) * step, seconds)


def observed_tier(facts: ClusterFacts) -> Tier | None:
    """Return the tier of most machines with GPUs, by the origin of their readings; the higher tier on a tie.

    None if no machine is known and no collector reports. None also if machines or collectors could not be read, because
    the tier depends on them.
    """
    if facts.machines is None or facts.collection is None:
        return None
    collected = any(one.current for one in facts.collection.collectors)
    listed = Tier.COLLECTOR if collected else Tier.PULL
    if facts.is_kubernetes:
        tiers = {GpuSource.AGENT: Tier.AGENT, GpuSource.EXPORTER: Tier.EXPORTERS}
    else:
        tiers = {GpuSource.AGENT: Tier.HOSTS, GpuSource.EXPORTER: Tier.HOSTS}
    counts: dict[Tier, int] = {}
    for group in facts.machines:
        if group.facts.source is not None and group.facts.gpus != 0:
            tier = tiers.get(group.facts.source, listed)
            counts[tier] = counts.get(tier, 0) + len(group.names)
    if not counts:
        return Tier.COLLECTOR if collected else None
    return max(counts, key=lambda tier: (counts[tier], tier))
