"""Judgement of a cluster by the contract: status of each item, tier, and what is not visible. Pure.

- A MUST item that is in force, applies to the judged tier and is not met lists its subjects as not visible, unless it
  is waived. They are never counted as idle or as zero.
- The GPUs of a machine that does not meet an item count as not visible. An item about the cluster lists the cluster:
  its GPUs with a current value stay visible, its other ones count as not visible.
- An unknown status neither meets an item nor lists a subject as not visible.
- A MUST item that only the next version has, or only the present one, is a warning.
- The judged tier is the declared one, else the tier of most machines.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.contract.check import CheckOutcome, ClusterCheck, DoctorCheck, ItemStatus, MachineCheck, unknown
from gpufleet.fleet.contract.facts import ClusterFacts, MachineFacts, MachineGroup, PlaceFacts, observed_tier
from gpufleet.fleet.contract.records import (
    AdoptionContract,
    CheckPlace,
    ContractItem,
    ItemPhase,
    Requirement,
)
from gpufleet.fleet.contract.table import CHECKS
from gpufleet.fleet.contract.verdict import (
    MAX_EXAMPLES,
    ClusterVerdict,
    ItemVerdict,
    MachineOutcome,
    RequirementCounts,
)
from gpufleet.model.contract import ClusterVisibility, ContractWaiver, Tier
from gpufleet.model.time import to_ns


def judge_cluster(
    contract: AdoptionContract,
    facts: ClusterFacts,
    waivers: Iterable[ContractWaiver] = (),
    last_tier: Tier | None = None,
) -> ClusterVerdict:
    """Return the verdict about a cluster by the items that the hub checks.

    Args:
        contract: the contract.
        facts: what the hub knows about the cluster.
        waivers: waivers of this cluster.
        last_tier: tier by which it was judged last: it counts while its present tier is not known.
    """
    valid, ignored = valid_waivers(contract, waivers, facts.at)
    judge = _ClusterJudge(contract, facts, valid)
    observed = observed_tier(facts) if facts.tier is None else facts.tier
    observed = last_tier if observed is None else observed
    tier = Tier.PULL if observed is None else observed
    verdicts = judge.of_tier(tier)
    must = [one for one in verdicts if judge.is_required(one)]
    failed = [one for one in must if one.status is ItemStatus.NOT_MET and one.waived_until is None]
    hidden = judge.hidden([one.item for one in failed])
    return ClusterVerdict(
        cluster=facts.cluster,
        at=facts.at,
        versions=contract.versions,
        judged_tier=observed,
        is_declared=facts.tier is not None,
        reached_tier=judge.reached(facts.tiers),
        visibility=_visibility(must, failed, judge.reporting),
        must=_counts(must),
        items=verdicts,
        not_visible=tuple([one.item for one in failed]),
        warnings=tuple([one.item for one in verdicts if judge.is_warning(one)]),
        gpus_not_visible=hidden.gpus,
        gpus_reporting=hidden.reporting,
        machines_not_visible=hidden.machines,
        machines_without_count=hidden.uncounted,
        ignored_waivers=ignored,
    )


def judge_place(contract: AdoptionContract, facts: PlaceFacts, tier: Tier) -> tuple[ItemVerdict, ...]:
    """Return the verdict of every item of a tier that is checked at the place, in the order of the contract.

    Args:
        contract: the contract.
        facts: results of `gpufleet doctor` there.
        tier: tier of the cluster.
    """
    found = []
    for item in contract.items_on(facts.place):
        check = CHECKS[item.check]
        if tier in item.tiers and isinstance(check, DoctorCheck):
            outcome = check.run(facts)
            found.append(ItemVerdict(
                item=item.id, status=outcome.status, found=outcome.found, phase=contract.phase(item)
            ))  # fmt: skip
    return tuple(found)


def valid_waivers(
    contract: AdoptionContract, waivers: Iterable[ContractWaiver], at: int
) -> tuple[dict[str, ContractWaiver], tuple[str, ...]]:
    """Return the waivers that count by item, and each other waiver with the reason why it does not.

    Args:
        contract: the contract.
        waivers: waivers of a cluster. Of several for an item, the last to end counts.
        at: nanoseconds since 1970.
    """
    items = {one.id for one in contract.items}
    found: dict[str, ContractWaiver] = {}
    ignored = []
    for waiver in sorted(waivers, key=lambda one: one.until):
        if waiver.item not in items:
            ignored.append(f"{waiver.item}: the contract has no such item")
        elif to_ns(waiver.until) <= at:
            ignored.append(f"{waiver.item}: expired on {waiver.until:%Y-%m-%d}")
        else:
            found[waiver.item] = waiver
    return found, tuple(ignored)


class _Hidden(msgspec.Struct, frozen=True):
    """GPUs that are not visible.

    Attributes:
        gpus: their known number.
        reporting: number of these with a current value, at least.
        machines: number of machines with such GPUs.
        uncounted: number of these machines of unknown size.
    """

    gpus: int
    reporting: int
    machines: int
    uncounted: int


class _ClusterJudge:
    """Judges the items of a cluster, each once."""

    def __init__(self, contract: AdoptionContract, facts: ClusterFacts, waivers: Mapping[str, ContractWaiver]) -> None:
        self._contract, self._facts, self._waivers = contract, facts, waivers
        self._items = {one.id: one for one in contract.items_on(CheckPlace.HUB)}
        self._phases = {one.id: contract.phase(one) for one in contract.items}
        self._outcomes: dict[str, list[CheckOutcome]] = {}
        self.reporting = _reporting_gpus(facts)
        self._verdicts = {one.id: self._judge(one) for one in self._items.values()}

    def of_tier(self, tier: Tier) -> tuple[ItemVerdict, ...]:
        """Return the verdicts of the items of a tier, in the order of the contract."""
        return tuple([self._verdicts[one.id] for one in self._items.values() if tier in one.tiers])

    def is_required(self, verdict: ItemVerdict) -> bool:
        """Return whether the item is a MUST that is in force."""
        is_must = self._items[verdict.item].level is Requirement.MUST
        return is_must and self._phases[verdict.item] is ItemPhase.IN_FORCE

    def is_warning(self, verdict: ItemVerdict) -> bool:
        """Return whether the item is a MUST that is not met, and only part of one of two valid versions."""
        item = self._items[verdict.item]
        is_partial = item.level is Requirement.MUST and self._phases[item.id] is not ItemPhase.IN_FORCE
        return is_partial and verdict.status is ItemStatus.NOT_MET and verdict.waived_until is None

    def reached(self, tiers: Sequence[Tier]) -> Tier | None:
        """Return the highest of the tiers with every required item met, waived or not applicable."""
        fulfilled = (ItemStatus.MET, ItemStatus.NOT_APPLICABLE)
        for tier in reversed(tiers):
            must = [one for one in self.of_tier(tier) if self.is_required(one)]
            if must and all(one.status in fulfilled or one.waived_until is not None for one in must):
                return tier
        return None

    def hidden(self, failed: Sequence[str]) -> _Hidden:
        """Return the GPUs that are not visible because of items, each GPU once."""
        of_cluster = [self._verdicts[item] for item in failed if not self._verdicts[item].machines]
        of_machines = [self._outcomes[item] for item in failed if self._verdicts[item].machines]
        is_whole = any(one.is_whole for one in of_cluster)
        gpus = sum(one.gpus or 0 for one in of_cluster if not one.is_whole)
        reporting = machines = uncounted = 0
        for place, group in enumerate(self._facts.machines or ()):
            count, facts = len(group.names), group.facts
            own = [outcomes[place] for outcomes in of_machines if outcomes[place].status is ItemStatus.NOT_MET]
            is_dark = is_whole and facts.gpus != 0 and _unreported_of(facts) != 0
            most = _most_gpus(own, facts) if own else None
            if own or is_dark:
                machines += count
                uncounted += count if facts.gpus is None else 0
            gpus += (most or 0) * count
            reporting += max(0, (most or 0) - (_unreported_of(facts) or 0)) * count
        if is_whole:
            gpus = max(gpus, reporting + (self._unreported_gpus() or 0))
        return _Hidden(gpus, reporting, machines, uncounted)

    def _unreported_gpus(self) -> int | None:
        """Return the known number of GPUs of the cluster without a current value; None if it is unknown."""
        if self.reporting is None:
            return None
        expected = None if self._facts.coverage is None else self._facts.coverage.expected
        sizes = [(one.facts.gpus, len(one.names)) for one in self._facts.machines or ()]
        located = sum((gpus or 0) * machines for gpus, machines in sizes)
        found = max(0, max(expected or 0, located) - self.reporting)
        is_counted = expected is not None or (bool(sizes) and all(gpus is not None for gpus, _ in sizes))
        return found if found or is_counted else None

    def _judge(self, item: ContractItem) -> ItemVerdict:
        check = CHECKS[item.check]
        if isinstance(check, ClusterCheck):
            verdict = self._of_cluster(item, check)
        else:
            assert isinstance(check, MachineCheck)
            verdict = self._of_machines(item, check)
        waiver = self._waivers.get(item.id)
        if waiver is None:
            return verdict
        return msgspec.structs.replace(verdict, waived_until=to_ns(waiver.until), waiver=waiver.reason)

    def _of_cluster(self, item: ContractItem, check: ClusterCheck) -> ItemVerdict:
        outcome = check.run(self._facts, item.limits)
        is_whole = outcome.status is ItemStatus.NOT_MET and outcome.gpus is None
        found = outcome.found
        if is_whole and item.level is Requirement.MUST and self.reporting is not None:
            found = f"{found}; {self.reporting} GPUs report"
        return ItemVerdict(
            item=item.id,
            status=outcome.status,
            found=found,
            phase=self._phases[item.id],
            gpus=self._unreported_gpus() if is_whole else outcome.gpus,
            is_whole=is_whole,
        )

    def _of_machines(self, item: ContractItem, check: MachineCheck) -> ItemVerdict:
        groups = self._facts.machines
        if not groups:
            found = unknown("the machines of the cluster" if groups is None else "a machine of the cluster").found
            return ItemVerdict(item=item.id, status=ItemStatus.UNKNOWN, found=found, phase=self._phases[item.id])
        outcomes = [check.run(one.facts, self._facts, item.limits) for one in groups]
        self._outcomes[item.id] = outcomes
        counts: dict[ItemStatus, int] = {}
        for group, outcome in zip(groups, outcomes, strict=True):
            counts[outcome.status] = counts.get(outcome.status, 0) + len(group.names)
        status = _joint_status(groups, outcomes)
        of_status = [(g, o) for g, o in zip(groups, outcomes, strict=True) if o.status is status]
        gpus = None
        if status is ItemStatus.NOT_MET:
            most = [(_most_gpus([o], g.facts), len(g.names)) for g, o in of_status]
            known = [count * machines for count, machines in most if count is not None]
            gpus = sum(known) if known else None
        examples = (MachineOutcome(name, o.found) for g, o in of_status for name in g.names[:MAX_EXAMPLES])
        named = status in (ItemStatus.NOT_MET, ItemStatus.UNKNOWN)
        return ItemVerdict(
            item=item.id,
            status=status,
            found=of_status[0][1].found,
            phase=self._phases[item.id],
            machines=counts,
            examples=tuple(examples)[:MAX_EXAMPLES] if named else (),
            gpus=gpus,
        )


def _joint_status(groups: Sequence[MachineGroup], outcomes: Sequence[CheckOutcome]) -> ItemStatus:
    """Return the status of an item about machines.

    Unknown outcomes of machines without a current report, or without reporting GPUs, count only if no machine meets the
    item: the items about freshness and reporting GPUs judge these machines.
    """
    found = {one.status for one in outcomes}
    of_current = {o.status for g, o in zip(groups, outcomes, strict=True) if _has_values(g.facts)}
    if ItemStatus.NOT_MET in found:
        return ItemStatus.NOT_MET
    if ItemStatus.UNKNOWN in of_current:
        return ItemStatus.UNKNOWN
    order = (ItemStatus.MET, ItemStatus.UNKNOWN, ItemStatus.NOT_APPLICABLE)
    return next(one for one in order if one in found)


def _has_values(machine: MachineFacts) -> bool:
    """Return whether a machine has current values, as far as is known."""
    return machine.is_current is not False and machine.reporting_gpus != 0


def _visibility(must: Sequence[ItemVerdict], failed: Sequence[ItemVerdict], reporting: int | None) -> ClusterVisibility:
    """Return the visibility; `reporting` is the number of GPUs with a current value, None if it is unknown."""
    if any(one.is_whole for one in failed) and not reporting:
        return ClusterVisibility.UNKNOWN if reporting is None else ClusterVisibility.NOT_VISIBLE
    if failed:
        return ClusterVisibility.PARTLY
    if any(one.status is ItemStatus.UNKNOWN and one.waived_until is None for one in must):
        return ClusterVisibility.UNKNOWN
    return ClusterVisibility.VISIBLE


def _counts(must: Sequence[ItemVerdict]) -> RequirementCounts:
    counted = dict.fromkeys(ItemStatus, 0)
    waived = 0
    for one in must:
        is_excused = one.waived_until is not None and one.status in (ItemStatus.NOT_MET, ItemStatus.UNKNOWN)
        waived += is_excused
        counted[one.status] += not is_excused
    return RequirementCounts(**{status.value: count for status, count in counted.items()}, waived=waived)


def _reporting_gpus(facts: ClusterFacts) -> int | None:
    """Return the number of GPUs with a current value, as answers about the fleet count them; None if it is unknown."""
    if facts.coverage is not None:
        return facts.coverage.reporting
    counts = [(one.facts.reporting_gpus, len(one.names)) for one in facts.machines or ()]
    if facts.machines is None or any(count is None for count, _ in counts):
        return None
    return sum((count or 0) * machines for count, machines in counts)


def _unreported_of(machine: MachineFacts) -> int | None:
    """Return the number of GPUs of a machine without a current value; None if it is unknown."""
    if machine.gpus is None or machine.reporting_gpus is None:
        return None
    return machine.gpus - machine.reporting_gpus


def _most_gpus(outcomes: Iterable[CheckOutcome], machine: MachineFacts) -> int | None:
    """Return the number of GPUs of a machine that outcomes concern; None if it is unknown.

    Two outcomes can be about the same GPUs of a machine: the largest number counts.
    """
    own = machine.gpus
    counts = [own if one.gpus is None else one.gpus for one in outcomes]
    known = [one for one in counts if one is not None]
    return max(known) if len(known) == len(counts) else None
