"""Facts about the machines of a cluster for the adoption contract, from the columns of an evaluation of the rules."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec
import numpy as np

from gpufleet.fleet.contract.facts import GpuSource, MachineFacts, MachineGroup
from gpufleet.fleet.facts.gpu_reports import ReportedGpus
from gpufleet.fleet.identity import EVIDENCE
from gpufleet.fleet.rules.facts import FactTable
from gpufleet.fleet.rules.logic import Column, any_of
from gpufleet.hub.findings.reports import NO_SENDER
from gpufleet.hub.findings.states import ClusterState
from gpufleet.hub.liveness.limits import LOST_SECONDS
from gpufleet.hub.liveness.senders import TrackedSender, answered_at
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.liveness import State
from gpufleet.model.time import NANOS, to_ns

DAY_NS = 86_400 * NANOS

_MISSING = -1e300  # a number that no column has: NaN differs from itself, and would make each machine a group


class ClusterColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an evaluation of the rules about a cluster.

    Attributes:
        state: its machines and senders.
        machines, senders: tables of the scopes machine and sender.
        first_machine, first_sender: rows of its first machine and sender.
        reports: numbers of GPUs of its machines.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: the hub's freshness limit for values.
    """

    state: ClusterState
    machines: FactTable
    first_machine: int
    senders: FactTable
    first_sender: int
    reports: ReportedGpus
    now: int
    stale_after_seconds: float

    def of_machines(self, name: str) -> Column:
        """Return an input of its machines."""
        return self.machines.column(name)[self.first_machine : self.first_machine + self.size]

    def of_senders(self, name: str) -> Column:
        """Return an input of the sender of each machine, NaN without a sender."""
        first = self.first_sender
        return self.by_machine(self.senders.column(name)[first : first + len(self.state.senders.names)])

    def by_machine(self, column: Column | Sequence[float]) -> Column:
        """Return the cell of the sender of each machine, NaN without a sender."""
        cells: Column = np.append(np.asarray(column, np.float64), np.nan)[self.state.machines.sender]
        return cells

    @property
    def size(self) -> int:
        """Return the number of its machines."""
        return len(self.state.machines.records)

    @property
    def is_retired(self) -> Column:
        """Return whether each machine is retired, or a removed guest."""
        return self.machines.retired[self.first_machine : self.first_machine + self.size]


def machine_groups(cluster: ClusterColumns) -> tuple[MachineGroup, ...]:
    """Return the machines of a cluster that are not retired, in groups of equal facts.

    A machine whose holders and sources of expected GPUs were not read yet is not read.
    """
    table, state = _GroupedFacts(), cluster.state
    records, scanned = state.machines.records, state.scanned
    nodes = [None if one is None else one.node for one in scanned]
    table.add_values("is_read", [one is not None for one in scanned])
    table.add_values("kind", [one.machine.kind for one in records])
    table.add_values("evidence", [_evidence(one) for one in records])
    table.add_values("in_kubernetes", [
        bool(one.machine.k8s_node_uid or one.machine.k8s_node_name) or node is not None
        for one, node in zip(records, nodes, strict=True)
    ])  # fmt: skip
    for name in ("region", "zone", "instance_type"):
        table.add_values(name, [
            getattr(one.machine, name) or (getattr(node, name) if node is not None else None) or None
            for one, node in zip(records, nodes, strict=True)
        ])  # fmt: skip
    table.add_values("has_pool", [None if node is None else node.has_pool for node in nodes])
    _add_reports(table, cluster)
    _add_counts(table, cluster)
    chosen = np.flatnonzero(~cluster.is_retired)
    return table.groups([one.machine.name for one in records], chosen)


def _add_reports(table: "_GroupedFacts", cluster: ClusterColumns) -> None:
    """Add what is known about the sender of each machine, and when it reported."""
    senders, sender = cluster.state.senders, cluster.state.machines.sender
    states = _states(cluster)
    last_seen = np.array([to_ns(one.last_seen) for one in cluster.state.machines.records], np.int64)
    days = np.where(states == _NUMBERS[State.LOST], (cluster.now - last_seen) // DAY_NS, 0)
    days = np.where(states == _NUMBERS[State.NEVER_SEEN], np.nan, np.maximum(days, 0))
    table.add("state", states, lambda number: _STATES[int(number)])
    table.add("unseen_days", days, int)
    table.add("source", _sources(cluster), lambda number: _SOURCES[int(number)])
    table.add("is_scraped", cluster.by_machine([_is_scraped(one) for one in senders.tracked]), bool)
    beats = [one.newest.own_heartbeat for one in senders.tracked]
    versions = [one.version if one else None for one in beats]
    table.add_values("version", [None if at == NO_SENDER else versions[at] for at in sender.tolist()])
    intervals = [one.interval_seconds if one else np.nan for one in beats]
    table.add("heartbeat_seconds", cluster.by_machine(intervals), float)
    ahead = cluster.of_senders("clock_ahead_seconds")
    table.add("clock_ahead_seconds", np.copysign(np.ceil(np.abs(ahead)), ahead) + 0.0, float)
    table.add("missing_batches", cluster.of_senders("missing_batches"), int)
    table.add("dropped_batches", cluster.of_senders("dropped_batches"), int)
    shares_epoch = np.nan_to_num(cluster.of_senders("shared_epoch_batches")) > 0
    table.add("identity_conflict", any_of(cluster.of_machines("identity_conflict"), shares_epoch), bool)


def _add_counts(table: "_GroupedFacts", cluster: ClusterColumns) -> None:
    """Add numbers of GPUs, and what their readings show."""
    reports, column = cluster.reports, cluster.of_machines
    on_bus = np.maximum(0, column("pci_gpus") - np.nan_to_num(column("passthrough_gpus")))
    expected = np.fmax(np.fmax(on_bus, column("kubernetes_gpus")), np.fmax(reports.known, reports.described))
    age = column("gpu_value_seconds")
    # Values that are old because the hub did not ingest meanwhile show no missing GPU, nor does a new machine.
    known_since = np.array([to_ns(one.first_seen) for one in cluster.state.machines.records], np.int64)
    is_new = cluster.now - known_since < cluster.stale_after_seconds * NANOS
    is_overdue = (np.isnan(age) & ~is_new) | (age > cluster.stale_after_seconds)
    reporting = column("reporting_gpus")
    reporting = np.where(np.isnan(reporting) & (expected > 0) & is_overdue, 0, reporting)
    table.add("expected_gpus", expected, int)
    table.add("reporting_gpus", reporting, int)
    for name, numbers in (
        ("identified_gpus", reports.identified),
        ("usage_gpus", reports.use),
        ("condition_gpus", reports.condition),
        ("invalid_gpus", reports.invalid),
        ("unattributed_gpus", reports.unattributed),
    ):
        table.add(name, np.where(np.isnan(reporting), np.nan, numbers), int)
    table.add("interval_seconds", column("gpu_interval_seconds"), float)
    table.add("value_age_seconds", np.ceil(age / 60) * 60, float)
    table.add("driver_works", column("driver_works"), bool)
    table.add("xids_watched", column("xids_watched"), bool)


class _GroupedFacts:
    """Columns of facts, and the groups of machines with equal cells."""

    def __init__(self) -> None:
        self._columns: dict[str, Column] = {}
        self._decoders: dict[str, Callable[[float], Any]] = {}

    def add(self, name: str, column: Column, decode: Callable[[float], Any]) -> None:
        """Add a column of numbers, NaN for a missing fact. `decode` returns the fact of a number."""
        self._columns[name] = np.where(np.isnan(column), _MISSING, column)
        self._decoders[name] = decode

    def add_values(self, name: str, values: Sequence[Hashable]) -> None:
        """Add a column of facts of few different values."""
        numbers: dict[Hashable, int] = {}
        column = np.array([numbers.setdefault(one, len(numbers)) for one in values], np.float64)
        known = list(numbers)
        self.add(name, column, lambda number: known[int(number)])

    def groups(self, names: Sequence[str], chosen: Column) -> tuple[MachineGroup, ...]:
        """Return the groups of chosen machines, in the order of their first names."""
        if not len(chosen):
            return ()
        cells = np.ascontiguousarray(np.stack([one[chosen] for one in self._columns.values()], axis=1))
        rows = cells.view(np.dtype((np.void, cells.dtype.itemsize * cells.shape[1]))).ravel()
        _, first, group = np.unique(rows, return_index=True, return_inverse=True)
        order = np.argsort(group, kind="stable")
        members = np.split(chosen[order], np.flatnonzero(np.diff(group[order])) + 1)
        found = [
            MachineGroup(self._facts(cells[at]), tuple(sorted(names[place] for place in own.tolist())))
            for at, own in zip(first.tolist(), members, strict=True)
        ]
        return tuple(sorted(found, key=lambda one: one.names[0]))

    def _facts(self, cells: Column) -> MachineFacts:
        numbers = zip(self._decoders.items(), cells.tolist(), strict=True)
        fields: dict[str, Any] = {
            name: None if number == _MISSING else decode(number) for (name, decode), number in numbers
        }
        return MachineFacts(**fields)


_STATES = tuple(State)
_NUMBERS = {state: number for number, state in enumerate(_STATES)}
_SOURCES = tuple(GpuSource)


def _states(cluster: ClusterColumns) -> Column:
    """Return the number of the state of each machine, as `LivenessSnapshot.machine` judges it."""
    senders, machines = cluster.state.senders, cluster.state.machines
    unseen, late, stale = machines.unseen, cluster.by_machine(senders.late), cluster.by_machine(senders.stale)
    never = [answered_at(one.newest) == 0 for one in senders.tracked]
    named_only = np.array([one.named_only for one in machines.records], bool)
    is_lost = (machines.sender == NO_SENDER) | np.isnan(unseen) | (unseen >= LOST_SECONDS)
    states = np.where(unseen >= late, _NUMBERS[State.LATE], _NUMBERS[State.LIVE])
    states = np.where(unseen >= stale, _NUMBERS[State.STALE], states)
    states = np.where(is_lost, _NUMBERS[State.LOST], states)
    is_unseen = named_only | (cluster.by_machine(never) == 1)
    return np.where(is_unseen, _NUMBERS[State.NEVER_SEEN], states).astype(np.float64)


def _sources(cluster: ClusterColumns) -> Column:
    """Return the number of the origin of the readings of each machine."""
    is_own = cluster.reports.is_own
    pulled = [one.newest.is_created_by_hub for one in cluster.state.senders.tracked]
    imported = np.where(cluster.by_machine(pulled) == 0, _SOURCES.index(GpuSource.EXPORTER),
                        _SOURCES.index(GpuSource.PULL))  # fmt: skip
    read = np.where(is_own == 1, _SOURCES.index(GpuSource.AGENT), imported)
    return np.where(np.isnan(is_own), _SOURCES.index(GpuSource.NONE), read).astype(np.float64)


def _is_scraped(known: TrackedSender) -> bool:
    """Return whether the hub connects to a sender. Only targets have the time of an answer in their heartbeats."""
    heartbeat = known.newest.heartbeat
    return heartbeat is not None and heartbeat.answered_at is not None


def _evidence(machine: MachineRecord) -> tuple[str, ...]:
    return tuple([name for name in EVIDENCE if getattr(machine.machine, name)])
