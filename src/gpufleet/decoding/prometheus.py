"""Pages of metrics in the Prometheus text format or OpenMetrics, of every exporter whose names are known."""

import re

from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.decoding.assembling import Assembling
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.dialects.known import DIALECTS, recognise
from gpufleet.dialects.reading import Read, read
from gpufleet.model.errors import WireError
from gpufleet.model.machine import Machine, MachineKind

_PREFIXES = "|".join(prefix for dialect in DIALECTS for prefix in dialect.prefixes)
_LINE = re.compile(rb"(?m)^(?:# (?:HELP|TYPE) )?(?:" + _PREFIXES.encode() + rb")[A-Za-z0-9_]*[ {]")
_BEGINNING = 1 << 16


def _fits(content: bytes) -> bool:
    return _LINE.search(content[:_BEGINNING]) is not None


def _decode(source: Source) -> Decoded:
    parser = TextParser(openmetrics=source.content.rstrip().endswith(b"# EOF"))
    page = parser.parse(source.content)
    error = wire_error_of(page)
    if error is not None:
        raise error
    dialect = recognise(series.name for series in page.series)
    if dialect is None:
        known = ", ".join(dialect.name for dialect in DIALECTS)
        raise WireError("page", f"its names are no exporter's that is known: {known}")
    found = read(dialect, page.series, page.values, page.times, source.at, reader=dialect.name)
    _leave_to_others(found)
    notes = [f"read as a page of {dialect.name}"]
    notes += [f"{count} lines were not taken: {problem}" for problem, count in page.problems.items()]
    if found.nameless:
        notes.append(f"{found.nameless} series do not tell which device they are about")
    snapshots = []
    for name, samples in sorted(found.machines.items()):
        kind = MachineKind.GUEST if name in found.guests else MachineKind.NODE
        machine = Assembling(Machine(name=name or source.name, kind=kind), source.at)
        machine.take(samples)
        snapshots.append(machine.snapshot())
    return Decoded(snapshots=tuple(snapshots), notes=tuple(notes), unread=found.unread, unknown=tuple(found.unknown))


def _leave_to_others(found: Read) -> None:
    """Say of names that another dialect has that the page is read in one only."""
    for name in list(found.unknown):
        theirs = next((dialect for dialect in DIALECTS if dialect.is_mine(name)), None)
        if theirs is not None and theirs.knows(name):
            del found.unknown[name]
            found.unread[name] = f"a name of {theirs.name}: a page is read in one dialect"


PROMETHEUS = Format(
    name="prometheus",
    help="a page of metrics of " + ", ".join(dialect.name for dialect in DIALECTS),
    fits=_fits,
    decode=_decode,
)
