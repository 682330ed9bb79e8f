"""What the formats of nvidia-smi share: outputs of one machine to its snapshot."""

from collections.abc import Sequence

import msgspec

from gpufleet.codecs.nvidia_smi import DeviceRecord, Log, Table
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.codecs.nvidia_smi.when import parse_time
from gpufleet.codecs.nvidia_smi.words import token
from gpufleet.decoding.assembling import Assembling
from gpufleet.decoding.format import Decoded, Source
from gpufleet.model.errors import WireError
from gpufleet.model.machine import Machine
from gpufleet.model.time import to_ns
from gpufleet.readers.nvidia_smi.machine import machine_sample
from gpufleet.readers.nvidia_smi.mapping.account import account
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
