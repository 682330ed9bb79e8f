"""Format of metrics pages in Prometheus text or OpenMetrics, of every exporter with a known dialect."""

import re
from operator import itemgetter

from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.decoding.builder import SnapshotBuilder
from gpufleet.decoding.format import CapturedInput, CaptureFormat, DecodeResult
from gpufleet.dialects.reading import SeriesReadings, read_series
from gpufleet.dialects.registry import DIALECTS, believed, recognise
from gpufleet.fleet.board import drop_board_defaults
from gpufleet.fleet.device_events import DeviceStates
from gpufleet.model.errors import WireError
from gpufleet.model.machine import Machine, MachineKind

_PREFIXES = "|".join(prefix for dialect in DIALECTS for prefix in dialect.prefixes)
_LINE = re.compile(rb"(?m)^(?:# (?:HELP|TYPE) )?(?:" + _PREFIXES.encode() + rb")[A-Za-z0-9_]*[ {]")
_PREFIX_BYTES = 1 << 16


def _is_page(content: bytes) -> bool:
    return _LINE.search(content[:_PREFIX_BYTES]) is not None


def _decode_page(source: CapturedInput) -> DecodeResult:
    parser = TextParser(openmetrics=source.content.rstrip().endswith(b"# EOF"))
    page = parser.parse(source.content)
    error = wire_error_of(page)
    if error is not None:
        raise error
    dialect = recognise(series.name for series in page.series)
    if dialect is None:
        known = ", ".join(dialect.name for dialect in DIALECTS)
        raise WireError("page", f"the names are of no known exporter: {known}")
    dialect = believed(dialect, page.series)
    found = read_series(dialect, page.series, page.values, page.times, source.at, reader=dialect.name)
    _explain_foreign_names(found)
    notes = [f"read as a page of {dialect.name}"]
    notes += [f"{count} lines were skipped: {problem}" for problem, count in page.problems.items()]
    if found.unattributed:
        notes.append(f"{found.unattributed} series do not identify their device")
    snapshots = []
    nodes = [(name, MachineKind.NODE, samples) for name, samples in found.machines.items()]
    guests = [(name, MachineKind.GUEST, samples) for name, samples in found.guests.items()]
    for name, kind, samples in sorted((*nodes, *guests), key=itemgetter(0)):
        machine = SnapshotBuilder(Machine(name=name or source.name, kind=kind), source.at)
        samples = drop_board_defaults(samples, lists_modes=dialect.lists_ecc_modes)
        machine.take(samples, events=DeviceStates(dialect.name).change_by_samples(samples))
        snapshots.append(machine.snapshot())
    return DecodeResult(
        snapshots=tuple(snapshots), notes=tuple(notes), unread=found.unread, unknown=tuple(found.unknown)
    )


def _explain_foreign_names(found: SeriesReadings) -> None:
    """Report names of another dialect as unread: a page is read in one dialect only."""
    for name in list(found.unknown):
        theirs = next((dialect for dialect in DIALECTS if dialect.is_mine(name)), None)
        if theirs is not None and theirs.knows(name):
            del found.unknown[name]
            found.unread[name] = f"a name of {theirs.name}: a page is read in one dialect"


PROMETHEUS = CaptureFormat(
    name="prometheus",
    help="metrics page of " + ", ".join(dialect.name for dialect in DIALECTS),
    matches=_is_page,
    decode=_decode_page,
)
