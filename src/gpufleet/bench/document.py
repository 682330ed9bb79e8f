"""The benchmark document: everything that one capture recorded, its JSON codec and its JSON Schema."""

import datetime as dt
import inspect
from typing import Annotated, Any, get_args

import msgspec

from gpufleet.model.api.benchmarks import BENCHMARK_SCHEMA, MAX_CAPTURE_BYTES
from gpufleet.model.errors import WireError, WireLimitError, WireVersionError
from gpufleet.model.reading import Provenance
from gpufleet.probe.records import (
    MAX_REPEATS,
    CommandRecord,
    Digest,
    Fact,
    Measurement,
    RawOutput,
    Text,
)

MAX_BYTES = MAX_CAPTURE_BYTES
"""Maximum size of a document from a file."""

MAX_LABELS = 32
MAX_FACTS = 4096
MAX_COMMANDS = 4096
MAX_MEASUREMENTS = 256

LabelName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_.-]{0,62}$")]
LabelValue = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Labels = Annotated[dict[LabelName, LabelValue], msgspec.Meta(max_length=MAX_LABELS)]


class CapturedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Machine of a capture.

    Attributes:
        name: host name; of a guest, the name in the agent's configuration.
        machine_id, system_uuid, boot_id: identity; None if unknown. Of a guest, `system_uuid` is the configured UUID;
            the others are the guest's own report.
        source: side on which the commands ran.
        channel: channel that carried the commands, such as `local`.
        allocation: id of the guest's allocation, or None.
    """

    name: Text
    machine_id: Text | None = None
    system_uuid: Text | None = None
    boot_id: Text | None = None
    source: Provenance = Provenance.HOST_LOCAL_PROBE
    channel: Text = "local"
    allocation: Text | None = None


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
