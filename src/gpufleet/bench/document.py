"""The benchmark document: everything that one capture recorded, its JSON codec and its JSON Schema."""

import datetime as dt
import enum
import inspect
from typing import Annotated, Any, get_args

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.errors import WireError, WireLimitError, WireVersionError
from gpufleet.model.reading import Provenance, Value

BENCHMARK_SCHEMA = "gpufleet.benchmark/1"

MAX_BYTES = 16 << 20
"""Maximum size of a document from a file."""

MAX_VALUE = 1e18
"""Maximum of a plausible value in any unit."""

MAX_REPEATS = 100
MAX_LABELS = 32
MAX_FACTS = 4096
MAX_COMMANDS = 4096
MAX_MEASUREMENTS = 256
MAX_OUTPUT_TEXT = 64 << 10
"""Maximum length of one stored output, in characters."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]
"""Name of a fact or a measurement."""
Text = Annotated[str, msgspec.Meta(max_length=256)]
Detail = Annotated[str, msgspec.Meta(max_length=1024)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
LabelName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_.-]{0,62}$")]
LabelValue = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Labels = Annotated[dict[LabelName, LabelValue], msgspec.Meta(max_length=MAX_LABELS)]
Arguments = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=4096)], ...], msgspec.Meta(max_length=64)]


class MeasuredUnit(enum.StrEnum):
    """MeasuredUnit of a measurement or a fact."""

    NONE = ""
    SECONDS = "seconds"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes_per_second"
    OPERATIONS_PER_SECOND = "operations_per_second"
    TRANSFERS_PER_SECOND = "transfers_per_second"
    WATTS = "watts"
    HERTZ = "hertz"


class Better(enum.StrEnum):
    """Direction in which a measurement improves."""

    LOWER = "lower"
    HIGHER = "higher"


class CapturedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Machine of a capture.

    Attributes:
        name: host name.
        machine_id, system_uuid, boot_id: identity; None if unknown.
        source: side on which the commands ran.
        channel: channel that carried the commands, such as `local`.
    """

    name: Text
    machine_id: Text | None = None
    system_uuid: Text | None = None
    boot_id: Text | None = None
    source: Provenance = Provenance.HOST_LOCAL_PROBE
    channel: Text = "local"


class RawOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Raw output of a command. Its SHA-256 digest, over all bytes, is its key in the document.

    Attributes:
        bytes: length of the whole output.
        text: its beginning, decoded as UTF-8.
        truncated: whether the text is shorter than the output.
    """

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    text: Annotated[str, msgspec.Meta(max_length=MAX_OUTPUT_TEXT)]
    truncated: bool = False


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Command that a capture ran.

    Attributes:
        name: name of the command in the capture.
        argv: program and arguments.
        tool_version: of the program, if the capture read it before.
        started_at: by the clock of the capturing process.
        duration_seconds: by its monotonic clock, with the time of the channel.
        exit_code: None without a result.
        stdout, stderr: digests of the outputs; None without a result.
        absent, detail: reason without a result.
    """

    name: Name
    argv: Arguments
    tool_version: Text = ""
    started_at: dt.datetime
    duration_seconds: Seconds
    exit_code: int | None = None
    stdout: Digest | None = None
    stderr: Digest | None = None
    absent: Reason | None = None
    detail: Detail = ""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Property of the machine; exactly one of `value` and `absent` is set.

    Attributes:
        name: name in `bench.facts.FACTS`.
        subject: device of the fact, such as a PCI address; empty for the machine.
        value: in the unit.
        unit: of the value.
        source: file or command of the value.
        absent, detail: reason of the absence.
    """

    name: Name
    subject: Text = ""
    value: bool | Value | None = None
    unit: MeasuredUnit = MeasuredUnit.NONE
    source: Text = ""
    absent: Reason | None = None
    detail: Detail = ""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the repeats of a measurement, in its unit.

    Attributes:
        count: number of values.
        median, mean, minimum, maximum: of the values.
        standard_deviation: of the sample; None for a single value.
    """

    count: Annotated[int, msgspec.Meta(ge=1)]
    median: float
    mean: float
    minimum: float
    maximum: float
    standard_deviation: float | None = None


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Repeated measurement; without values, `absent` is set.

    Attributes:
        name: name in the capture.
        unit: of the values.
        better: direction of improvement.
        tool: program that measured.
        tool_version: only if results of other versions are not comparable; else empty.
        arguments: of the program, with the target replaced by a placeholder.
        target: file, device or peer of the placeholder; empty if there is none.
        values: one for each successful repeat.
        statistics: of the values; None without values.
        failed: number of repeats without a value.
        absent, detail: reason of the last failed repeat, or why there are no repeats.
    """

    name: Name
    unit: MeasuredUnit
    better: Better
    tool: Text
    tool_version: Text = ""
    arguments: Arguments = ()
    target: Detail = ""
    values: Annotated[
        tuple[Annotated[float, msgspec.Meta(ge=0, le=MAX_VALUE)], ...], msgspec.Meta(max_length=MAX_REPEATS)
    ] = ()
    statistics: Statistics | None = None
    failed: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPEATS)] = 0
    absent: Reason | None = None
    detail: Detail = ""


class BenchmarkDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Document of one capture.

    Attributes:
        schema: `BENCHMARK_SCHEMA`.
        name: given by the operator, or the host name.
        version: of gpufleet.
        started_at, ended_at: by the clock of the capturing process.
        machine: machine on which the commands ran.
        labels: factors given by the operator, such as `hugepages: on`.
        repeats: number of repeats of each measurement.
        facts: properties of the machine, and reasons of unknown ones.
        measurements: measured values, and reasons of missing ones.
        commands: every command, in order.
        outputs: raw outputs by digest.
    """

    schema: str
    name: LabelValue
    version: Text
    started_at: dt.datetime
    ended_at: dt.datetime
    machine: CapturedMachine
    labels: Labels
    repeats: Annotated[int, msgspec.Meta(ge=1, le=MAX_REPEATS)]
    facts: Annotated[tuple[Fact, ...], msgspec.Meta(max_length=MAX_FACTS)]
    measurements: Annotated[tuple[Measurement, ...], msgspec.Meta(max_length=MAX_MEASUREMENTS)]
    commands: Annotated[tuple[CommandRecord, ...], msgspec.Meta(max_length=MAX_COMMANDS)]
    outputs: Annotated[dict[Digest, RawOutput], msgspec.Meta(max_length=2 * MAX_COMMANDS)]


class _BenchmarkHeader(msgspec.Struct):
    schema: str = ""


_decoder = msgspec.json.Decoder(BenchmarkDocument)
_header_decoder = msgspec.json.Decoder(_BenchmarkHeader)


def encode_benchmark(document: BenchmarkDocument) -> bytes:
    """Return the document as indented UTF-8 JSON with a final line feed."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode_benchmark(content: bytes) -> BenchmarkDocument:
    """Decode a document from a file.

    Raises:
        WireLimitError: if it is larger than `MAX_BYTES`.
        WireVersionError: if it has another schema.
        WireError: if it does not follow the schema; `field` is the JSON path.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError("", f"the document has {len(content)} bytes, more than {MAX_BYTES}")
    try:
        schema = _header_decoder.decode(content).schema
        if schema != BENCHMARK_SCHEMA:
            raise WireVersionError("schema", f"{schema[:80]!r} is not {BENCHMARK_SCHEMA}")
        document = _decoder.decode(content)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        raise WireError(path.strip("`"), reason) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("", f"not JSON: {error}") from error
    _check_uniqueness(document)
    return document


def _check_uniqueness(document: BenchmarkDocument) -> None:
    for field, keys in (
        ("$.measurements", [one.name for one in document.measurements]),
        ("$.facts", [(one.name, one.subject) for one in document.facts]),
    ):
        if len(set(keys)) != len(keys):
            raise WireError(field, "has two entries of the same name")


def benchmark_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document, generated from the records."""
    schema = msgspec.json.schema(BenchmarkDocument)
    definitions = schema["$defs"]
    for record in (BenchmarkDocument, CommandRecord):
        properties = definitions[record.__name__]["properties"]
        for field in msgspec.structs.fields(record):
            if dt.datetime in (field.type, *get_args(field.type)):
                properties[field.encode_name]["format"] = "date-time"
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
    definitions["BenchmarkDocument"]["properties"]["schema"]["const"] = BENCHMARK_SCHEMA
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{BENCHMARK_SCHEMA.replace('/', ':')}",
        **schema,
    }
