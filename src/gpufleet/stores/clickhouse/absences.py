"""Sets of reasons out of the store."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.sets import EMPTY, ById

AbsenceSets = ById[dict[str, Absent]]
"""Set id to metric to why it is absent."""

_ABSENCES = "SELECT id, metrics, reasons, details FROM absence_sets WHERE id IN {ids:Array(UInt64)}"


def fetch_absences(handle: Handle, ids: set[int], met: AbsenceSets) -> dict[int, dict[str, Absent]]:
    """Return the sets of these ids; `met` has those that were asked for before, and gains the others."""
    found, wanted = met.split(ids - {EMPTY})
    if wanted:
        asked = {
            number: {
                metric: Absent(Reason(reason), detail)
                for metric, reason, detail in zip(metrics, reasons, details, strict=True)
            }
            for number, metrics, reasons, details in handle.query(_ABSENCES, parameters={"ids": wanted}).result_rows
        }
        met.keep(asked)
        found.update(asked)
    return found
