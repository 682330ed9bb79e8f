"""Evidence of holder sources for one view, joined to holdings. Pure.

A claim and an observation belong to one holder if its kind and id are equal. The verdict is:

- `agreed`: declared, and a process of the holder is on the device;
- `declared_only`: declared, and no process was seen;
- `observed_only`: a process of the holder is on the device, and nothing declares it;
- `conflict`: two holders are declared exclusively, another holder's process is on an exclusive device, or SLURM does
  not list the job of a process;
- `unknown`: the declaring source does not confirm it now.

An open device file confirms a declared holding and never makes one: monitoring tools open every device.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gpufleet.model.holdings import MAX_STEPS, Holder, HolderKind, Holding, HoldingVerdict, Method, Share
from gpufleet.ports.holder import HolderClaim, HolderId

OBSERVING = frozenset({Method.PROCESS, Method.DEVICE_FILE})
"""Methods that observe use. All others declare an allocation."""

SHARED = frozenset({Share.TIMESLICE, Share.MPS, Share.DRA})
"""Sharing modes in which several holders have one view."""

LAUNCHER = "virt-launcher-"
"""Beginning of the name of a pod in which KubeVirt runs a virtual machine."""

MISSING_REPORTS = 2
"""Consecutive complete reports without a claim that end it."""


class EvidenceKey(NamedTuple):
    """Identity of evidence: who has which view, by which source."""

    view: str
    source: str
    method: Method
    kind: HolderKind
    id: str
    container: str


class HoldingKey(NamedTuple):
    """Identity of a holding on a machine while it lasts."""

    view: str
    kind: HolderKind
    id: str
    container: str


class Evidence(msgspec.Struct):
    """A claim on a view, and the reports that had it or lacked it.

    Attributes:
        claim: as last reported.
        since: start of the holding, nanoseconds since 1970.
        confirmed: whether the newest answer of its source has it.
        missing: number of consecutive complete reports without it.
        missing_since: time of the first of them.
        unlisted: whether it observes a job that SLURM does not list.
    """

    claim: HolderClaim
    since: int
    confirmed: bool = True
    missing: int = 0
    missing_since: int = 0
    unlisted: bool = False

    @property
    def observes(self) -> bool:
        """Return whether it is an observation."""
        return self.claim.method in OBSERVING

    def note_missing(self, now: int) -> None:
        """Count a report without the claim."""
        self.missing += 1
        if self.missing == 1:
            self.missing_since = now


class JoinedHolding(NamedTuple):
    """A holding, and the time of the first report that lacked all of its evidence, or 0."""

    holding: Holding
    missing_since: int


def holding_key(holding: Holding) -> HoldingKey:
    """Return the identity of a holding."""
    return HoldingKey(holding.view, holding.holder.kind, holding.holder.id, holding.container)


def join(view: str, evidence: Sequence[Evidence]) -> list[JoinedHolding]:
    """Return the holdings of a view, ordered by kind and id of the holder."""
    groups: dict[HolderId, list[Evidence]] = {}
    for one in evidence:
        groups.setdefault(_id(one.claim.holder), []).append(one)
    joined = [found for key in sorted(groups) for found in _join_holder(view, groups[key])]
    unlisted = {_id(one.claim.holder) for one in evidence if one.unlisted}
    return [_with_verdict(one, unlisted) for one in _with_conflicts(joined)]


def _join_holder(view: str, group: Sequence[Evidence]) -> Iterable[JoinedHolding]:
    """Join the evidence for one holder: one holding per declared container, and one for undeclared processes."""
    declared: dict[str, list[Evidence]] = {}
    for one in group:
        if not one.observes:
            declared.setdefault(one.claim.container, []).append(one)
    observed = [one for one in group if one.observes]
    matched: list[Evidence] = []
    for container in sorted(declared):
        own = declared[container]
        ids = {one.claim.container_id for one in own} - {""}
        confirming = [one for one in observed if not ids or not one.claim.container_id or one.claim.container_id in ids]
        matched += confirming
        yield _holding(view, own, confirming)
    rest = [one for one in observed if one not in matched and one.claim.method is Method.PROCESS]
    if rest:
        yield _holding(view, [], rest)


def _holding(view: str, declared: Sequence[Evidence], observed: Sequence[Evidence]) -> JoinedHolding:
    own = [*declared, *observed]
    claims = [one.claim for one in own]
    first = claims[0]
    seen = [one for one in observed if one.confirmed]
    if declared:
        verdict = HoldingVerdict.AGREED if seen else HoldingVerdict.DECLARED_ONLY
        if not any(one.confirmed for one in declared):
            verdict = HoldingVerdict.UNKNOWN
    else:
        verdict = HoldingVerdict.OBSERVED_ONLY if seen else HoldingVerdict.UNKNOWN
    holder = _merge(claim.holder for claim in claims)
    holding = Holding(
        view=view,
        holder=holder,
        parent=_parent(holder, claims),
        container=first.container,
        container_id=next((claim.container_id for claim in claims if claim.container_id), ""),
        steps=tuple(sorted({step for claim in claims for step in claim.steps})[:MAX_STEPS]),
        share=first.share,
        replicas=first.replicas,
        total_replicas=first.total_replicas,
        claim=first.claim,
        since=min(one.since for one in declared or observed),
        methods=tuple(sorted({one.claim.method.value for one in [*declared, *seen]} or {first.method.value})),
        verdict=verdict,
    )
    missing_since = max(one.missing_since for one in own) if all(one.missing for one in own) else 0
    return JoinedHolding(holding, missing_since)


def _merge(holders: Iterable[Holder]) -> Holder:
    """Return the first holder, its unknown fields filled from the others."""
    merged, *others = holders
    for other in others:
        unknown = {field: getattr(other, field) for field in Holder.__struct_fields__ if not getattr(merged, field)}
        merged = msgspec.structs.replace(merged, **unknown)
    return merged


def _parent(holder: Holder, claims: Iterable[HolderClaim]) -> Holder | None:
    """Return the virtual machine of a launcher pod. A pod that is known to be no launcher of it has none.

    A process of the pod names the virtual machine in its command line, which the pod chooses.
    """
    parent = next((claim.parent for claim in claims if claim.parent is not None), None)
    if parent is None or (holder.namespace and holder.namespace != parent.namespace):
        return None
    return None if holder.name and not holder.name.startswith(LAUNCHER) else parent


def _id(holder: Holder) -> HolderId:
    return holder.kind, holder.id


def has_uid(kind: HolderKind, id_: str) -> bool:
    """Return whether a holder is identified by its UID, not by `namespace/name`."""
    return kind is not HolderKind.POD or "/" not in id_


def _may_be_one_pod(declared: Collection[HolderId], undeclared: Collection[HolderId]) -> bool:
    """Return whether the only declared holder is a pod without UID, and the only other a pod that can be the same."""
    if len(declared) != 1 or len(undeclared) != 1:
        return False
    (first,), (second,) = declared, undeclared
    return not has_uid(*first) and second[0] is HolderKind.POD and has_uid(*second)


def _with_conflicts(joined: Sequence[JoinedHolding]) -> list[JoinedHolding]:
    """Set the verdict of holders that contradict each other. Two containers of one pod do not."""
    current = [one.holding for one in joined if one.holding.verdict is not HoldingVerdict.UNKNOWN]
    exclusive = {
        _id(one.holder)
        for one in current
        if one.verdict is not HoldingVerdict.OBSERVED_ONLY and one.share not in SHARED
    }
    undeclared = {_id(one.holder) for one in current if one.verdict is HoldingVerdict.OBSERVED_ONLY}
    if not exclusive or len(exclusive | undeclared) == 1 or _may_be_one_pod(exclusive, undeclared):
        return list(joined)
    conflicting = {HoldingVerdict.OBSERVED_ONLY, HoldingVerdict.DECLARED_ONLY}
    if len(exclusive) > 1:
        conflicting.add(HoldingVerdict.AGREED)
    return [_in_conflict(one) if one.holding.verdict in conflicting else one for one in joined]


def _with_verdict(joined: JoinedHolding, unlisted: Collection[HolderId]) -> JoinedHolding:
    """Set the verdict of an observed job that SLURM does not list: another cluster's job can have its number."""
    is_unlisted = joined.holding.verdict is HoldingVerdict.OBSERVED_ONLY and _id(joined.holding.holder) in unlisted
    return _in_conflict(joined) if is_unlisted else joined


def _in_conflict(joined: JoinedHolding) -> JoinedHolding:
    return joined._replace(holding=msgspec.structs.replace(joined.holding, verdict=HoldingVerdict.CONFLICT))
