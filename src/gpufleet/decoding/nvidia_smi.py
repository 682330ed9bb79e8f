"""Formats of nvidia-smi output.

- `CSV`: `nvidia-smi --query-gpu=... --format=csv`, with its header.
- `TEXT`: `nvidia-smi -q` and `nvidia-smi vgpu -q`.
- `XML`: `nvidia-smi -q -x`.
- `CAPTURE`: several outputs in one file, each below its command.
- `FAILURE`: the message that nvidia-smi prints instead of an output if it shows no GPU.

The rounds of `--loop` are decoded in their order.
"""

import datetime as dt
import re
from collections.abc import Callable, Sequence

import msgspec

from gpufleet.codecs.nvidia_smi import (
    DeviceRecord,
    Failure,
    Log,
    Section,
    Table,
    classify_failure,
    parse_capture,
    parse_csv,
    parse_listing,
    parse_text,
    parse_xml,
    split_documents,
    split_rounds,
    split_text_rounds,
)
from gpufleet.codecs.nvidia_smi.capture import collected_at, is_capture
from gpufleet.codecs.nvidia_smi.failure import SENTENCES, named_device, named_devices
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.codecs.nvidia_smi.values import parse_time
from gpufleet.decoding.builder import SnapshotBuilder
from gpufleet.decoding.format import CapturedInput, CaptureFormat, DecodeResult
from gpufleet.decoding.local_time import ASSUMED, LocalTimeZone, zone_of_capture
from gpufleet.fleet.device_events import DeviceStates
from gpufleet.fleet.lost_instances import InstanceMemory
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.driver_texts import text_reason
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.machine import Machine
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.readers.nvidia_smi.machine import (
    NAME,
    count_of,
    cuda_of,
    driver_of,
    machine_sample,
    notes_of,
    reader_error,
)
from gpufleet.readers.nvidia_smi.mapping.account import READ_OF_CSV, report_unread
from gpufleet.readers.nvidia_smi.mapping.devices import (
    ALL_METRICS,
    GpuModes,
    RequestedMetrics,
    metrics_of_columns,
    metrics_of_log,
)
from gpufleet.readers.nvidia_smi.mapping.rows import LANES, PROCESSES
from gpufleet.readers.nvidia_smi.samples import (
    gpu_sample,
    instance_samples,
    lost_by_elimination,
    lost_reasons,
    lost_sample,
    modes_by_key,
    with_processes,
)
from gpufleet.readers.nvidia_smi.views import identify, rows_as_records

NO_TIME = "the output has no time: the file's time is used"


class NvidiaSmiOutputs(msgspec.Struct, kw_only=True):
    """Outputs of about the same time; each may be missing.

    Attributes:
        log: output of `-q`, `-q -x` or `vgpu -q`.
        table: output of `--query-gpu`.
        apps: output of `--query-compute-apps`.
        listing: output of `-L`.
        notes: errors about outputs that could not be parsed.
        messages: messages of the driver in such outputs that name a GPU.
    """

    log: Log | None = None
    table: Table | None = None
    apps: Table | None = None
    listing: Listing | None = None
    notes: list[str] = []
    messages: list[str] = []

    def add_failure(self, error: str, body: bytes) -> None:
        """Add an output that could not be parsed."""
        self.notes.append(error)
        self.messages += [one for one in classify_failure(0, body, b"").lines if named_device(one)]


def decode_outputs(
    source: CapturedInput, moments: Sequence[NvidiaSmiOutputs], shown: LocalTimeZone | None = None
) -> DecodeResult:
    """Return the snapshot of the machine. Later outputs replace earlier ones.

    Args:
        source: the input; its zone takes precedence.
        moments: outputs of about the same time each.
        shown: time zone that the input shows, if any.

    Raises:
        WireError: if no output contains a GPU.
    """
    zone = _zone_of(source, shown)
    timed = any(_printed_at(outputs) is not None for outputs in moments)
    machine = SnapshotBuilder(
        Machine(name=_host_name(moments) or source.name),
        source.at,
        capabilities={"time_zone": "available" if zone.is_known else zone.origin} if timed else {},
    )
    notes: dict[str, None] = {}
    unread: dict[str, str] = {}
    unknown: dict[str, None] = {}
    states, instances = DeviceStates(NAME), InstanceMemory()
    known: dict[str, View] = {}  # by PCI address, the only identity in messages
    at: int | None = None  # messages have the time of the outputs before them
    for outputs in moments:
        records = _records(outputs)
        notes |= dict.fromkeys(outputs.notes)
        if not records and not named_devices(_messages(outputs)):
            continue
        local = _printed_at(outputs)
        notes |= dict.fromkeys(notes_of(outputs.log.leaves) if outputs.log is not None else ())
        if local is not None:
            at = zone.to_ns(local)
            notes |= {f"time zone: {zone.origin}": None} if zone.is_known else {}
        elif records or at is None:
            at = source.at
            notes[NO_TIME] = None
        errors = _add_outputs(machine, outputs, records, at, states, instances, known)
        notes |= dict.fromkeys(errors)
        found = report_unread(records, outputs.log.leaves if outputs.log else ())
        unread |= found.unread
        unknown |= dict.fromkeys(found.unknown)
    snapshot = machine.snapshot()
    if not snapshot.devices:
        messages = dict.fromkeys(note for outputs in moments for note in (*outputs.notes, *outputs.messages))
        raise WireError("", "; ".join(("no GPU found", *list(messages)[:3])))
    return DecodeResult(
        snapshots=(snapshot,),
        notes=tuple(notes),
        assumptions=(zone.origin,) if timed and not zone.is_known else (),
        unread=unread,
        unknown=tuple(unknown),
    )


def _add_outputs(
    machine: SnapshotBuilder,
    outputs: NvidiaSmiOutputs,
    records: Sequence[DeviceRecord],
    at: int,
    states: DeviceStates,
    instances: InstanceMemory,
    known: dict[str, View],
) -> list[str]:
    gpus, errors = identify(records)
    found = {gpu.view.pci_address: gpu.view for gpu in gpus if gpu.view.pci_address is not None}
    messages = _messages(outputs)
    named = lost_by_elimination(records, gpus, known, named_devices(messages))
    known |= found
    requested = _requested_metrics(outputs) if records else ALL_METRICS
    if outputs.apps is not None and PROCESSES not in requested.metrics:
        gpus = with_processes(gpus, outputs.apps.rows)
        requested = RequestedMetrics(requested.metrics | {PROCESSES})
    modes = modes_by_key(gpus, {})
    errors += messages
    heads = [outputs.log.leaves] if outputs.log is not None else []
    heads += outputs.table.rows if outputs.table is not None else ()
    count = count_of(head.get(name) for head in heads for name in ("attached_gpus", "count"))
    if records and count is not None and count != len(gpus):
        errors.insert(0, f"the driver counts {count} GPUs, but {len(gpus)} were decoded")
    for lane in LANES:
        samples = [
            gpu_sample(gpu, lane, requested, modes[gpu.view.key], at, named=named.get(gpu.view.pci_address or ""))
            for gpu in gpus
        ]
        samples += [
            lost_sample(known.get(address) or _view_of_address(address), lane, requested, GpuModes(), at, Absent(why))
            for address, why in named.items()
            if address not in found
        ]
        parts, disagreements = instance_samples(gpus, outputs.listing, lane, at)
        parts += instances.missing([*samples, *parts], lost_reasons(gpus, known, named), lane)
        own = machine_sample(
            lane,
            at,
            shown_gpus=len(gpus) if count is None else count,
            driver=driver_of(heads),
            cuda=cuda_of(heads),
        )
        errors += [one for one in disagreements if one not in errors]
        given = [*samples, *parts, *([own] if records and own is not None else [])]
        machine.take(given, errors=errors, events=states.change_by_samples(samples))
    return errors


def _view_of_address(address: str) -> View:
    return View(kind=ViewKind.GPU, side=Side.HOST, pci_address=address)


def _messages(outputs: NvidiaSmiOutputs) -> list[str]:
    """Return the messages of the driver, also those of outputs with nothing else."""
    printed = [*(outputs.log.messages if outputs.log else ()), *(outputs.table.messages if outputs.table else ())]
    return [*printed, *outputs.messages]


def _records(outputs: NvidiaSmiOutputs) -> list[DeviceRecord]:
    rows = rows_as_records(outputs.table.rows) if outputs.table is not None else []
    return rows + (list(outputs.log.devices) if outputs.log is not None else [])


def _requested_metrics(outputs: NvidiaSmiOutputs) -> RequestedMetrics:
    metrics: frozenset[str] = frozenset()
    if outputs.log is not None:
        metrics |= metrics_of_log(outputs.log).metrics
    if outputs.table is not None:
        metrics |= metrics_of_columns(outputs.table.columns).metrics
    return RequestedMetrics(metrics)


def _printed_text(outputs: NvidiaSmiOutputs, leaf: str, field: str) -> str | None:
    """Return a text from the head of the log, or else from the first row of the table that has it."""
    texts = [outputs.log.leaves.get(leaf)] if outputs.log is not None else []
    texts += [row.get(field) for row in outputs.table.rows] if outputs.table is not None else []
    return next((text for text in texts if text is not None and text_reason(text) is None), None)


def _zone_of(source: CapturedInput, shown: LocalTimeZone | None) -> LocalTimeZone:
    """Return the requested zone, else the zone that the input shows, else the assumed one."""
    if source.timezone is not None:
        return LocalTimeZone(source.timezone, f"{source.timezone}, by --timezone")
    return shown or ASSUMED


def _printed_times(outputs: NvidiaSmiOutputs) -> list[dt.datetime]:
    texts = [outputs.log.leaves.get("timestamp")] if outputs.log is not None else []
    texts += [row.get("timestamp") for row in outputs.table.rows] if outputs.table is not None else []
    return [at for text in texts if text is not None and (at := parse_time(text)) is not None]


def _printed_at(outputs: NvidiaSmiOutputs) -> dt.datetime | None:
    """Return the newest local time in the outputs."""
    return max(_printed_times(outputs), default=None)


def _host_name(moments: Sequence[NvidiaSmiOutputs]) -> str | None:
    return next((name for outputs in moments if (name := _printed_text(outputs, "hostname", "hostname"))), None)


def _is_csv(content: bytes) -> bool:
    try:
        columns = parse_csv(content[: 1 << 16]).columns
    except WireError:
        return False
    return bool(READ_OF_CSV & set(columns))


def _decode_csv(source: CapturedInput) -> DecodeResult:
    rounds = [parse_csv(one) for one in split_rounds(source.content)]
    if not {"uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"} & set(rounds[0].columns):
        raise WireError("csv", "no column identifies the GPU: add uuid or pci.bus_id to the query")
    return decode_outputs(source, [NvidiaSmiOutputs(table=one) for one in rounds])


CSV = CaptureFormat(
    name="nvidia-smi-csv", help="nvidia-smi --query-gpu=... --format=csv", matches=_is_csv, decode=_decode_csv
)


def _decode_logs(source: CapturedInput, rounds: Sequence[bytes], parse: Callable[[bytes], Log]) -> DecodeResult:
    """Decode outputs of `-q` or `-q -x`. One without a GPU is a failure if it is the first, else a note.

    Messages before a later output that has a GPU which they name were printed earlier, by an output of messages only.
    """
    first, *later = rounds
    moments = [NvidiaSmiOutputs(log=parse(first))]
    for one in later:
        try:
            log = parse(one)
            if not named_devices(log.messages).keys().isdisjoint(_addresses(log.devices)):
                moments.append(NvidiaSmiOutputs(messages=list(log.messages)))
                log = msgspec.structs.replace(log, messages=())
            moments.append(NvidiaSmiOutputs(log=log))
        except WireError as error:
            moments.append(NvidiaSmiOutputs())
            moments[-1].add_failure(str(error), one)
    return decode_outputs(source, moments)


def _addresses(devices: Sequence[DeviceRecord]) -> set[str]:
    """Return the PCI addresses of the GPUs of an output."""
    gpus, _ = identify(devices)
    return {gpu.view.pci_address for gpu in gpus if gpu.view.pci_address is not None}


_GPU = re.compile(rb"(?m)^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7][ \r]*\n {2,8}\S")


def _is_text(content: bytes) -> bool:
    return _GPU.search(content[: 1 << 16]) is not None


def _decode_text(source: CapturedInput) -> DecodeResult:
    return _decode_logs(source, split_text_rounds(source.content), parse_text)


TEXT = CaptureFormat(name="nvidia-smi-text", help="nvidia-smi -q or vgpu -q", matches=_is_text, decode=_decode_text)


def _is_xml(content: bytes) -> bool:
    return b"<nvidia_smi_log" in content[: 1 << 16]


def _decode_xml(source: CapturedInput) -> DecodeResult:
    return _decode_logs(source, split_documents(source.content), parse_xml)


XML = CaptureFormat(name="nvidia-smi-xml", help="nvidia-smi -q -x", matches=_is_xml, decode=_decode_xml)


def _decode_capture(source: CapturedInput) -> DecodeResult:
    moments: dict[str, NvidiaSmiOutputs] = {}
    listing: Listing | None = None
    other: list[str] = []
    for section in parse_capture(source.content):
        outputs = moments.setdefault(section.group, NvidiaSmiOutputs(notes=[]))
        try:
            if section.arguments == "-L":
                listing = parse_listing(section.body)
            elif not _add_section(section, outputs):
                other.append(section.arguments or "(the table)")
        except WireError as error:
            outputs.add_failure(f"nvidia-smi {section.arguments[:60]}: {error}", section.body)
    for outputs in moments.values():
        outputs.listing = listing
    first = min((at for outputs in moments.values() for at in _printed_times(outputs)), default=None)
    shown = zone_of_capture(collected_at(source.content), first)
    decoded = decode_outputs(source, list(moments.values()), shown)
    unread = {f"nvidia-smi {one}": "this output is not supported" for one in dict.fromkeys(other)}
    return DecodeResult(
        snapshots=decoded.snapshots,
        notes=decoded.notes,
        assumptions=decoded.assumptions,
        unread={**decoded.unread, **unread},
        unknown=decoded.unknown,
    )


def _add_section(section: Section, outputs: NvidiaSmiOutputs) -> bool:
    """Parse a section if its command is supported. `vgpu -q` does not replace the `-q` of its group."""
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


CAPTURE = CaptureFormat(
    name="nvidia-smi-capture",
    help="several outputs, each below its command",
    matches=is_capture,
    decode=_decode_capture,
)


MAX_FAILURE_BYTES = 16 << 10
"""Eight failing GPUs print about 1 kB."""

_STARTS = (
    *(b"NVIDIA-SMI has failed", b"Failed to initialize NVML", b"Unable to determine"),
    *(b"No devices were found", b"No supported GPUs were found"),
)
"""First bytes of a line with a failure message."""


def _is_failure(content: bytes) -> bool:
    return len(content) <= MAX_FAILURE_BYTES and any(line.lstrip().startswith(_STARTS) for line in content.split(b"\n"))


def _decode_failure(source: CapturedInput) -> DecodeResult:
    if len(source.content) > MAX_FAILURE_BYTES:
        raise WireLimitError("", f"{len(source.content)} bytes, more than {MAX_FAILURE_BYTES}")
    failure = classify_failure(0, source.content, b"")
    if not any(sentence in failure.message.lower() for sentence, _ in SENTENCES) and not _is_failure(source.content):
        raise WireError("", "no failure message of nvidia-smi found")
    if failure.reason is Reason.NO_DATA:  # the exit code is unknown
        failure = Failure(Reason.DRIVER_ERROR, failure.lines)
    machine = SnapshotBuilder(Machine(name=source.name), source.at)
    states, named = DeviceStates(NAME), named_devices(failure.lines)
    for lane in LANES:
        lost = [
            lost_sample(_view_of_address(address), lane, ALL_METRICS, GpuModes(), source.at, Absent(why))
            for address, why in named.items()
        ]
        pass_ = reader_error(failure, lane, source.at).round
        own = pass_.samples if pass_ is not None else ()
        machine.take([*lost, *own], events=states.change_by_samples(lost))
    machine.take([], statuses=[_failed_status(lane, failure, source.at) for lane in LANES])
    return DecodeResult(snapshots=(machine.snapshot(),), notes=(NO_TIME, failure.message))


def _failed_status(lane: Lane, failure: Failure, at: int) -> ReaderStatus:
    return ReaderStatus(
        reader=NAME,
        lane=lane,
        state=ReaderState.FAILED,
        last_attempt=at,
        failures=1,
        error_class=failure.reason,
        last_error=failure.message,
    )


FAILURE = CaptureFormat(
    name="nvidia-smi-failure",
    help="message of nvidia-smi if it shows no GPU",
    matches=_is_failure,
    decode=_decode_failure,
)
