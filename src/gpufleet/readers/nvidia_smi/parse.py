"""Outputs to records; what cannot be read is judged by exit code and words. Pure."""

from collections.abc import Sequence

import msgspec

from gpufleet.codecs.nvidia_smi import Failure, Log, Table, judge, parse_csv, parse_help, parse_listing, parse_xml
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.model.absence import Reason
from gpufleet.model.errors import WireError
from gpufleet.ports import ExecResult
from gpufleet.readers.nvidia_smi.fetch import Failed


def offered(result: ExecResult) -> frozenset[str]:
    """Return the fields that nvidia-smi knows. Raises Failed."""
    try:
        return parse_help(result.stdout)
    except WireError as error:
        raise _failed(result, error) from error


def table(result: ExecResult, columns: Sequence[str], *, may_be_empty: bool = False) -> Table:
    """Return the rows of a table without header, with the words of what went wrong beside them. Raises Failed."""
    try:
        found = parse_csv(result.stdout, columns)
    except WireError as error:
        raise _failed(result, error) from error
    if not found.rows and (found.messages or result.exit_code or not may_be_empty):
        raise Failed(_judged(result))
    return msgspec.structs.replace(found, messages=_with_code(found.messages, result))


def log(result: ExecResult) -> Log:
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
