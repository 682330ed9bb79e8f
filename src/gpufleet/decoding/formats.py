"""The registry of formats: a new one is a file beside this, and a line here."""

from gpufleet.decoding.batch import BATCH
from gpufleet.decoding.bundle import BUNDLE
from gpufleet.decoding.capture import CAPTURE
from gpufleet.decoding.csv import CSV
from gpufleet.decoding.format import MAX_BYTES, Decoded, Format, Source
from gpufleet.decoding.prometheus import PROMETHEUS
from gpufleet.decoding.segment import SEGMENT
from gpufleet.decoding.snapshot import SNAPSHOT
from gpufleet.decoding.text import TEXT
from gpufleet.decoding.xml import XML
from gpufleet.model.errors import WireError, WireLimitError

# The order is that of recognition: those that know themselves by a mark come first; CSV takes any line with commas.
FORMATS: tuple[Format, ...] = (SEGMENT, SNAPSHOT, CAPTURE, XML, TEXT, BUNDLE, BATCH, PROMETHEUS, CSV)


def decode(source: Source, name: str | None = None) -> tuple[Format, Decoded]:
    """Decode content of a named format, or of the first that it fits.

    Raises:
        WireLimitError: if it is longer than `MAX_BYTES`, or passes a bound of its format.
        WireError: if it is of no format here, or does not follow the one that was named or recognised.
    """
    if len(source.content) > MAX_BYTES:
        raise WireLimitError("", f"{len(source.content)} bytes, more than {MAX_BYTES}")
    if name is not None:
        known = {one.name: one for one in FORMATS}
        return known[name], known[name].decode(source)
    for one in FORMATS:
        if one.fits(source.content):
            return one, one.decode(source)
    raise WireError("", f"not recognised; {_known()}")


def _known() -> str:
    return "known are " + ", ".join(f"{one.name} ({one.help})" for one in FORMATS)
