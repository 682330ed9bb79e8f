"""Sets of reasons out of the store."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.sets import EMPTY

_ABSENCES = "SELECT id, metrics, reasons, details FROM absence_sets WHERE id IN {ids:Array(UInt64)}"


def fetch_absences(handle: Handle, ids: set[int]) -> dict[int, dict[str, Absent]]:
    """Return set id to metric to why it is absent."""
    wanted = sorted(ids - {EMPTY})
    if not wanted:
        return {}
    return {
        number: {
            metric: Absent(Reason(reason), detail)
            for metric, reason, detail in zip(metrics, reasons, details, strict=True)
        }
        for number, metrics, reasons, details in handle.query(_ABSENCES, parameters={"ids": wanted}).result_rows
    }
