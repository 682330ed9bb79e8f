"""Gatherer of the facts about the fleet: once per judgement, on a thread of its own.

Costs do not grow with machines except by columns: a query per cluster for readings and for events, the registry's
machines in pages, and the scan of machines and the answers for allocations in turns.

A part that cannot be gathered is unknown, and its failure is part of the result: no finding closes by it.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from gpufleet.fleet.cluster_objects import kubernetes_uids
from gpufleet.fleet.contract.facts import ClusterFacts
from gpufleet.fleet.facts.allocations import allocation_table
from gpufleet.fleet.facts.clusters import (
    BusyShares,
    ClusterReading,
    cluster_table,
    count_late_clusters,
    utilization_counts,
)
from gpufleet.fleet.facts.duplicates import DUPLICATE_SECONDS
from gpufleet.fleet.facts.earlier import EarlierFindings
from gpufleet.fleet.facts.fleet import FleetTables, fleet_tables
from gpufleet.fleet.facts.history import FactMemory
from gpufleet.fleet.facts.hub import HOUR_SECONDS, HourlyCounts, NewNames, hub_table
from gpufleet.fleet.facts.metrics import EVENT_SECONDS, FACT_EVENTS, FACT_METRICS
from gpufleet.fleet.facts.past import PastInterval
from gpufleet.fleet.facts.senders import SenderReading, sender_table
from gpufleet.fleet.facts.supplied import ClusterInputs
from gpufleet.fleet.rules.facts import NO_ROW, FactTable, FleetFacts
from gpufleet.fleet.rules.logic import Column
from gpufleet.hub.contract.cluster_facts import GatheredTables, contract_facts
from gpufleet.hub.findings.allocations import AllocationTurns
from gpufleet.hub.findings.boots import AgentBoots
from gpufleet.hub.findings.deleted_nodes import NodeDeletions
from gpufleet.hub.findings.failures import (
    ALLOCATIONS,
    CLUSTERS,
    COLLECTORS,
    CONTRACT,
    COVERAGE,
    DUPLICATES,
    EVENTS,
    FLEET,
    MACHINES,
    READINGS,
    STORE,
    PartFailures,
)
from gpufleet.hub.findings.instant import HubInstant
from gpufleet.hub.findings.late import LateReports, past_interval
from gpufleet.hub.findings.machine_inputs import attribution, current_holders, machine_inputs, node_deleted_seconds
from gpufleet.hub.findings.reports import NO_MACHINE, NO_SENDER, nearest_report, only_machines
from gpufleet.hub.findings.scan import MachineScan
from gpufleet.hub.findings.sender_inputs import data_delays, dropped_totals, sender_readings, start_dropped
from gpufleet.hub.findings.states import ClusterState, ClusterStates
from gpufleet.hub.liveness.senders import Senders
from gpufleet.hub.query.overview import estimate_behind
from gpufleet.hub.query.records import CoverageCounter
from gpufleet.model.api.answer import Coverage
from gpufleet.model.finding import Finding, RuleScope
from gpufleet.model.stored.kubernetes import StoredCollector
from gpufleet.model.stored.readings import EventCount, NewestColumns, ViewColumns
from gpufleet.model.time import NANOS
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import ClusterStore, FactStore

COLLECTOR_SECONDS = 300.0
"""Age from which on a collector's report about its cluster's identity no longer counts: ten of its intervals."""


class GathererStore(FactStore, ClusterStore, Protocol):
    """The part of the store that the gatherer needs."""


class GatheredFacts(msgspec.Struct, frozen=True):
    """Facts for the rules and for the adoption contract, late intervals, and why parts of the facts are missing.

    `class_maxima` is the largest number of GPUs of each class of machines.
    """

    facts: FleetFacts
    clusters: Sequence[ClusterFacts]
    late: Sequence[PastInterval]
    failures: Mapping[str, str]
    class_maxima: Mapping[str, int] = {}


class FactGatherer:
    """Gathers the facts, with a memory between judgements. Use it from one thread."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: GathererStore,
        coverage: CoverageCounter,
        senders: Senders,
        boots: AgentBoots,
        late: LateReports,
        scan: MachineScan,
        allocations: AllocationTurns,
        clock: Clock,
        stale_after_seconds: float,
    ) -> None:
        """Take the sources. Create it before the hub accepts batches: earlier totals of senders are its baseline."""
        self._states = ClusterStates(registry, scan, NodeDeletions(registry, store, clock, allocations.machines))
        self._store = store
        self._coverage = coverage
        self._boots = boots
        self._late = late
        self._allocations = allocations
        self._clock = clock
        self._stale_after = stale_after_seconds
        self._started = clock.monotonic()
        self._memory = FactMemory()
        self._has_earlier = False
        self._counts = HourlyCounts()
        self._names = NewNames(self._started)
        self._busy = BusyShares()
        self._dropped = start_dropped(senders)
        self._failures: Mapping[str, str] = {}
        self._delays: dict[str, Column] = {}

    def learn(self, class_maxima: Mapping[str, int], open_findings: Sequence[Finding]) -> None:
        """Take what an earlier process saved; of the open findings, those of the first call."""
        if not self._has_earlier:
            self._memory.earlier, self._has_earlier = EarlierFindings(open_findings), True
        known = self._memory.class_maxima
        known |= {name: max(count, known.get(name, 0)) for name, count in class_maxima.items()}

    @property
    def _uptime_seconds(self) -> float:
        return self._clock.monotonic() - self._started

    def gather(self, instant: HubInstant, is_stopped: Callable[[], bool]) -> GatheredFacts:
        """Return the facts at an instant. Raises EvaluationStopped once the hub stops."""
        failures = PartFailures(self._failures, is_stopped)
        self._failures = failures.reasons
        if instant.store_error:
            failures.reasons[STORE] = instant.store_error
        states = self._states.read(instant, failures)
        rows = {one.id: row for row, one in enumerate(states)}
        tables = FleetTables(FactTable(RuleScope.MACHINE), FactTable(RuleScope.DEVICE), {}, {})
        with failures.part(FLEET):
            tables = self._fleet(states, rows, instant, failures)
        coverage = self._count_coverage(states, instant, failures)
        collectors: Mapping[str, Sequence[StoredCollector]] | None = None
        if instant.has_store:
            with failures.part(COLLECTORS):
                collectors = self._store.collectors([one.id for one in states])
        readings = self._cluster_readings(states, tables, instant, coverage, collectors or {})
        senders, unread = self._senders(states, tables.machines, instant), self._unread(states, failures)
        return GatheredFacts(
            FleetFacts.of(
                self._hub(states, readings, instant),
                cluster_table(readings),
                tables.machines,
                senders,
                self._allocation_table(rows, tables.machines, instant, failures),
                tables.devices,
                unread=unread,
            ),
            self._contract_facts(
                states, GatheredTables(tables, senders, coverage), collectors, instant, unread, failures
            ),
            self._late_intervals(states),
            failures.reasons,
            self._memory.class_maxima,
        )

    def _fleet(
        self,
        states: Sequence[ClusterState],
        rows: Mapping[str, int],
        instant: HubInstant,
        failures: PartFailures,
    ) -> FleetTables:
        duplicates: ViewColumns | None = None
        if instant.has_store:
            with failures.part(DUPLICATES):
                duplicates = self._store.duplicate_views(instant.liveness.now - int(DUPLICATE_SECONDS * NANOS))
        return fleet_tables(
            self._inputs(states, instant, failures),
            self._memory,
            instant.liveness.now,
            self._stale_after,
            cluster_rows=rows,
            duplicates=duplicates,
        )

    def _inputs(
        self, states: Sequence[ClusterState], instant: HubInstant, failures: PartFailures
    ) -> Iterator[ClusterInputs]:
        """Yield the inputs of each cluster. Without the store there are no readings."""
        agents = self._agents(states)
        self._delays = {}
        for one in states:
            newest: NewestColumns | None = None
            events: Sequence[EventCount] | None = None
            if instant.has_store:
                with failures.part(READINGS):
                    newest = self._store.newest_columns(one.id, FACT_METRICS)
                    self._delays[one.id] = data_delays(newest, one.machines, one.senders)
                since = instant.liveness.now - int(EVENT_SECONDS * NANOS)
                with failures.part(EVENTS):
                    events = self._store.event_counts(one.id, FACT_EVENTS, since)
            yield ClusterInputs(
                cluster=one.id,
                newest=NO_READINGS if newest is None else newest,
                machines=machine_inputs(
                    one.machines,
                    one.scanned,
                    lambda *who: agents.get(who),
                    is_queried=newest is not None,
                    deleted_seconds=node_deleted_seconds(one.machines, one.deleted, instant.liveness.now),
                ),
                holders=current_holders(one.machines, one.scanned),
                events=events,
                ingest_age=instant.liveness.unseen_since,
                flush_seconds=instant.liveness.not_flushed,
            )

    def _unread(self, states: Sequence[ClusterState], failures: PartFailures) -> frozenset[str]:
        """Return the clusters whose machines or GPUs could not be read."""
        no_list = not failures.reasons.keys().isdisjoint((CLUSTERS, MACHINES, FLEET))
        return frozenset([one.id for one in states if no_list or one.id not in self._delays])

    def _agents(self, states: Sequence[ClusterState]) -> Mapping[tuple[str, str], int]:
        """Return the number of live senders with the boot of each sender: they can be later names of a late sender."""
        live = {
            (one.id, name)
            for one in states
            for name, is_live in zip(one.senders.names, (one.senders.unseen < one.senders.late).tolist(), strict=True)
            if is_live
        }
        return self._boots.count(live.__contains__)

    def _late_intervals(self, states: Sequence[ClusterState]) -> Sequence[PastInterval]:
        """Return the complete late intervals of the machines of each sender."""
        of_senders = self._late.take(self._clock.monotonic())
        found = []
        for one in states if of_senders else ():
            names = [one.senders.names[place] if place != NO_SENDER else "" for place in one.machines.sender.tolist()]
            for machine, sender in zip(one.machines.records, names, strict=True):
                late = of_senders.get((one.id, sender))
                if late is not None:
                    found.append(past_interval(one.id, machine.id, sender, late))
        return found

    def _count_coverage(
        self, states: Sequence[ClusterState], instant: HubInstant, failures: PartFailures
    ) -> Mapping[str, Coverage]:
        if self._has_current_store(instant):
            retired = [machine.id for one in states for machine in one.machines.select(retired=True)]
            with failures.part(COVERAGE):
                return {one.cluster: one for one in self._coverage.of(None, retired)}
        return {}

    def _has_current_store(self, instant: HubInstant) -> bool:
        """Return whether the store answers, and has all but the newest readings: these do not count as stale yet.

        Otherwise the coverage is unknown, and allocations keep their answers until these expire.
        """
        return instant.has_store and instant.flush_lag_seconds < self._stale_after / 2

    def _contract_facts(
        self,
        states: Sequence[ClusterState],
        tables: GatheredTables,
        collectors: Mapping[str, Sequence[StoredCollector]] | None,
        instant: HubInstant,
        unread: Container[str],
        failures: PartFailures,
    ) -> Sequence[ClusterFacts]:
        with failures.part(CONTRACT):
            return contract_facts(states, tables, collectors, instant, unread, self._stale_after)
        return ()

    def _cluster_readings(
        self,
        states: Sequence[ClusterState],
        tables: FleetTables,
        instant: HubInstant,
        coverage: Mapping[str, Coverage],
        collectors: Mapping[str, Sequence[StoredCollector]],
    ) -> list[ClusterReading]:
        counts = utilization_counts(tables.devices, tables.machines, len(states))
        before = self._busy.before(self._clock.monotonic(), [one.id for one in states], counts)
        return [
            ClusterReading(
                id=one.id,
                retired=one.is_retired,
                nearest=nearest_report(one.senders, one.retired_senders),
                newest_value_seconds=_value_age(tables.newest_value_at.get(one.id, 0), instant),
                zero_utilization_ratio=zero / known if known else None,
                busy_before_ratio=before.get(one.id),
                uptime_seconds=self._uptime_seconds,
                kubernetes_uids=_kubernetes_uids(collectors.get(one.id, ()), instant),
                machines_ratio=one.machines_ratio,
                **_coverage(coverage.get(one.id), tables.replaced_gpus.get(one.id, 0)),
                **attribution(one.scanned),
            )
            for one, known, zero in zip(states, counts.known.tolist(), counts.zero.tolist(), strict=True)
        ]

    def _hub(
        self, states: Sequence[ClusterState], readings: Sequence[ClusterReading], instant: HubInstant
    ) -> FactTable:
        second = self._clock.monotonic()
        values: dict[str, float | None] = {
            **self._counts.add(second, instant.counts),
            **count_late_clusters(readings),
            "ingesting": instant.is_ingesting,
            "uptime_seconds": self._uptime_seconds,
            "down_seconds": instant.down_seconds if self._uptime_seconds < HOUR_SECONDS else 0.0,
            "store_answers": None if instant.store_error is None else not instant.store_error,
            "registry_answers": not instant.registry_error,
            "flush_lag_seconds": instant.flush_lag_seconds,
            "disk_free_ratio": instant.disk_free_ratio,
            "log_used_ratio": instant.log_used_ratio,
            "clock_behind_seconds": estimate_behind([one.senders.ahead[one.senders.is_current] for one in states]),
            "unknown_names": self._names.count(second, instant.unknown_names),
        }
        return hub_table(values, self._uptime_seconds)

    def _senders(self, states: Sequence[ClusterState], machines: FactTable, instant: HubInstant) -> FactTable:
        senders = instant.liveness.senders
        totals = {who: total for one in states for who, total in dropped_totals(senders, one.id).items()}
        dropped, backfilled = self._dropped.add(self._clock.monotonic(), totals), self._late.seconds()
        keys: list[str] = []
        readings: list[SenderReading] = []
        clusters, of_machines, retired, first = [], [], [], 0
        for row, one in enumerate(states):
            delays = self._delays.get(one.id, np.full(len(one.senders.names), np.nan))
            keys += [f"{one.id}/{name}" for name in one.senders.names]
            readings += sender_readings(one.id, one.senders, delays, dropped, backfilled, instant, self._uptime_seconds)
            places = only_machines(one.senders, one.machines)
            clusters.append(np.full(len(places), row))
            of_machines.append(np.where((places == NO_MACHINE) | (len(machines) == 0), NO_ROW, places + first))
            retired.append(one.retired_senders)
            first += len(one.machines.records)
        return sender_table(
            keys, readings, clusters=_joined(clusters), machines=_joined(of_machines), retired=_joined(retired)
        )

    def _allocation_table(
        self, rows: Mapping[str, int], machines: FactTable, instant: HubInstant, failures: PartFailures
    ) -> FactTable:
        if self._has_current_store(instant):
            with failures.part(ALLOCATIONS):
                self._allocations.take_turn()
        readings = [one for one in self._allocations.read() if one.cluster in rows]
        of_machines = [machines.row(f"{one.cluster}/{one.machine}") for one in readings]
        return allocation_table(
            readings,
            [rows[one.cluster] for one in readings],
            [NO_ROW if row is None else row for row in of_machines],
        )


def _value_age(at: int, instant: HubInstant) -> float | None:
    """Return the ingest seconds since the receipt of a value, nanoseconds since 1970; None if there is none (0).

    Values that are not flushed yet can be newer.
    """
    return max(0.0, instant.liveness.unseen_since(at) - instant.liveness.not_flushed) if at else None


def _kubernetes_uids(collectors: Sequence[StoredCollector], instant: HubInstant) -> int | None:
    """Return the number of UIDs of `kube-system`; None without any. Reports that are not flushed yet can be newer."""
    seconds = COLLECTOR_SECONDS + instant.liveness.not_flushed
    return len(kubernetes_uids(collectors, instant.liveness.now - int(seconds * NANOS))) or None


def _coverage(coverage: Coverage | None, replaced: int) -> dict[str, int | None]:
    """Return expected and reporting GPUs. A replaced GPU is not expected; the coverage expects it for some minutes."""
    if coverage is None:
        return {}
    sources = coverage.sources
    if sources.nvml is not None:
        sources = msgspec.structs.replace(sources, nvml=max(0, sources.nvml - replaced))
    best = sources.best(coverage.kubernetes_shares)
    return {"expected_gpus": best[0] if best else None, "reporting_gpus": coverage.reporting}


def _joined(parts: Sequence[Column]) -> Column:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _no_readings() -> NewestColumns:
    rows = np.empty(0, np.int64)
    return NewestColumns(
        machines=(), machine=rows, views=(), view=rows, readers=(), reader=rows, lanes=(), lane=rows,
        imported=rows.astype(bool), measured_at=rows, received_at=rows, driver_session=rows.astype(np.uint64),
        values={}, absence_set=rows.astype(np.uint64), absences={}, info_set=rows.astype(np.uint64), texts={},
    )  # fmt: skip


NO_READINGS = _no_readings()
"""Readings of a cluster that could not be read."""
