"""Tables of facts about all machines and GPUs. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from gpufleet.fleet.facts.devices import DeviceFactsBuilder, Texts
from gpufleet.fleet.facts.duplicates import GpuReporters, machines_column
from gpufleet.fleet.facts.gpu_reports import ReportedGpus, gpu_reports
from gpufleet.fleet.facts.gpus import cluster_gpus
from gpufleet.fleet.facts.history import FactMemory
from gpufleet.fleet.facts.machines import MachineFactColumns, MachineFactsBuilder
from gpufleet.fleet.facts.newest import NONE, current_rows
from gpufleet.fleet.facts.nodes import cluster_machines
from gpufleet.fleet.facts.supplied import ClusterInputs
from gpufleet.fleet.rules.facts import NO_ROW, FactTable
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.finding import RuleScope
from gpufleet.model.stored.readings import ViewColumns


class FleetTables(msgspec.Struct, frozen=True):
    """Facts about the machines and GPUs of all clusters.

    Attributes:
        machines, devices: the tables.
        newest_value_at: cluster to the newest receipt of a sample of a GPU's use or condition, nanoseconds since 1970;
            0 without any. Static readings and listings of the PCI bus do not count.
        gpu_reports: cluster to the numbers of GPUs of its machines by what is reported about them.
        replaced_gpus: cluster to the number of GPUs that its coverage still expects, and another GPU replaced.
    """

    machines: FactTable
    devices: FactTable
    newest_value_at: Mapping[str, int]
    gpu_reports: Mapping[str, ReportedGpus]
    replaced_gpus: Mapping[str, int] = {}


class _ClusterFactColumns(msgspec.Struct, frozen=True):
    """Facts about a cluster, without the readings that they are from."""

    cluster: str
    machines: MachineFactColumns
    retired_machines: Column
    devices: dict[str, Column]
    device_texts: dict[str, Texts]
    device_keys: list[str]
    device_places: tuple[list[str], list[str]]
    device_rows: Column
    is_uuid: Column
    retired_devices: Column
    newest_value_at: int
    gpu_reports: ReportedGpus
    replaced_gpus: int


def fleet_tables(
    clusters: Iterable[ClusterInputs],
    memory: FactMemory,
    now: int,
    stale_after_seconds: float,
    *,
    cluster_rows: Mapping[str, int],
    duplicates: ViewColumns | None = None,
) -> FleetTables:
    """Return the facts at an instant, and record them in the memory.

    Args:
        clusters: what is known about each cluster; the readings of one cluster at a time are needed. A cluster that
            could not be queried is left out: nothing is known about it.
        memory: memory of earlier judgements.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: the hub's freshness limit for values.
        cluster_rows: row of each cluster in the table of the scope cluster.
        duplicates: GPUs that several machines reported within `DUPLICATE_SECONDS`, or None if unknown.
    """
    memory.begin(now)
    reporters, found = GpuReporters(), []
    for inputs in clusters:
        reporters.add(inputs.machines)
        found.append(_cluster(inputs, memory, now, stale_after_seconds))
        del inputs  # its readings are not needed while the next cluster is queried
    counts = None if duplicates is None else reporters.contradictions(duplicates, now)
    newest = {one.cluster: one.newest_value_at for one in found}
    return FleetTables(
        _machine_table(found, cluster_rows),
        _device_table(found, counts),
        newest,
        {one.cluster: one.gpu_reports for one in found},
        {one.cluster: one.replaced_gpus for one in found},
    )


def _cluster(inputs: ClusterInputs, memory: FactMemory, now: int, stale_after_seconds: float) -> _ClusterFactColumns:
    history = memory.cluster(inputs.cluster)
    current = current_rows(inputs.newest, now, stale_after_seconds)
    machines = cluster_machines(inputs.newest, inputs.machines, current)
    gpus = cluster_gpus(inputs.newest, current)
    devices = DeviceFactsBuilder(inputs, gpus, machines, now).build(
        history.gpus, memory.readers, memory.earlier, history.second
    )
    builder = MachineFactsBuilder(inputs, machines, devices, now)
    facts, memory.class_maxima = builder.build(history.machines, memory.class_maxima, memory.readers, history.second)
    names = inputs.newest.machines
    return _ClusterFactColumns(
        cluster=inputs.cluster,
        machines=facts,
        retired_machines=machines.is_retired,
        devices=devices.columns,
        device_texts=devices.texts,
        device_keys=devices.keys,
        device_places=([names[place] for place in gpus.machine.tolist()], gpus.keys),
        device_rows=machines.rows[gpus.machine],
        is_uuid=gpus.is_uuid,
        retired_devices=gpus.retired,
        newest_value_at=int(gpus.value_at.max(initial=0)),
        gpu_reports=gpu_reports(inputs.newest, machines, devices),
        replaced_gpus=int((gpus.is_replaced & ~machines.of(machines.is_retired, gpus.machine)).sum()),
    )


def _machine_table(clusters: Sequence[_ClusterFactColumns], cluster_rows: Mapping[str, int]) -> FactTable:
    sizes = [len(one.machines.keys) for one in clusters]
    rows = [cluster_rows.get(one.cluster, NO_ROW) for one in clusters]
    return FactTable(
        RuleScope.MACHINE,
        [key for one in clusters for key in one.machines.keys],
        _joined([one.machines.columns for one in clusters]),
        texts=_joined_texts([one.machines.texts for one in clusters]),
        parents={RuleScope.CLUSTER: np.repeat(np.array(rows, np.int64), sizes)},
        retired=_concatenated([one.retired_machines for one in clusters], bool),
    )


def _device_table(clusters: Sequence[_ClusterFactColumns], counts: Mapping[tuple[str, str], int] | None) -> FactTable:
    columns = _joined([one.devices for one in clusters])
    parents, first = [], 0
    for one in clusters:
        parents.append(np.where(one.device_rows == NONE, NO_ROW, one.device_rows + first))
        first += len(one.machines.keys)
    if counts is not None:
        columns["machines"] = _concatenated([_machines(one, counts) for one in clusters], np.float64)
    return FactTable(
        RuleScope.DEVICE,
        [key for one in clusters for key in one.device_keys],
        columns,
        texts=_joined_texts([one.device_texts for one in clusters]),
        parents={RuleScope.MACHINE: _concatenated(parents, np.int64)},
        retired=_concatenated([one.retired_devices for one in clusters], bool),
    )


def _machines(one: _ClusterFactColumns, counts: Mapping[tuple[str, str], int]) -> Column:
    machines, views = one.device_places
    return machines_column(machines, views, one.is_uuid, counts)


def _concatenated(parts: Sequence[Column], dtype: type) -> Column:
    return np.concatenate([np.zeros(0, dtype), *parts])


def _joined(parts: Sequence[dict[str, Column]]) -> dict[str, Column]:
    """Return the columns of all parts one after the other. The parts are emptied, to hold each column once."""
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0] if parts else ())}


def _joined_texts(parts: Sequence[dict[str, Texts]]) -> dict[str, Texts]:
    return {name: [text for part in parts for text in part[name]] for name in (parts[0] if parts else ())}
