"""What the formats of nvidia-smi share: outputs of one machine to its snapshot.

`nvidia-smi --query-gpu=... --format=csv`, with its header.

`nvidia-smi -q` and `nvidia-smi vgpu -q`.

`nvidia-smi -q -x`.

A file with several outputs of nvidia-smi, each under the command that printed it.

The driver's words in place of an output: what nvidia-smi prints where it shows no GPU at all.
"""

import re
from collections.abc import Sequence

import msgspec

from gpufleet.codecs.nvidia_smi import (
    DeviceRecord,
    Failure,
    Log,
    Section,
    Table,
    judge,
    parse_capture,
    parse_csv,
    parse_listing,
    parse_text,
    parse_xml,
)
from gpufleet.codecs.nvidia_smi.capture import is_capture
from gpufleet.codecs.nvidia_smi.failure import SENTENCES
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.codecs.nvidia_smi.values import parse_time, token
from gpufleet.decoding.assembling import INTERVALS, Assembling
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.time import to_ns
from gpufleet.readers.nvidia_smi.machine import NAME, failure_error, machine_sample
from gpufleet.readers.nvidia_smi.mapping.account import READ_OF_CSV, account
from gpufleet.readers.nvidia_smi.mapping.devices import Asked, asked_by_columns, asked_by_log
from gpufleet.readers.nvidia_smi.mapping.rows import LANES, PROCESSES
from gpufleet.readers.nvidia_smi.samples import gpu_sample, modes_by_key, part_samples, with_processes
from gpufleet.readers.nvidia_smi.views import identify, rows_as_records

NO_TIME = "the output does not say when it was printed: the file's time is shown"
ZONE = "nvidia-smi prints local time without its zone: it is taken as UTC"


class Outputs(msgspec.Struct, kw_only=True):
    """Outputs that were printed at about one time; any of them may be missing.

    Attributes:
        log: of `-q`, `-q -x` or `vgpu -q`.
        table: of `--query-gpu`.
        apps: of `--query-compute-apps`.
        listing: of `-L`.
        notes: words about outputs that could not be read.
    """

    log: Log | None = None
    table: Table | None = None
    apps: Table | None = None
    listing: Listing | None = None
    notes: list[str] = []


def decode_outputs(source: Source, moments: Sequence[Outputs]) -> Decoded:
    """Return the machine's snapshot; what was printed later replaces what was printed before.

    Raises:
        WireError: if there is no GPU in any of them.
    """
    machine = Assembling(Machine(name=_host(moments) or source.name), source.at)
    notes: dict[str, None] = {}
    unread: dict[str, str] = {}
    unknown: dict[str, None] = {}
    for outputs in moments:
        records = _records(outputs)
        if not records:
            continue
        at = _printed_at(outputs)
        notes |= dict.fromkeys(outputs.notes)
        notes[ZONE if at is not None else NO_TIME] = None
        errors = _take(machine, outputs, records, source.at if at is None else at)
        notes |= dict.fromkeys(errors)
        found = account(records, outputs.log.leaves if outputs.log else ())
        unread |= found.unread
        unknown |= dict.fromkeys(found.unknown)
    snapshot = machine.snapshot()
    if not snapshot.devices:
        said = dict.fromkeys(note for outputs in moments for note in outputs.notes)
        raise WireError("", "; ".join(("no GPU in it", *list(said)[:3])))
    return Decoded(snapshots=(snapshot,), notes=tuple(notes), unread=unread, unknown=tuple(unknown))


def _take(machine: Assembling, outputs: Outputs, records: Sequence[DeviceRecord], at: int) -> list[str]:
    gpus, errors = identify(records)
    asked = _asked(outputs)
    if outputs.apps is not None and PROCESSES not in asked.metrics:
        gpus = with_processes(gpus, outputs.apps.rows)
        asked = Asked(asked.metrics | {PROCESSES})
    modes = modes_by_key(gpus, {})
    errors += outputs.log.messages if outputs.log else ()
    errors += outputs.table.messages if outputs.table else ()
    said = _told(outputs, "attached_gpus", "count")
    if said is not None and said.isdigit() and int(said[:9]) != len(gpus):
        errors.append(f"the driver counts {said[:9]} GPUs, and {len(gpus)} were printed")
    for lane in LANES:
        samples = [gpu_sample(gpu, lane, asked, modes[gpu.view.key], at) for gpu in gpus]
        parts, words = part_samples(gpus, outputs.listing, lane, at)
        own = machine_sample(
            lane,
            at,
            shown_gpus=len(gpus),
            driver=_told(outputs, "driver_version", "driver_version"),
            cuda=_told(outputs, "cuda_version", ""),
        )
        errors += [one for one in words if one not in errors]
        machine.take([*samples, *parts, *([own] if own is not None else [])], errors=errors)
    return errors


def _records(outputs: Outputs) -> list[DeviceRecord]:
    rows = rows_as_records(outputs.table.rows) if outputs.table is not None else []
    return rows + (list(outputs.log.devices) if outputs.log is not None else [])


def _asked(outputs: Outputs) -> Asked:
    metrics: frozenset[str] = frozenset()
    if outputs.log is not None:
        metrics |= asked_by_log(outputs.log).metrics
    if outputs.table is not None:
        metrics |= asked_by_columns(outputs.table.columns).metrics
    return Asked(metrics)


def _told(outputs: Outputs, leaf: str, field: str) -> str | None:
    """Return what the head of the log, or else the first row of the table, says under a name."""
    texts = [outputs.log.leaves.get(leaf)] if outputs.log is not None else []
    texts += [row.get(field) for row in outputs.table.rows[:1]] if outputs.table is not None else []
    return next((text for text in texts if text is not None and token(text) is None), None)


def _printed_at(outputs: Outputs) -> int | None:
    """Return when the last of them was printed."""
    texts = [outputs.log.leaves.get("timestamp")] if outputs.log is not None else []
    texts += [row.get("timestamp") for row in outputs.table.rows] if outputs.table is not None else []
    times = [at for text in texts if text is not None and (at := parse_time(text)) is not None]
    return to_ns(max(times)) if times else None


def _host(moments: Sequence[Outputs]) -> str | None:
    return next((name for outputs in moments if (name := _told(outputs, "hostname", "hostname"))), None)


def _fits(content: bytes) -> bool:
    try:
        columns = parse_csv(content[: 1 << 16]).columns
    except WireError:
        return False
    return bool(READ_OF_CSV & set(columns))


def _decode(source: Source) -> Decoded:
    table = parse_csv(source.content)
    if not {"uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"} & set(table.columns):
        raise WireError("csv", "no column names the GPU: ask for uuid or pci.bus_id as well")
    return decode_outputs(source, [Outputs(table=table)])


CSV = Format(name="nvidia-smi-csv", help="nvidia-smi --query-gpu=... --format=csv", fits=_fits, decode=_decode)


_GPU = re.compile(rb"(?m)^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7][ \r]*\n {2,8}\S")


def _text_fits(content: bytes) -> bool:
    return _GPU.search(content[: 1 << 16]) is not None


def _text_decode(source: Source) -> Decoded:
    return decode_outputs(source, [Outputs(log=parse_text(source.content))])


TEXT = Format(name="nvidia-smi-text", help="nvidia-smi -q or vgpu -q", fits=_text_fits, decode=_text_decode)


def _xml_fits(content: bytes) -> bool:
    return b"<nvidia_smi_log" in content[: 1 << 16]


def _xml_decode(source: Source) -> Decoded:
    return decode_outputs(source, [Outputs(log=parse_xml(source.content))])


XML = Format(name="nvidia-smi-xml", help="nvidia-smi -q -x", fits=_xml_fits, decode=_xml_decode)


def _capture_decode(source: Source) -> Decoded:
    moments: dict[str, Outputs] = {}
    listing: Listing | None = None
    other: list[str] = []
    for section in parse_capture(source.content):
        outputs = moments.setdefault(section.group, Outputs(notes=[]))
        try:
            if section.arguments == "-L":
                listing = parse_listing(section.body)
            elif not _capture_take(section, outputs):
                other.append(section.arguments or "(the table)")
        except WireError as error:
            outputs.notes.append(f"nvidia-smi {section.arguments[:60]}: {error}")
    for outputs in moments.values():
        outputs.listing = listing
    decoded = decode_outputs(source, list(moments.values()))
    unread = {f"nvidia-smi {one}": "an output of a kind that is not read" for one in dict.fromkeys(other)}
    return Decoded(
        snapshots=decoded.snapshots,
        notes=decoded.notes,
        unread={**decoded.unread, **unread},
        unknown=decoded.unknown,
    )


def _capture_take(section: Section, outputs: Outputs) -> bool:
    """Read an output of a kind that is read; a group's vgpu -q does not replace its -q."""
    match section.arguments.split():
        case ["-q", "-x"] | ["-x", "-q"]:
            outputs.log = parse_xml(section.body)
        case ["-q"]:
            outputs.log = parse_text(section.body)
        case ["vgpu", "-q"] if outputs.log is None:
            outputs.log = parse_text(section.body)
        case [str(first), *_] if first.startswith("--query-gpu="):
            outputs.table = parse_csv(section.body)
        case [str(first), *_] if first.startswith("--query-compute-apps="):
            outputs.apps = parse_csv(section.body)
        case _:
            return False
    return True


CAPTURE = Format(
    name="nvidia-smi-capture", help="several outputs, each under its command", fits=is_capture, decode=_capture_decode
)


MAX_BYTES = 16 << 10
"""Eight GPUs that all fail print 1 kB of words."""

_STARTS = (b"NVIDIA-SMI has failed", b"Failed to initialize NVML", b"No devices were found", b"Unable to determine")
"""How a line of them begins."""


def _failure_fits(content: bytes) -> bool:
    return len(content) <= MAX_BYTES and any(line.lstrip().startswith(_STARTS) for line in content.split(b"\n"))


def _failure_decode(source: Source) -> Decoded:
    if len(source.content) > MAX_BYTES:
        raise WireLimitError("", f"{len(source.content)} bytes, more than {MAX_BYTES}")
    failure = judge(0, source.content, b"")
    if not any(words in failure.words.lower() for words, _ in SENTENCES) and not _failure_fits(source.content):
        raise WireError("", "no words in it that nvidia-smi prints where it shows no GPU")
    if failure.reason is Reason.NO_DATA:  # without its exit code nothing tells more
        failure = Failure(Reason.DRIVER_ERROR, failure.words)
    machine = Assembling(Machine(name=source.name), source.at)
    samples: list[Sample] = []
    for lane in LANES:
        told = failure_error(failure, lane, source.at).round
        samples += told.samples if told is not None else ()
    machine.take(samples, statuses=[_failed(lane, failure, source.at) for lane in LANES])
    return Decoded(snapshots=(machine.snapshot(),), notes=(NO_TIME, failure.words))


def _failed(lane: Lane, failure: Failure, at: int) -> ReaderStatus:
    return ReaderStatus(
        reader=NAME,
        lane=lane,
        state=ReaderState.FAILED,
        interval_seconds=INTERVALS[lane],
        last_attempt=at,
        failures=1,
        error_class=failure.reason,
        last_error=failure.words,
    )


FAILURE = Format(
    name="nvidia-smi-failure",
    help="what nvidia-smi prints where it shows no GPU",
    fits=_failure_fits,
    decode=_failure_decode,
)
