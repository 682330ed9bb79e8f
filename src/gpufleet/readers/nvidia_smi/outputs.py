"""What came of the commands of one pass."""

from gpufleet.codecs.nvidia_smi import DeviceRecord
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.codecs.nvidia_smi.words import token
from gpufleet.model.absence import Absent
from gpufleet.ports import ExecResult
from gpufleet.readers.nvidia_smi import parse
from gpufleet.readers.nvidia_smi.plan import APPS_COLUMNS, Plan
from gpufleet.readers.nvidia_smi.views import rows_as_records


class Outputs:
    """Collects outputs.

    Attributes:
        records: what they say of GPUs, several records of one GPU among them.
        messages: the driver's words, and ours about what could not be read.
        apps: rows of processes, or why there are none.
        listing: names of MIG devices, if it was the same before and after the MIG devices were read.
        driver, cuda: versions, where one is told.
    """

    def __init__(self) -> None:
        self.records: list[DeviceRecord] = []
        self.messages: list[str] = []
        self.apps: tuple[dict[str, str], ...] | Absent = ()
        self.listing: Listing | None = None
        self.driver: str | None = None
        self.cuda: str | None = None
        self._counts: set[str] = set()
        self._seen = 0

    @property
    def count(self) -> int:
        """How many GPUs the driver says there are; without a word of it, how many it shows."""
        said = [int(text) for text in self._counts if text.isascii() and text.isdigit() and len(text) < 6]
        return max(said, default=self._seen)

    def take_log(self, result: ExecResult, _: Plan) -> None:
        """Take in XML. Raises Failed."""
        log = parse.log(result)
        self.records += log.devices
        self.messages += log.messages
        self.driver = _told(log.leaves.get("driver_version")) or self.driver
        self.cuda = log.leaves.get("cuda_version")
        self._note(len(log.devices), log.leaves.get("attached_gpus"))

    def take_table(self, result: ExecResult, plan: Plan) -> None:
        """Take in a table of GPUs. Raises Failed."""
        table = parse.table(result, plan.columns)
        self.records += rows_as_records(table.rows)
        self.messages += table.messages
        for row in table.rows:
            self.driver = _told(row.get("driver_version")) or self.driver
        self._note(len(table.rows), *{row["count"] for row in table.rows if "count" in row})

    def take_apps(self, result: ExecResult) -> None:
        """Take in a table of processes. Raises Failed."""
        table = parse.table(result, APPS_COLUMNS, may_be_empty=True)
        self.apps = table.rows
        self.messages += table.messages

    def _note(self, seen: int, *counts: str | None) -> None:
        self._seen = max(self._seen, seen)
        said = {text for text in counts if text is not None}
        self._counts |= said
        if any(text.isascii() and text.isdigit() and int(text[:9]) != seen for text in said):
            self.messages.append(f"the driver counts {', '.join(sorted(said))} GPUs, and {seen} were printed")


def _told(text: str | None) -> str | None:
    return text.strip() if text is not None and token(text) is None else None
