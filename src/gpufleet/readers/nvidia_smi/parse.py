"""Conversion of outputs to records, and the combined outputs of one pass. Pure.

An unreadable output becomes a failure, classified by exit code and error message.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.codecs.nvidia_smi import (
    DeviceRecord,
    Failure,
    Log,
    Table,
    classify_failure,
    parse_csv,
    parse_help,
    parse_listing,
    parse_xml,
)
from gpufleet.codecs.nvidia_smi.failure import named_devices
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.ports.channel import ExecResult
from gpufleet.readers.nvidia_smi.fetch import CommandFailedError
from gpufleet.readers.nvidia_smi.machine import count_of, cuda_of, driver_of, notes_of
from gpufleet.readers.nvidia_smi.plan import APPS_COLUMNS, Plan
from gpufleet.readers.nvidia_smi.views import rows_as_records


def parse_offered_fields(result: ExecResult) -> frozenset[str]:
    """Return the query fields that nvidia-smi supports. Raises CommandFailedError."""
    try:
        return parse_help(result.stdout)
    except WireError as error:
        raise _parse_failure(result, error) from error


def parse_table(result: ExecResult, columns: Sequence[str], *, may_be_empty: bool = False) -> Table:
    """Return the rows of a table without header, and its error messages. Raises CommandFailedError."""
    try:
        found = parse_csv(result.stdout, columns)
    except WireError as error:
        raise _parse_failure(result, error) from error
    if not found.rows and (found.messages or result.exit_code or not may_be_empty):
        raise CommandFailedError(_failure_of(result))
    return msgspec.structs.replace(found, messages=_with_code(found.messages, result))


def parse_log(result: ExecResult) -> Log:
    """Return the devices of the XML, and its error messages. Raises CommandFailedError."""
    try:
        found = parse_xml(result.stdout)
    except WireError as error:
        raise _parse_failure(result, error) from error
    if not found.devices:
        failure = _failure_of(result)
        if named_devices(found.messages):
            failure = Failure(failure.reason, found.messages)
        elif failure.reason in (Reason.NO_DATA, Reason.DRIVER_ERROR):
            failure = Failure(Reason.NO_SUPPORTED_GPU, ("nvidia-smi lists no GPU",))
        raise CommandFailedError(failure)
    return msgspec.structs.replace(found, messages=_with_code(found.messages, result))


def parse_device_listing(result: ExecResult) -> Listing:
    """Return the GPUs and MIG devices of `-L`. Raises CommandFailedError."""
    try:
        return parse_listing(result.stdout)
    except WireError as error:
        raise _parse_failure(result, error) from error


def _parse_failure(result: ExecResult, error: WireError) -> CommandFailedError:
    """Classify an unreadable output by the driver's error message, or without one by the parse error."""
    failure = _failure_of(result)
    is_unexplained = failure.reason in (Reason.NO_DATA, Reason.DRIVER_ERROR) and not named_devices(failure.lines)
    if is_unexplained and result.exit_code == 0 and result.stdout.strip():
        failure = Failure(Reason.DRIVER_ERROR, (f"the output of nvidia-smi cannot be read: {error}",))
    return CommandFailedError(failure)


def _failure_of(result: ExecResult) -> Failure:
    return classify_failure(result.exit_code, result.stdout, result.stderr)


def _with_code(messages: tuple[str, ...], result: ExecResult) -> tuple[str, ...]:
    if result.exit_code == 0:
        return messages
    return (*messages, f"nvidia-smi exited with code {result.exit_code} although it printed data")


class PassOutputs:
    """Combined outputs of one pass.

    Attributes:
        records: records of GPUs; a GPU can have several.
        messages: error messages of the driver and of the parsers.
        apps: rows of processes, or the reason why there are none.
        listing: `-L`, if it was identical before and after the MIG devices were read.
        notes: what nvidia-smi printed behind versions.
    """

    def __init__(self) -> None:
        self.records: list[DeviceRecord] = []
        self.messages: list[str] = []
        self.apps: tuple[dict[str, str], ...] | Absent = ()
        self.listing: Listing | None = None
        self.notes: list[str] = []
        self._counts: set[str] = set()
        self._seen = 0
        self._heads: list[Mapping[str, str]] = []

    @property
    def driver(self) -> str | None:
        """Driver version, or the placeholder that was printed instead."""
        return driver_of(self._heads)

    @property
    def cuda(self) -> str | None:
        """CUDA version, or the placeholder that was printed instead."""
        return cuda_of(self._heads)

    @property
    def count(self) -> int:
        """Number of GPUs by the driver's own count; without one, the number of GPUs printed."""
        count = count_of(self._counts)
        return self._seen if count is None else count

    def add_log(self, result: ExecResult, _: Plan) -> None:
        """Add XML. Raises CommandFailedError."""
        log = parse_log(result)
        self.records += log.devices
        self.messages += log.messages
        self._heads.append(log.leaves)
        self.notes = notes_of(log.leaves)
        self._add_counts(len(log.devices), log.leaves.get("attached_gpus"))

    def add_table(self, result: ExecResult, plan: Plan) -> None:
        """Add a table of GPUs. Raises CommandFailedError."""
        table = parse_table(result, plan.columns)
        self.records += rows_as_records(table.rows)
        self.messages += table.messages
        self._heads += table.rows
        self._add_counts(len(table.rows), *{row["count"] for row in table.rows if "count" in row})

    def add_apps(self, result: ExecResult) -> None:
        """Add a table of processes. Raises CommandFailedError."""
        table = parse_table(result, APPS_COLUMNS, may_be_empty=True)
        self.apps = table.rows
        self.messages += table.messages

    def _add_counts(self, seen: int, *counts: str | None) -> None:
        self._seen = max(self._seen, seen)
        self._counts |= {text for text in counts if text is not None}
        count = count_of(counts)
        if count is not None and count != seen:
            self.messages.append(f"the driver counts {count} GPUs, but nvidia-smi printed {seen}")
