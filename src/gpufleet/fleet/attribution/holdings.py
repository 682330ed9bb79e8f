"""Holdings of a machine's devices over time, from the reports of its holder sources. Pure: the clock is an argument.

Each piece of evidence is kept from report to report:

- A declaration ends when two consecutive complete reports of its source lack it, and no cgroup shows that the holder
  still runs. Its end is the time of the first report without it.
- While its source does not answer, the holding stays, with verdict `unknown`.
- A restarted kubelet lists few pods at first. A declaration that is then missing stays `unknown` for `RESTART_SECONDS`,
  unless cgroups prove that the pod is gone, or the device is declared for another holder.
- A pod without UID that was not confirmed in between begins again: it can be another pod of its name.
- An observation ends when two consecutive reports lack it, or two calls fail.

A device without evidence is free only if every declaring source answers completely. Otherwise its holder is unknown.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpufleet.fleet.attribution.device_index import DeviceIndex, ResolvedName, UnresolvedName
from gpufleet.fleet.attribution.device_states import NO_SOURCE, device_holders, hidden_holders
from gpufleet.fleet.attribution.evidence import (
    MISSING_REPORTS,
    OBSERVING,
    SHARED,
    Evidence,
    EvidenceKey,
    HoldingKey,
    JoinedHolding,
    has_uid,
    holding_key,
    join,
)
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import (
    CertainPeriod,
    DeviceHolders,
    Holder,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    Method,
)
from gpufleet.model.time import NANOS
from gpufleet.model.view import View
from gpufleet.ports.holder import DeviceName, HolderClaim, HolderId, HolderReport

RESTART_SECONDS = 300.0
"""Time after a restart of a source during which a missing claim does not prove an end.

A kubelet 1.36 that could not reach its API server still lacked its pods 20 s after the restart.
"""

UNATTRIBUTED = "a process on it belongs to no known pod, job or VM"
OPEN_FILE = "a process has its VFIO file open, and no source proves for which holder"

Answer = HolderReport | HolderError
"""Result of a call to a source."""


class UnresolvedClaim(NamedTuple):
    """A device name in a claim that identifies no view of this machine.

    Attributes:
        source: name of the source.
        claim: the claim.
        name: the device name, and why it does not resolve.
    """

    source: str
    claim: HolderClaim
    name: UnresolvedName


class HoldingsRound(NamedTuple):
    """Result of a round.

    Attributes:
        devices: holders by key of the view. A GPU that is split into MIG devices or vGPUs is included only if it is
            held as a whole.
        ended: holdings that ended in this round.
        unresolved: device names that identify no view.
        failed: names of the sources that exist here and did not answer.
    """

    devices: dict[str, DeviceHolders]
    ended: tuple[Holding, ...]
    unresolved: tuple[UnresolvedClaim, ...]
    failed: frozenset[str] = frozenset()


class _SourceState(msgspec.Struct):
    """State of a source over its reports."""

    declares: bool = True
    session: str = ""
    restarted_at: int | None = None
    reports: int = 0  # complete reports of this session
    problem: str = ""  # why its newest answer is not complete

    def is_young(self, now: int) -> bool:
        """Return whether it was restarted less than `RESTART_SECONDS` ago."""
        return self.restarted_at is not None and now - self.restarted_at < RESTART_SECONDS * NANOS


class _Period(NamedTuple):
    """Part of a holding with one user, account and queue, and with `conflict` as its verdict or without.

    The verdict `unknown` belongs to the part before it. Processes that remain after the end of their declaration are a
    part of their own, except while they are `unknown`.

    Attributes:
        origin: start of the holding by its evidence, nanoseconds since 1970.
        since: start of the part.
        verdict: last verdict other than `unknown`, or None.
        until: when that verdict ceased; None while it lasts.
        billed: user, account and queue, as last known.
        is_declared: whether a source declares it, and not only its processes show it.
        is_remembered: whether `origin` may be the start of a part, and not of the holding.
        is_continued: whether its evidence is known, and not that of an earlier boot.
    """

    origin: int
    since: int
    verdict: HoldingVerdict | None = None
    until: int | None = None
    billed: tuple[str, ...] = ()
    is_declared: bool = False
    is_remembered: bool = False
    is_continued: bool = True

    def includes(self, holding: Holding) -> bool:
        """Return whether a holding by its evidence is the same holding. Processes can begin before or after it."""
        if holding.since == self.origin:
            return True
        if not _is_declared(holding):
            return self.is_continued
        return self.is_remembered and holding.since < self.origin

    def is_left_by(self, holding: Holding) -> bool:
        """Return whether the declaration of the part has ended, and only processes remain."""
        return self.is_declared and not _is_declared(holding)

    def next(self, holding: Holding, now: int, ceased: int) -> "_Period":
        """Return the part at the next report of the same holding.

        Args:
            holding: by its evidence.
            now: nanoseconds since 1970.
            ceased: end of the certain part, if the holding is `unknown` from now on.
        """
        if self.is_left_by(holding):
            if holding.verdict is HoldingVerdict.UNKNOWN:
                return self.unknown_from(ceased)
            since = now if self.until is None else self.until
            return self._replace(since=since, verdict=holding.verdict, until=None, is_declared=False)
        was_conflict, is_conflict = (one is HoldingVerdict.CONFLICT for one in (self.verdict, holding.verdict))
        billed = _billed(holding.holder)
        changes = any(old and new and old != new for old, new in zip(self.billed, billed, strict=False))
        if holding.verdict is not HoldingVerdict.UNKNOWN and self.verdict is not None:
            changes = changes or was_conflict is not is_conflict
        billed = tuple(new or old for old, new in zip(self.billed or billed, billed, strict=True))
        period = self._replace(since=now if changes else self.since, billed=billed, is_declared=_is_declared(holding))
        if holding.verdict is not HoldingVerdict.UNKNOWN:
            return period._replace(verdict=holding.verdict, until=None)
        if changes:
            return period._replace(verdict=None, until=None)
        return period.unknown_from(ceased)

    def unknown_from(self, at: int) -> "_Period":
        """Return the part, with `at` as the end of its verdict if that lasted until now."""
        return self._replace(until=self.until if self.until is not None or self.verdict is None else at)

    @property
    def certain(self) -> CertainPeriod | None:
        """Return the time before the verdict became `unknown`, or None if it was not certain, or still is."""
        if self.verdict in (None, HoldingVerdict.CONFLICT) or self.until is None:
            return None
        return CertainPeriod(verdict=self.verdict, until=self.until)


class HoldingTracker:
    """Keeps the evidence of a machine's holder sources over their reports.

    Attributes:
        slurm_nodes: SLURM's names of this machine, to be remembered over a restart.
    """

    def __init__(
        self,
        remembered: Iterable[Holding] = (),
        *,
        saved_at: int = 0,
        sources: Collection[str] = (),
        slurm_nodes: frozenset[str] | None = frozenset(),
        names: Collection[ResolvedName] = (),
    ) -> None:
        """Take the holdings of an earlier run.

        Args:
            remembered: each is `unknown` until its source confirms it.
            saved_at: end of the holdings whose sources are not in use, nanoseconds since 1970.
            sources: names of the sources in use whose evidence can be continued; none after a reboot.
            slurm_nodes: SLURM's names of this machine; None if SLURM is in use and has not reported them yet; empty if
                it is not in use.
            names: device names of an earlier run of the same boot; see `names`.
        """
        self._evidence: dict[EvidenceKey, Evidence] = {}
        self._sources: dict[str, _SourceState] = {}
        self._resolved = {one.name: one.view.key for one in names}
        self._seen: dict[str, View | None] = {one.view.key: one.view for one in names}  # held views as last listed
        self._jobs: frozenset[HolderId] | None = None  # by SLURM's newest complete answer
        self.slurm_nodes = slurm_nodes
        self._running_pods: frozenset[str] = frozenset()  # UIDs by the newest cgroups; empty if unknown
        self._current = {holding_key(holding): JoinedHolding(holding, saved_at) for holding in remembered}
        self._periods = {key: _remembered_period(one.holding, saved_at, sources) for key, one in self._current.items()}
        self._joined_at = saved_at  # time of the newest round
        for joined in self._current.values():
            for method in joined.holding.methods:
                if _SOURCES.get(method) in sources:
                    self._remember(joined.holding, Method(method))

    @property
    def current(self) -> tuple[Holding, ...]:
        """Present holdings, to be remembered over a restart."""
        return tuple([one.holding for one in self._current.values()])

    @property
    def names(self) -> tuple[ResolvedName, ...]:
        """Names of held devices, to be remembered over a restart: a device that is not listed then is held."""
        known = [(name, self._seen.get(key)) for name, key in self._resolved.items()]
        return tuple([ResolvedName(name, view) for name, view in known if view is not None])

    def update(self, answers: Mapping[str, Answer], index: DeviceIndex, now: int) -> HoldingsRound:
        """Apply one answer per source.

        Args:
            answers: by name of the source; a source that was not called is left out.
            index: the views of the machine.
            now: nanoseconds since 1970.
        """
        slurm = answers.get(SLURM)
        if isinstance(slurm, HolderReport):
            self.slurm_nodes = slurm.nodes
        elif slurm is not None and slurm.absence is Reason.NOT_ENABLED and self.slurm_nodes is None:
            self.slurm_nodes = frozenset()
        living = self._living(answers)
        if living is not None:
            self._running_pods = frozenset(id_ for kind, id_ in living if kind is HolderKind.POD)
        self._jobs = _listed_jobs(slurm, self._jobs)
        unresolved: list[UnresolvedClaim] = []
        self._expire_names(answers)
        for source, answer in answers.items():
            if isinstance(answer, HolderError):
                self._apply_failure(source, answer, now)
            else:
                self._apply_report(source, answer, living, now)
                seen = self._apply_claims(source, answer, index, now, unresolved)
                self._count_missing(source, answer, seen, unresolved, now)
        for key in [key for key, evidence in self._evidence.items() if self._has_ended(key, evidence, living, now)]:
            del self._evidence[key]
        ended = self._join(now)
        devices = self._devices(answers, index, unresolved)
        failed = [name for name, one in answers.items() if isinstance(one, HolderError) and name in self._sources]
        return HoldingsRound(devices, ended, tuple(unresolved), frozenset(failed))

    def _remember(self, holding: Holding, method: Method) -> None:
        claim = HolderClaim(
            holder=holding.holder,
            devices=(),
            method=method,
            parent=holding.parent,
            container=holding.container,
            container_id=holding.container_id,
            steps=holding.steps,
            share=holding.share,
            replicas=holding.replicas,
            total_replicas=holding.total_replicas,
            claim=holding.claim,
        )
        key = _key(holding.view, _SOURCES[method], claim)
        self._evidence[key] = Evidence(claim, holding.since, confirmed=False)

    def _apply_failure(self, source: str, error: HolderError, now: int) -> None:
        """Make a source's evidence unconfirmed. A source that never existed here declares nothing.

        Declarations stay. Observations end: use that is no longer seen proves nothing.
        """
        own = [evidence for key, evidence in self._evidence.items() if key.source == source]
        if error.absence is Reason.NOT_ENABLED and source not in self._sources and not own:
            return
        self._sources.setdefault(source, _SourceState()).problem = f"{source}: {error}"
        for evidence in own:
            evidence.confirmed = False
            if evidence.observes:
                evidence.note_missing(now)

    def _apply_report(self, source: str, report: HolderReport, living: frozenset[HolderId] | None, now: int) -> None:
        state = self._sources.setdefault(source, _SourceState())
        state.declares = not report.observes
        if report.session != state.session:
            known = bool(state.session)
            state.session, state.reports = report.session, 0
            state.restarted_at = report.started_at if report.started_at is not None else now if known else None
        if state.restarted_at is not None:
            state.restarted_at = min(state.restarted_at, now)  # the clock was set back since
        state.problem = ""
        if not report.complete:
            state.problem = f"{source}: {report.detail or 'the answer is not complete'}"
        elif living is not None and _lacks_living(report, living):
            state.problem = f"{source}: the answer lacks pods that run on this machine"
        else:
            state.reports += 1
            if state.is_young(now) and (living is None or state.reports < MISSING_REPORTS):
                state.problem = f"{source}: it was restarted, and its first answers can lack pods"

    def _apply_claims(
        self, source: str, report: HolderReport, index: DeviceIndex, now: int, unresolved: list[UnresolvedClaim]
    ) -> set[EvidenceKey]:
        """Add the report's claims to the evidence; return their keys."""
        seen: set[EvidenceKey] = set()
        for reported in report.claims:
            claim = self._identified(reported)
            for name in claim.devices:
                view = self._resolve(name, index)
                if isinstance(view, UnresolvedName):
                    unresolved.append(UnresolvedClaim(source, claim, view))
                    continue
                key = _key(view, source, claim)
                if key not in self._evidence:
                    self._drop_without_uid(key, claim)
                evidence = self._evidence.get(key)
                if evidence is None or not (evidence.confirmed or has_uid(key.kind, key.id)):
                    evidence = Evidence(claim, now)
                evidence.claim, evidence.confirmed, evidence.missing = claim, True, 0
                if claim.since is not None:
                    evidence.since = claim.since
                evidence.unlisted = evidence.observes and self._is_unlisted(claim.holder)
                self._evidence[key] = evidence
                seen.add(key)
        return seen

    def _identified(self, claim: HolderClaim) -> HolderClaim:
        """Return a claim with the id of its job, and without the UID of a pod that does not run, by the newest cgroups.

        The kubelet's answer has no UID. Its source finds it in folders, which a dead pod of the same name can leave.
        """
        holder = claim.holder
        if holder.kind is HolderKind.JOB:
            own = self._job_id(holder.id)
            return claim if own == holder.id else _of_job(claim, own)
        if claim.method is not Method.KUBELET or not self._running_pods or holder.id in self._running_pods:
            return claim
        return msgspec.structs.replace(claim, holder=_without_uid(holder), container_id="")

    def _job_id(self, id_: str) -> str:
        """Return the id of a job. A job on a node that SLURM does not report for this machine is another cluster's.

        Such a job keeps `NODE/ID`, so that it is not the job with the same id here. So does every job of a named node
        until SLURM has answered.
        """
        node, _, number = id_.rpartition("/")
        is_own = not node or self.slurm_nodes == frozenset() or node in (self.slurm_nodes or ())
        return number if is_own else id_

    def _living(self, answers: Mapping[str, Answer]) -> frozenset[HolderId] | None:
        """Return the holders that run on this machine, or None if no source reports them."""
        living = [
            answer.living
            for answer in answers.values()
            if isinstance(answer, HolderReport) and answer.living is not None
        ]
        if not living:
            return None
        return frozenset(
            (kind, self._job_id(id_) if kind is HolderKind.JOB else id_) for one in living for kind, id_ in one
        )

    def _resolve(self, name: DeviceName, index: DeviceIndex) -> str | UnresolvedName:
        """Resolve a name. A device that has left the bus is still held: its name keeps its earlier meaning."""
        view = index.resolve(name)
        if isinstance(view, UnresolvedName):
            return view if view.is_ambiguous else self._resolved.get(name, view)
        self._resolved[name] = view
        return view

    def _expire_names(self, answers: Mapping[str, Answer]) -> None:
        """Drop resolved names that no source reports any more, once every source of this machine has answered."""
        reports = [answer for answer in answers.values() if isinstance(answer, HolderReport)]
        failures = [answer for answer in answers.values() if isinstance(answer, HolderError)]
        if all(failure.absence is Reason.NOT_ENABLED for failure in failures):
            named = {name for report in reports for claim in report.claims for name in claim.devices}
            self._resolved = {name: view for name, view in self._resolved.items() if name in named}

    def _is_unlisted(self, holder: Holder) -> bool:
        """Return whether a holder is a job that SLURM answers without."""
        return holder.kind is HolderKind.JOB and self._jobs is not None and (holder.kind, holder.id) not in self._jobs

    def _drop_without_uid(self, key: EvidenceKey, claim: HolderClaim) -> None:
        """Drop the evidence of a pod whose UID was unknown until now: it may have been another pod of its name."""
        self._evidence.pop(key._replace(id=_without_uid(claim.holder).id), None)

    def _count_missing(
        self,
        source: str,
        report: HolderReport,
        seen: set[EvidenceKey],
        unresolved: Collection[UnresolvedClaim],
        now: int,
    ) -> None:
        """Count the report for evidence that it lacks. A holder with an unresolved name may still have its devices."""
        unplaced = {(one.claim.holder.kind, one.claim.holder.id) for one in unresolved if one.source == source}
        for key, evidence in self._evidence.items():
            if key.source == source and key not in seen:
                evidence.confirmed = False
                if report.complete and (key.kind, key.id) not in unplaced:
                    evidence.note_missing(now)

    def _has_ended(self, key: EvidenceKey, evidence: Evidence, living: frozenset[HolderId] | None, now: int) -> bool:
        if evidence.missing < MISSING_REPORTS:
            return False
        if evidence.observes or self._is_replaced(key, evidence):
            return True
        if living is not None and key.kind is HolderKind.POD and has_uid(key.kind, key.id):
            return (key.kind, key.id) not in living
        if living is not None and (key.kind, key.id) in living:
            return False
        return not self._sources[key.source].is_young(now)

    def _is_replaced(self, key: EvidenceKey, evidence: Evidence) -> bool:
        """Return whether the same source now declares the view exclusively for another holder."""
        return evidence.claim.share not in SHARED and any(
            other.view == key.view and other.source == key.source and one.confirmed and one.claim.share not in SHARED
            for other, one in self._evidence.items()
        )

    def _join(self, now: int) -> tuple[Holding, ...]:
        """Join the evidence to the present holdings; return those that have ended.

        A holding ends and another holding begins if:

        - its start changes: a requeued job, or a pod that continues after a reboot
        - its user, account or queue changes
        - its verdict becomes `conflict`, or is no longer `conflict`
        - its declaration ends, and processes remain

        A holding that ends has its last verdict other than `unknown`, and the end of that verdict: before its end it is
        always unknown.
        """
        by_view: dict[str, list[Evidence]] = {}
        for key, evidence in self._evidence.items():
            by_view.setdefault(key.view, []).append(evidence)
        before, periods = self._current, self._periods
        self._current, self._periods = {}, {}
        for view, own in by_view.items():
            joined = join(view, own)
            ceased = self._succession(joined, before, now)
            for one in joined:
                place, holding = holding_key(one.holding), one.holding
                period = periods.get(place)
                if period is None or not period.includes(holding):
                    period = _Period(holding.since, holding.since)
                if period.is_left_by(holding) and holding.verdict is HoldingVerdict.UNKNOWN:
                    left = before[place].holding
                    holding = msgspec.structs.replace(left, verdict=holding.verdict, methods=holding.methods)
                self._periods[place] = period = period.next(one.holding, now, ceased)
                user, account, queue = period.billed
                self._current[place] = one._replace(
                    holding=msgspec.structs.replace(
                        holding,
                        holder=msgspec.structs.replace(holding.holder, user=user, account=account, queue=queue),
                        since=period.since,
                        certain=period.certain,
                    )
                )
        self._joined_at = now
        ended: list[Holding] = []
        for place, old in before.items():
            new = self._current.get(place)
            if new is not None and new.holding.since == old.holding.since:
                continue
            end, period = old.missing_since or now, periods[place]
            holding = msgspec.structs.replace(old.holding, certain=None)
            if period.verdict is not None:
                holding = msgspec.structs.replace(holding, verdict=period.verdict)
                if period.until is not None:
                    end = min(end, period.until)
            if new is not None:
                end = min(end, new.holding.since)
            ended.append(msgspec.structs.replace(holding, until=max(holding.since, end)))
        return tuple(ended)

    def _succession(self, joined: Iterable[JoinedHolding], before: Container[HoldingKey], now: int) -> int:
        """Return the end of the holdings of a view that this round does not confirm.

        That is the start of a new exclusive holding since the previous round, else the time of this round.
        """
        begun = (
            one.holding.since
            for one in joined
            if holding_key(one.holding) not in before and _is_declared(one.holding) and one.holding.share not in SHARED
        )
        return min((since for since in begun if self._joined_at < since), default=now)

    def _devices(
        self, answers: Mapping[str, Answer], index: DeviceIndex, unresolved: Sequence[UnresolvedClaim]
    ) -> dict[str, DeviceHolders]:
        held: dict[str, list[Holding]] = {}
        for joined in self._current.values():
            held.setdefault(joined.holding.view, []).append(joined.holding)
        why_unknown = self._why_unknown(unresolved)
        self._seen = {view: index.views.get(view) or self._seen.get(view) for view in held}
        reasons = hidden_holders(self._seen, index.views) | _unattributed(answers, index)
        devices: dict[str, DeviceHolders] = {}
        for view in dict.fromkeys([*index.leaves, *held]):
            if view not in index.views:
                continue
            if view in held:
                devices[view] = device_holders(held[view], why_unknown)
            elif detail := reasons.get(view, why_unknown):
                devices[view] = DeviceHolders(state=HolderState.UNKNOWN, detail=detail)
            else:
                devices[view] = DeviceHolders(state=HolderState.FREE)
        return devices

    def _why_unknown(self, unresolved: Sequence[UnresolvedClaim]) -> str:
        """Return why a device without evidence may be held all the same, or an empty text."""
        declaring = [state for state in self._sources.values() if state.declares]
        if not declaring:
            return NO_SOURCE
        problems = [state.problem for state in declaring if state.problem]
        problems += [f"{one.source}: {one.name.detail}" for one in unresolved if self._sources[one.source].declares]
        return problems[0] if problems else ""


_SOURCES: dict[str, str] = {
    Method.KUBELET: "kubelet",
    Method.SCHEDULER: "slurm",
    Method.HYPERVISOR: "libvirt",
    Method.PROCESS: "processes",
    Method.DEVICE_FILE: "processes",
}
"""Method to the name of the source that uses it."""

SLURM = _SOURCES[Method.SCHEDULER]
"""Name of the source that reports SLURM's nodes of this machine."""


def _remembered_period(holding: Holding, saved_at: int, sources: Collection[str]) -> _Period:
    """Return the part of a holding of an earlier run, whose verdict ceased when it was saved."""
    verdict, until = holding.verdict, saved_at
    period = _Period(
        holding.since,
        holding.since,
        billed=_billed(holding.holder),
        is_declared=_is_declared(holding),
        is_remembered=True,
        is_continued=any(_SOURCES.get(method) in sources for method in holding.methods),
    )
    if verdict is HoldingVerdict.UNKNOWN:
        if holding.certain is None:
            return period
        verdict, until = holding.certain.verdict, holding.certain.until
    return period._replace(verdict=verdict, until=until)


def _is_declared(holding: Holding) -> bool:
    """Return whether a source declares a holding, now or as last known."""
    return any(method not in OBSERVING for method in holding.methods)


def _billed(holder: Holder) -> tuple[str, ...]:
    """Return the texts of a holder that can change while it has a device, and that usage is grouped by."""
    return holder.user, holder.account, holder.queue


def _key(view: str, source: str, claim: HolderClaim) -> EvidenceKey:
    container = claim.container_id if claim.method in OBSERVING else claim.container
    return EvidenceKey(view, source, claim.method, claim.holder.kind, claim.holder.id, container)


def _of_job(claim: HolderClaim, id_: str) -> HolderClaim:
    """Return a claim of a job with another id."""
    return msgspec.structs.replace(claim, holder=msgspec.structs.replace(claim.holder, id=id_))


def _without_uid(holder: Holder) -> Holder:
    """Return a pod identified by its name."""
    return msgspec.structs.replace(holder, id=f"{holder.namespace}/{holder.name}")


def _listed_jobs(answer: Answer | None, before: frozenset[HolderId] | None) -> frozenset[HolderId] | None:
    """Return the jobs that SLURM lists, from its newest answer and its newest complete one; None without the latter."""
    if not isinstance(answer, HolderReport):
        return before
    jobs = frozenset((claim.holder.kind, claim.holder.id) for claim in answer.claims)
    if answer.complete:
        return jobs
    return None if before is None else before | jobs


def _unattributed(answers: Mapping[str, Answer], index: DeviceIndex) -> dict[str, str]:
    """Return the views with use of an unknown holder, each with the reason."""
    reports = [answer for answer in answers.values() if isinstance(answer, HolderReport)]
    resolved = [index.resolve(name) for report in reports for name in report.unattributed_devices]
    found = {view: OPEN_FILE for view in resolved if isinstance(view, str)}
    return found | {view: UNATTRIBUTED for report in reports for view in report.unattributed}


def _lacks_living(report: HolderReport, living: frozenset[HolderId]) -> bool:
    """Return whether holders run that a declaring source does not list.

    A listed pod without UID (`namespace/name`) can be any running pod. Only a surplus of running pods proves a gap.
    """
    without_uid = sum("/" in id_ for _, id_ in report.listed)
    missing = [one for one in living - report.listed if one[0] is report.lists]
    return len(missing) > without_uid
