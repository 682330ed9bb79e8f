"""Conformance report of a cluster, in the form of CNCF's reports. Pure.

The form is that of github.com/cncf/k8s-ai-conformance: `metadata`, and `spec` with the items of each area. Each item
has id, description, level, status, evidence and notes. gpufleet adds the statuses `Waived` and `Unknown`, and times.
Tables for people have the statuses of the contract instead: `STATUS_TEXTS`.
"""

import datetime as dt
import enum
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpufleet.fleet.contract.check import ItemStatus
from gpufleet.fleet.contract.history import ClusterHistory, TrackedItem
from gpufleet.fleet.contract.records import (
    AdoptionContract,
    CheckPlace,
    ContractArea,
    ContractItem,
    ItemPhase,
    ItemRemedy,
    Requirement,
)
from gpufleet.fleet.contract.verdict import (
    ClusterVerdict,
    ItemVerdict,
    RequirementCounts,
)
from gpufleet.model.contract import ClusterVisibility, Tier
from gpufleet.model.time import to_datetime


class ConformanceStatus(enum.StrEnum):
    """Status of an item in a report."""

    IMPLEMENTED = "Implemented"
    PARTIAL = "Partially Implemented"  # some machines meet it
    MISSING = "Not Implemented"
    UNKNOWN = "Unknown"
    WAIVED = "Waived"
    NOT_APPLICABLE = "N/A"


STATUS_TEXTS: Mapping[ConformanceStatus, str] = {
    ConformanceStatus.IMPLEMENTED: "met",
    ConformanceStatus.PARTIAL: "not met",
    ConformanceStatus.MISSING: "not met",
    ConformanceStatus.UNKNOWN: "unknown",
    ConformanceStatus.WAIVED: "waived",
    ConformanceStatus.NOT_APPLICABLE: "not applicable",
}
"""Status of an item as the contract calls it."""


class ConformanceItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Item of a report.

    Attributes:
        id, level: as in the contract.
        description: its title.
        status: the status.
        evidence: what was found; machines follow as `NAME: FOUND`.
        notes: reason of a waiver, of an inapplicable item, and of a status that does not count yet.
        remedy: how to meet it, unless it is met.
        since: begin of the present status; None if it is unknown.
        first_seen, last_seen: first and last time of this status.
    """

    id: str
    description: str
    level: Requirement
    status: ConformanceStatus
    evidence: tuple[str, ...]
    notes: str
    remedy: ItemRemedy | None = None
    since: dt.datetime | None = None
    first_seen: dt.datetime | None = None
    last_seen: dt.datetime | None = None


class ConformanceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Head of a report.

    Attributes:
        contract: title of the contract.
        versions: its valid versions, oldest first.
        cluster: id of the cluster.
        at: time of the verdict.
        age_seconds: time since the verdict by the hub's clock; None without a verdict: then only the registration of
            the cluster was judged.
        tier: tier by which it was judged; None if nothing is known about the cluster.
        is_declared: whether that tier is declared.
        reached_tier: highest tier that is reached, or None.
        visibility, visible_since: verdict, and begin of the newest known one.
        must, percent: MUST items by status, and the met ones in percent.
        gpus_not_visible, gpus_reporting, machines_not_visible, machines_without_count: as in `ClusterVerdict`.
    """

    contract: str
    versions: tuple[str, ...]
    cluster: str
    at: dt.datetime
    age_seconds: float | None
    tier: Tier | None
    is_declared: bool
    reached_tier: Tier | None
    visibility: ClusterVisibility
    visible_since: dt.datetime | None
    must: RequirementCounts
    percent: float | None
    gpus_not_visible: int
    gpus_reporting: int
    machines_not_visible: int
    machines_without_count: int


class HiddenEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Item by which a cluster, machines or GPUs are not visible.

    Attributes:
        item: id.
        reason: what was found; of an item about the cluster also how many of its GPUs report.
        consequence: what is not visible or not certain without it, by the contract.
        is_whole: it concerns the cluster and not some of its GPUs.
        machines: number of machines that do not meet it.
        gpus: known number of GPUs that are not visible by it; None if it is unknown. An item about the cluster hides no
            GPU with a current value.
        examples: some of the machines.
    """

    item: str
    reason: str
    consequence: str
    is_whole: bool
    machines: int
    gpus: int | None
    examples: tuple[str, ...]


class ConformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a cluster.

    Attributes:
        metadata: the head.
        spec: items by area.
        not_visible: items by which GPUs are not visible.
        warnings: ids of items that will exclude, or no longer exclude, with the next version.
        ignored_waivers: waivers that do not count.
    """

    metadata: ConformanceMetadata
    spec: dict[ContractArea, tuple[ConformanceItem, ...]]
    not_visible: tuple[HiddenEntry, ...]
    warnings: tuple[str, ...]
    ignored_waivers: tuple[str, ...]


_ORDER = {status: place for place, status in enumerate((
    ConformanceStatus.MISSING,
    ConformanceStatus.PARTIAL,
    ConformanceStatus.UNKNOWN,
    ConformanceStatus.WAIVED,
    ConformanceStatus.IMPLEMENTED,
    ConformanceStatus.NOT_APPLICABLE,
))}  # fmt: skip
_LEVELS = tuple(Requirement)


def ordered_items(report: ConformanceReport) -> list[ConformanceItem]:
    """Return the items of a report: those by which GPUs are not visible first, then by status and level."""
    hidden = {one.item for one in report.not_visible}
    items = [one for own in report.spec.values() for one in own]
    return sorted(items, key=lambda one: (one.id not in hidden, _ORDER[one.status], _LEVELS.index(one.level)))


_STATUS = {
    ItemStatus.MET: ConformanceStatus.IMPLEMENTED,
    ItemStatus.NOT_MET: ConformanceStatus.MISSING,
    ItemStatus.UNKNOWN: ConformanceStatus.UNKNOWN,
    ItemStatus.NOT_APPLICABLE: ConformanceStatus.NOT_APPLICABLE,
}
_PLACES = {
    CheckPlace.NODE: "checked on the node: gpufleet contract check --on node",
    CheckPlace.CLUSTER: "checked in the cluster: gpufleet contract check --on cluster",
}
_PHASES = {
    ItemPhase.ANNOUNCED: "part of the next version of the contract only: a warning",
    ItemPhase.ENDING: "not part of the next version of the contract: a warning",
}


def conformance_report(
    contract: AdoptionContract,
    verdict: ClusterVerdict,
    history: ClusterHistory | None = None,
    *,
    age_seconds: float | None = None,
) -> ConformanceReport:
    """Return the report of a verdict.

    Args:
        contract: the contract by which it was judged.
        verdict: the verdict.
        history: history of the cluster that includes the verdict; None without times.
        age_seconds: age of the verdict; None if it is about the registration only.
    """
    history = history or ClusterHistory()
    consequences = {one.id: one.consequence for one in contract.items}
    verdicts = {one.item: one for one in verdict.items}
    spec = {
        area: tuple(_items([one for one in contract.items if one.area is area], verdicts, history))
        for area in ContractArea
    }
    return ConformanceReport(
        metadata=_metadata(contract, verdict, history, age_seconds),
        spec=spec,
        not_visible=tuple([_hidden(verdicts[item], consequences[item]) for item in verdict.not_visible]),
        warnings=verdict.warnings,
        ignored_waivers=verdict.ignored_waivers,
    )


def _metadata(
    contract: AdoptionContract, verdict: ClusterVerdict, history: ClusterHistory, age_seconds: float | None
) -> ConformanceMetadata:
    return ConformanceMetadata(
        contract=contract.title,
        versions=contract.versions,
        cluster=verdict.cluster,
        at=to_datetime(verdict.at),
        age_seconds=age_seconds,
        tier=verdict.judged_tier,
        is_declared=verdict.is_declared,
        reached_tier=verdict.reached_tier,
        visibility=verdict.visibility,
        visible_since=to_datetime(history.since) if history.since else None,
        must=verdict.must,
        percent=verdict.must.percent,
        gpus_not_visible=verdict.gpus_not_visible,
        gpus_reporting=verdict.gpus_reporting,
        machines_not_visible=verdict.machines_not_visible,
        machines_without_count=verdict.machines_without_count,
    )


def _items(
    items: Iterable[ContractItem], verdicts: Mapping[str, ItemVerdict], history: ClusterHistory
) -> Iterator[ConformanceItem]:
    tracked = {one.item: one for one in history.items}
    for item in items:
        verdict = verdicts.get(item.id)
        if verdict is not None:
            yield _item(item, verdict, tracked.get(item.id))
            continue
        notes = _PLACES.get(item.on, f"applies to tier {', '.join(str(int(one)) for one in item.tiers)}")
        yield ConformanceItem(
            id=item.id,
            description=item.title,
            level=item.level,
            status=ConformanceStatus.NOT_APPLICABLE,
            evidence=(),
            notes=notes,
        )


def _item(item: ContractItem, verdict: ItemVerdict, tracked: TrackedItem | None) -> ConformanceItem:
    notes = [_PHASES.get(verdict.phase, "")]
    if verdict.waived_until is not None:
        notes.append(f"waived until {to_datetime(verdict.waived_until):%Y-%m-%d}: {verdict.waiver}")
    if verdict.status is ItemStatus.NOT_APPLICABLE:
        notes.append(verdict.found)
    span = None if tracked is None else tracked.seen.get(verdict.status)
    is_fulfilled = verdict.status in (ItemStatus.MET, ItemStatus.NOT_APPLICABLE)
    return ConformanceItem(
        id=item.id,
        description=item.title,
        level=item.level,
        status=_status(verdict),
        evidence=tuple(_evidence(verdict)),
        notes="; ".join(one for one in notes if one),
        remedy=None if is_fulfilled else item.remedy,
        since=to_datetime(tracked.since) if tracked is not None and tracked.known is verdict.status else None,
        first_seen=None if span is None else to_datetime(span.first),
        last_seen=None if span is None else to_datetime(span.last),
    )


def _status(verdict: ItemVerdict) -> ConformanceStatus:
    if verdict.waived_until is not None and verdict.status in (ItemStatus.NOT_MET, ItemStatus.UNKNOWN):
        return ConformanceStatus.WAIVED
    is_partial = ItemStatus.MET in verdict.machines if verdict.machines else not verdict.is_whole
    if verdict.status is ItemStatus.NOT_MET and is_partial:
        return ConformanceStatus.PARTIAL
    return _STATUS[verdict.status]


def _evidence(verdict: ItemVerdict) -> Iterator[str]:
    if not verdict.machines:
        yield verdict.found
        return
    total = sum(verdict.machines.values())
    yield ", ".join(f"{count} of {total} machines {status.replace('_', ' ')}"
                    for status, count in sorted(verdict.machines.items()))  # fmt: skip
    if verdict.examples:
        yield from (f"{one.machine}: {one.found}" for one in verdict.examples)
    else:
        yield verdict.found


def _hidden(verdict: ItemVerdict, consequence: str) -> HiddenEntry:
    return HiddenEntry(
        item=verdict.item,
        reason=verdict.found,
        consequence=consequence,
        is_whole=verdict.is_whole,
        machines=verdict.machines.get(ItemStatus.NOT_MET, 0),
        gpus=verdict.gpus,
        examples=tuple([one.machine for one in verdict.examples]),
    )
