"""GPUs that Kubernetes declares: the newest declaration of each reader, separate from reported GPUs."""

from collections.abc import Sequence

from gpufleet.model.catalogue.kubernetes import (
    ALLOCATABLE,
    ALLOCATED,
    CAPACITY,
    GPU_RESOURCES,
    KUBERNETES_REPORTED,
    LABELLED,
    PUBLISHED_GPUS,
)
from gpufleet.model.declarations import DeclaredGpus, DeclaredResource
from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import to_datetime
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.columns import Columns, RowBuffer
from gpufleet.stores.clickhouse.schema.tables import DECLARED

PCI_GPU_COUNT = (
    f"argMax(arrayCount((v, f) -> v = {NVIDIA_VENDOR} AND isNull(f), vendors, physical_functions), reported_at)"
)
"""SQL expression: number of GPUs on a machine's PCI buses, from rows of `inventory`."""

_GPU = f"resource IN {GPU_RESOURCES}"
_IS_ALLOCATED = f"metric = '{ALLOCATED}' AND resource IN {(*GPU_RESOURCES, PUBLISHED_GPUS)}"
_IS_PUBLISHED = f"metric = '{CAPACITY}' AND resource = '{PUBLISHED_GPUS}'"

# `separate`: GPUs of a machine with a device plugin and a DRA driver, as far as its label or its buses show that each
# has GPUs of its own.
_GPUS = f"""
WITH declarations AS (
    SELECT cluster, machine, reader,
        toInt64(ifNull(sumIf(value, metric = '{CAPACITY}' AND {_GPU}), 0)) AS devices,
        toInt64(ifNull(sumIf(value, {_IS_PUBLISHED}), 0)) AS published,
        countIf(metric = '{CAPACITY}' AND {_GPU}) AS reports_devices,
        countIf({_IS_PUBLISHED}) AS reports_published,
        sumIf(value, metric = '{ALLOCATABLE}' AND {_GPU}) AS allocatable,
        countIf(metric = '{ALLOCATABLE}' AND {_GPU}) AS reports_allocatable,
        sumIf(value, {_IS_ALLOCATED}) AS allocated,
        countIf({_IS_ALLOCATED}) AS reports_allocated,
        toInt64(anyIf(value, metric = '{LABELLED}')) AS labelled,
        max(toUnixTimestamp64Nano(measured_at)) AS newest,
        least(ifNull(maxOrNullIf(toUnixTimestamp64Nano(measured_at), {_IS_PUBLISHED}), newest),
            ifNull(maxOrNullIf(toUnixTimestamp64Nano(measured_at), NOT ({_IS_PUBLISHED})), newest)) AS measured,
        max(toUnixTimestamp64Nano(received_at)) AS received
    FROM declared FINAL
    WHERE isNotNull(value) AND received_at >= fromUnixTimestamp64Nano({{since:Int64}}, 'UTC')
        AND machine NOT IN {{without:Array(String)}}
    GROUP BY cluster, machine, reader HAVING reports_devices > 0 OR reports_published > 0),
buses AS (SELECT cluster, machine, {PCI_GPU_COUNT} AS pci FROM inventory GROUP BY cluster, machine)
SELECT cluster, reader, count(), sum(gpus), sum(allocatable), sum(reports_allocatable),
    sum(allocated), sum(reports_allocated), sum(published), sum(reports_published),
    sumIf(gpus, is_counted), sumIf(gpus - greatest(published, whole, separate), is_counted),
    max(measured), max(received)
FROM (
    SELECT *, greatest(devices, published, separate) AS gpus, row_number() OVER (
            PARTITION BY cluster, machine ORDER BY reports_published > 0 DESC, received DESC, reader) = 1 AS is_counted,
        ifNull(multiIf(
            isNotNull(labelled) AND devices > labelled, labelled,
            pci > 0 AND devices >= 2 * pci AND devices % pci = 0, toInt64(pci), devices), 0) AS whole,
        if(devices > 0 AND published > 0, least(whole + published, ifNull(labelled, toInt64(pci))), 0) AS separate
    FROM declarations LEFT JOIN buses USING (cluster, machine))
GROUP BY cluster, reader ORDER BY cluster, reader
"""  # noqa: S608 - names are constants; values are bound as parameters

MAX_RESOURCES_PER_MACHINE = 64
"""Over all readers."""

_RESOURCES = f"""
SELECT machine, reader, resource, maxIf(value, metric = '{CAPACITY}'), maxIf(value, metric = '{ALLOCATABLE}'),
    maxIf(value, metric = '{LABELLED}'),
    max(toUnixTimestamp64Nano(measured_at)), max(toUnixTimestamp64Nano(received_at))
FROM declared FINAL
WHERE cluster = {{cluster:String}} AND machine IN {{machines:Array(String)}} AND isNotNull(value)
    AND received_at >= fromUnixTimestamp64Nano({{since:Int64}}, 'UTC')
GROUP BY machine, reader, resource ORDER BY machine, reader, resource LIMIT {MAX_RESOURCES_PER_MACHINE} BY machine
"""  # noqa: S608 - as above


class DeclaredRows:
    """Rows of `declared` from many batches."""

    def __init__(self) -> None:
        self._rows = RowBuffer(column.name for column in DECLARED.columns)

    def add(self, accepted: AcceptedBatch) -> None:
        """Add the declarations of a batch. A declaration that has ended is a row without a value."""
        batch = accepted.batch
        for block in batch.dims:
            if block.metric in KUBERNETES_REPORTED:
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
        """The rows as columns."""
        return self._rows.columns


def fetch_declared_gpus(handle: Handle, since: int, without: Sequence[str]) -> dict[str, tuple[DeclaredGpus, ...]]:
    """Return cluster to declared GPU counts; see `ports.FleetStore`."""
    found: dict[str, list[DeclaredGpus]] = {}
    for (
        cluster,
        reader,
        machines,
        gpus,
        allocatable,
        has_allocatable,
        allocated,
        has_allocated,
        published,
        has_published,
        counted,
        shares,
        measured,
        received,
    ) in handle.query(_GPUS, parameters={"since": since, "without": list(without)}).result_rows:
        found.setdefault(cluster, []).append(
            DeclaredGpus(
                reader=reader,
                machines=machines,
                gpus=gpus,
                allocatable=allocatable if has_allocatable else None,
                allocated=allocated if has_allocated else None,
                published=published if has_published else None,
                counted=counted,
                shares=shares,
                measured_at=to_datetime(measured),
                received_at=to_datetime(received),
            )
        )
    return {cluster: tuple(declared) for cluster, declared in found.items()}


def fetch_declared_resources(
    handle: Handle, cluster: str, machines: Sequence[str], since: int
) -> dict[str, tuple[DeclaredResource, ...]]:
    """Return machine id to declared resources; see `ports.SampleStore`."""
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
    return {machine: tuple(declared) for machine, declared in found.items()}
