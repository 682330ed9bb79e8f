"""What Kubernetes says of machines: the newest word of each teller, kept apart from what machines say of themselves."""

from collections.abc import Sequence

from gpufleet.model.catalogue.kubernetes import (
    ALLOCATABLE,
    CAPACITY,
    GPU_RESOURCES,
    LABELLED,
    SAID_BY_KUBERNETES,
)
from gpufleet.model.declared import DeclaredGpus, DeclaredResource
from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.model.stored.samples import Accepted
from gpufleet.model.time import to_datetime
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.columns import Columns, Rows
from gpufleet.stores.clickhouse.schema.tables import DECLARED

ON_BUS = f"argMax(arrayCount((v, f) -> v = {NVIDIA_VENDOR} AND isNull(f), vendors, physical_functions), reported_at)"
"""GPUs on a machine's buses, of the rows of its inventory."""

_GPU = f"resource IN {GPU_RESOURCES}"

_GPUS = f"""
WITH told AS (
    SELECT cluster, machine, reader,
        sumIf(value, metric = '{CAPACITY}' AND {_GPU}) AS gpus,
        countIf(metric = '{CAPACITY}' AND {_GPU}) AS says_gpus,
        sumIf(value, metric = '{ALLOCATABLE}' AND {_GPU}) AS allocatable,
        countIf(metric = '{ALLOCATABLE}' AND {_GPU}) AS says_allocatable,
        anyIf(value, metric = '{LABELLED}') AS labelled,
        max(toUnixTimestamp64Nano(measured_at)) AS measured, max(toUnixTimestamp64Nano(received_at)) AS received
    FROM declared FINAL
    WHERE isNotNull(value) AND received_at >= fromUnixTimestamp64Nano({{since:Int64}}, 'UTC')
        AND machine NOT IN {{without:Array(String)}}
    GROUP BY cluster, machine, reader HAVING says_gpus > 0),
buses AS (SELECT cluster, machine, {ON_BUS} AS pci FROM inventory GROUP BY cluster, machine)
SELECT cluster, reader, count(), sum(gpus), sum(allocatable), sum(says_allocatable), sumIf(gpus, is_newest),
    sumIf(multiIf(
        isNotNull(labelled) AND gpus > labelled, gpus - labelled,
        pci > 0 AND gpus >= 2 * pci AND gpus % pci = 0, gpus - pci, 0), is_newest),
    max(measured), max(received)
FROM (
    SELECT *, row_number() OVER (PARTITION BY cluster, machine ORDER BY received DESC, reader) = 1 AS is_newest
    FROM told LEFT JOIN buses USING (cluster, machine))
GROUP BY cluster, reader ORDER BY cluster, reader
"""  # noqa: S608 - the names are ours; what is asked for is bound

RESOURCES_SHOWN = 64
"""Of one machine, of all who tell."""

_RESOURCES = f"""
SELECT machine, reader, resource, maxIf(value, metric = '{CAPACITY}'), maxIf(value, metric = '{ALLOCATABLE}'),
    maxIf(value, metric = '{LABELLED}'),
    max(toUnixTimestamp64Nano(measured_at)), max(toUnixTimestamp64Nano(received_at))
FROM declared FINAL
WHERE cluster = {{cluster:String}} AND machine IN {{machines:Array(String)}} AND isNotNull(value)
    AND received_at >= fromUnixTimestamp64Nano({{since:Int64}}, 'UTC')
GROUP BY machine, reader, resource ORDER BY machine, reader, resource LIMIT {RESOURCES_SHOWN} BY machine
"""  # noqa: S608 - as above


class DeclaredRows:
    """Gathers what many batches have of it."""

    def __init__(self) -> None:
        self._rows = Rows(column.name for column in DECLARED.columns)

    def add(self, accepted: Accepted) -> None:
        """Add what a batch has of it; what its source says has ended is a row without a value."""
        batch = accepted.batch
        for block in batch.dims:
            if block.metric in SAID_BY_KUBERNETES:
                (resources,) = block.labels
                for machine, at, resource, value in zip(
                    block.machine, block.measured_at, resources, block.values, strict=True
                ):
                    self._rows.add(
                        batch.cluster,
                        accepted.machine_ids[machine],
                        block.reader,
                        block.metric,
                        resource,
                        value,
                        at,
                        accepted.received_at,
                    )

    @property
    def columns(self) -> Columns:
        """Everything gathered, as columns."""
        return self._rows.columns


def fetch_declared_gpus(handle: Handle, since: int, without: Sequence[str]) -> dict[str, tuple[DeclaredGpus, ...]]:
    """Ask how many GPUs Kubernetes counts in each cluster; see `ports.Store`."""
    found: dict[str, list[DeclaredGpus]] = {}
    for cluster, reader, machines, gpus, allocatable, says, counted, shares, measured, received in handle.query(
        _GPUS, parameters={"since": since, "without": list(without)}
    ).result_rows:
        found.setdefault(cluster, []).append(
            DeclaredGpus(
                reader=reader,
                machines=machines,
                gpus=gpus,
                allocatable=allocatable if says else None,
                counted=counted,
                shares=shares,
                measured_at=to_datetime(measured),
                received_at=to_datetime(received),
            )
        )
    return {cluster: tuple(told) for cluster, told in found.items()}


def fetch_declared_of(
    handle: Handle, cluster: str, machines: Sequence[str], since: int
) -> dict[str, tuple[DeclaredResource, ...]]:
    """Ask what Kubernetes says of machines; see `ports.Store`."""
    parameters = {"cluster": cluster, "machines": list(machines), "since": since}
    found: dict[str, list[DeclaredResource]] = {}
    for machine, reader, resource, capacity, allocatable, labelled, measured, received in handle.query(
        _RESOURCES, parameters=parameters
    ).result_rows:
        found.setdefault(machine, []).append(
            DeclaredResource(
                resource=resource,
                capacity=labelled if capacity is None else capacity,
                allocatable=allocatable,
                reader=reader,
                measured_at=to_datetime(measured),
                received_at=to_datetime(received),
            )
        )
    return {machine: tuple(told) for machine, told in found.items()}
