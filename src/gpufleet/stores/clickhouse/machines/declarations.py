"""GPUs that Kubernetes declares: the newest declaration of each reader, separate from reported GPUs."""

from gpufleet.model.catalogue.kubernetes import KUBERNETES_REPORTED
from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.machines.declared_values import DECLARED_COLUMNS, DeclaredValues
from gpufleet.stores.clickhouse.schema.columns import Columns, RowBuffer
from gpufleet.stores.clickhouse.schema.tables import DECLARED

PCI_GPU_COUNT = (
    f"argMax(arrayCount((v, f) -> v = {NVIDIA_VENDOR} AND isNull(f), vendors, physical_functions), reported_at)"
)
"""SQL expression: number of GPUs on a machine's PCI buses, from rows of `inventory`."""

_SELECT = f"""
SELECT {", ".join(f"toUnixTimestamp64Nano({name})" if name.endswith("_at") else name for name in DECLARED_COLUMNS)}
FROM declared FINAL
"""  # noqa: S608 - names are constants

_ROWS_AT_ONCE = 65_536
"""Rows per chunk of decoded texts."""


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


def fetch_declared(handle: Handle) -> DeclaredValues:
    """Load the declarations of the whole store."""
    found = DeclaredValues()
    table = handle.query_arrow(_SELECT, settings={"max_threads": 1})
    for first in range(0, table.num_rows, _ROWS_AT_ONCE):
        rows = table.slice(first, _ROWS_AT_ONCE)
        found.add({name: rows.column(place).to_pylist() for place, name in enumerate(DECLARED_COLUMNS)})
    return found
