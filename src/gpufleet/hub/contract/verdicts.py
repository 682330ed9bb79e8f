"""Verdicts about clusters by the adoption contract, with their history."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gpufleet import __version__
from gpufleet.fleet.contract import AdoptionContract
from gpufleet.fleet.contract.check import ItemStatus
from gpufleet.fleet.contract.facts import ClusterFacts
from gpufleet.fleet.contract.history import ClusterHistory, update_history
from gpufleet.fleet.contract.judge import judge_cluster
from gpufleet.fleet.contract.report import ConformanceReport, conformance_report
from gpufleet.fleet.contract.verdict import ClusterVerdict
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.contract import ContractSummary
from gpufleet.model.errors import RegistryError
from gpufleet.model.finding import Finding, Severity
from gpufleet.model.stored.findings import cluster_of
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.ports.findings import FindingRegistry

SAVE_NS = 600 * NANOS
"""Interval between saves of unchanged statuses: after a restart, `last_seen` is at most this old."""

ContractCounts = Mapping[tuple[str, ItemStatus], int]
"""Cluster and status to the number of items of the judged tier."""

_ENCODER = msgspec.msgpack.Encoder()
_HISTORIES = msgspec.msgpack.Decoder(dict[str, ClusterHistory])


class JudgedCluster(msgspec.Struct, frozen=True):
    """Newest verdict about a cluster, and its history with this verdict."""

    verdict: ClusterVerdict
    history: ClusterHistory


class ContractVerdicts:
    """Newest verdicts and histories of all clusters. One thread judges; any thread reads.

    A change of status is saved with the verdict, unchanged ones every `SAVE_NS`. Until the saved histories are loaded,
    verdicts have no history, and nothing is saved. A cluster without a saved history is not judged before the hub had
    an interval of data since its start: its senders could not report yet.

    Attributes:
        contract: the contract in force.
    """

    def __init__(self, contract: AdoptionContract, registry: FindingRegistry) -> None:
        self.contract = contract
        self._registry = registry
        self._judged: dict[str, JudgedCluster] = {}
        self._histories: dict[str, ClusterHistory] | None = None
        self._is_changed = False
        self._saved_at = 0

    def judge(
        self,
        clusters: Sequence[ClusterFacts],
        findings: Iterable[Finding] | None,
        registry_error: str = "",
        *,
        has_waited: bool = True,
    ) -> None:
        """Judge all served clusters.

        Args:
            clusters: facts about each of them; `unacknowledged_critical_seconds` is filled in.
            findings: open findings; None if the rules were not evaluated.
            registry_error: why the registry does not answer: it is then not used.
            has_waited: whether the hub had an interval of data since its start.

        Raises:
            RegistryError: if histories or acknowledgements cannot be loaded, or the histories cannot be saved. All
                clusters are judged nevertheless.
        """
        errors = [RegistryError(registry_error)] if registry_error else []
        if not errors and self._histories is None:
            with _errors_to(errors):
                self._histories = self._load()
        seconds: Mapping[str, float] | None = None
        if findings is not None and not errors:
            critical = [one for one in findings if one.severity is Severity.CRITICAL and one.closed_at is None]
            at = max((one.at for one in clusters), default=0)
            with _errors_to(errors):
                seconds = self._unacknowledged_seconds(critical, at)
        known = self._histories or {}
        judged = {one.cluster: self._judge(one, seconds) for one in clusters if has_waited or one.cluster in known}
        self._judged = judged
        if self._histories is not None:
            self._histories |= {id_: one.history for id_, one in judged.items()}
            if not errors:
                with _errors_to(errors):
                    self._save(self._histories)
        if errors:
            raise errors[0]

    def report(self, cluster: str, spec: ClusterSpec | None, now: int) -> ConformanceReport:
        """Return the newest report of a cluster. Without a verdict, only its registration is judged.

        Args:
            cluster: id of a served cluster.
            spec: its registration.
            now: nanoseconds since 1970 by the hub's clock.
        """
        known = self._judged.get(cluster)
        if known is not None:
            age = max(0, now - known.verdict.at) / NANOS
            return conformance_report(self.contract, known.verdict, known.history, age_seconds=age)
        tier = None if spec is None else spec.tier
        facts = ClusterFacts(cluster=cluster, at=now, hub_version=__version__, spec=spec, tier=tier)
        verdict = judge_cluster(self.contract, facts, () if spec is None else spec.waivers)
        return conformance_report(self.contract, verdict)

    def summary(self, cluster: str) -> ContractSummary | None:
        """Return the newest verdict about a cluster, or None."""
        known = self._judged.get(cluster)
        if known is None:
            return None
        verdict = known.verdict
        return ContractSummary(
            at=to_datetime(verdict.at),
            visibility=verdict.visibility,
            tier=verdict.judged_tier,
            reached_tier=verdict.reached_tier,
            percent=verdict.must.percent,
            not_visible=verdict.not_visible,
            gpus_not_visible=verdict.gpus_not_visible,
            machines_without_count=verdict.machines_without_count,
        )

    def counts(self) -> ContractCounts:
        """Count the items of each cluster by status."""
        judged = self._judged
        found = Counter(dict.fromkeys([(id_, status) for id_ in judged for status in ItemStatus], 0))
        found.update((id_, item.status) for id_, one in judged.items() for item in one.verdict.items)
        return found

    def _judge(self, facts: ClusterFacts, seconds: Mapping[str, float] | None) -> JudgedCluster:
        """Return the verdict about a cluster. `seconds` are those of unacknowledged findings, None if unknown."""
        if seconds is not None:
            facts = msgspec.structs.replace(facts, unacknowledged_critical_seconds=seconds.get(facts.cluster, 0.0))
        before = (self._histories or {}).get(facts.cluster, ClusterHistory())
        last = self._judged.get(facts.cluster)
        last_tier = before.tier if last is None else last.verdict.judged_tier
        verdict = judge_cluster(self.contract, facts, () if facts.spec is None else facts.spec.waivers, last_tier)
        history, changes = update_history(before, verdict)
        self._is_changed |= bool(changes) or not before.at
        return JudgedCluster(verdict, history)

    def _unacknowledged_seconds(self, critical: Sequence[Finding], at: int) -> dict[str, float]:
        """Return the time since the oldest critical finding without acknowledgement opened, by cluster."""
        until = {}
        if critical:
            known = self._registry.finding_acknowledgements([one.id for one in critical])
            until = {id_: one.until for id_, one in known.items()}
        found: dict[str, float] = {}
        for one in critical:
            cluster = cluster_of(one.scope)
            if cluster is not None and until.get(one.id, 0) <= at:
                found[cluster] = max(found.get(cluster, 0.0), (at - one.opened_at) / NANOS)
        return found

    def _load(self) -> dict[str, ClusterHistory]:
        packed = self._registry.contract_state()
        try:
            return {} if packed is None else _HISTORIES.decode(packed)
        except msgspec.MsgspecError as error:
            raise RegistryError(
                f"the history of the adoption contract in the registry is damaged ({error}): restore the registry from "
                "a backup (docs/operations/backup.md)"
            ) from error

    def _save(self, histories: Mapping[str, ClusterHistory]) -> None:
        at = max((one.at for one in histories.values()), default=0)
        if self._is_changed or abs(at - self._saved_at) >= SAVE_NS:
            self._registry.save_contract_state(_ENCODER.encode(histories))
            self._is_changed, self._saved_at = False, at


@contextlib.contextmanager
def _errors_to(errors: list[RegistryError]) -> Iterator[None]:
    """Add an error of the registry to a list."""
    try:
        yield
    except RegistryError as error:
        errors.append(error)
