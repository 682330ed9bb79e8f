"""Outputs to records; what cannot be read is judged by exit code and words. Pure.

What came of the commands of one pass.
"""

from collections.abc import Sequence

import msgspec

from gpufleet.codecs.nvidia_smi import (
    DeviceRecord,
    Failure,
    Log,
    Table,
    judge,
    parse_csv,
    parse_help,
    parse_listing,
    parse_xml,
)
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.codecs.nvidia_smi.values import token
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.ports.channel import ExecResult
from gpufleet.readers.nvidia_smi.fetch import Failed
from gpufleet.readers.nvidia_smi.plan import APPS_COLUMNS, Plan
from gpufleet.readers.nvidia_smi.views import rows_as_records


def offered(result: ExecResult) -> frozenset[str]:
    """Return the fields that nvidia-smi knows. Raises Failed."""
    try:
        return parse_help(result.stdout)
    except WireError as error:
        raise _failed(result, error) from error


def parse_table(result: ExecResult, columns: Sequence[str], *, may_be_empty: bool = False) -> Table:
    """Return the rows of a table without header, with the words of what went wrong beside them. Raises Failed."""
    try:
        found = parse_csv(result.stdout, columns)
    except WireError as error:
        raise _failed(result, error) from error
    if not found.rows and (found.messages or result.exit_code or not may_be_empty):
        raise Failed(_judged(result))
    return msgspec.structs.replace(found, messages=_with_code(found.messages, result))


def parse_log(result: ExecResult) -> Log:
    """Return the XML's devices, with the words of what went wrong beside them. Raises Failed."""
    try:
        found = parse_xml(result.stdout)
    except WireError as error:
        raise _failed(result, error) from error
    if not found.devices:
        failure = _judged(result)
        if failure.reason in (Reason.NO_DATA, Reason.DRIVER_ERROR):
            failure = Failure(Reason.NO_SUPPORTED_GPU, "nvidia-smi shows no GPU")
        raise Failed(failure)
    return msgspec.structs.replace(found, messages=_with_code(found.messages, result))


def listing(result: ExecResult) -> Listing:
    """Return GPUs and MIG devices by UUID. Raises Failed."""
    try:
        return parse_listing(result.stdout)
    except WireError as error:
        raise _failed(result, error) from error


def _failed(result: ExecResult, error: WireError) -> Failed:
    """Judge an output that could not be read: by the driver's words, or, where there are none, by the fault in it."""
    failure = _judged(result)
    if failure.reason in (Reason.NO_DATA, Reason.DRIVER_ERROR) and result.exit_code == 0 and result.stdout.strip():
        return Failed(Failure(Reason.DRIVER_ERROR, f"the output of nvidia-smi cannot be read: {error}"))
    return Failed(failure)


def _judged(result: ExecResult) -> Failure:
    return judge(result.exit_code, result.stdout, result.stderr)


def _with_code(messages: tuple[str, ...], result: ExecResult) -> tuple[str, ...]:
    if result.exit_code == 0:
        return messages
    return (*messages, f"nvidia-smi ended with code {result.exit_code} beside what it printed")


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
        log = parse_log(result)
        self.records += log.devices
        self.messages += log.messages
        self.driver = _told(log.leaves.get("driver_version")) or self.driver
        self.cuda = log.leaves.get("cuda_version")
        self._note(len(log.devices), log.leaves.get("attached_gpus"))

    def take_table(self, result: ExecResult, plan: Plan) -> None:
        """Take in a table of GPUs. Raises Failed."""
        table = parse_table(result, plan.columns)
        self.records += rows_as_records(table.rows)
        self.messages += table.messages
        for row in table.rows:
            self.driver = _told(row.get("driver_version")) or self.driver
        self._note(len(table.rows), *{row["count"] for row in table.rows if "count" in row})

    def take_apps(self, result: ExecResult) -> None:
        """Take in a table of processes. Raises Failed."""
        table = parse_table(result, APPS_COLUMNS, may_be_empty=True)
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
