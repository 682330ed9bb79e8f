"""The registry of formats: a new one is a file beside this, and a line here."""

import codecs

import msgspec

from gpufleet.decoding.batch import BATCH, BUNDLE, SEGMENT
from gpufleet.decoding.format import MAX_BYTES, Decoded, Format, Source
from gpufleet.decoding.nvidia_smi import CAPTURE, CSV, FAILURE, TEXT, XML
from gpufleet.decoding.prometheus import PROMETHEUS
from gpufleet.decoding.snapshot import SNAPSHOT
from gpufleet.model.errors import WireError, WireLimitError

# The order is that of recognition: those that know themselves by a mark come first; CSV takes any line with commas, and
# words that nvidia-smi prints in place of an output can stand before one as well.
FORMATS: tuple[Format, ...] = (SEGMENT, SNAPSHOT, CAPTURE, XML, TEXT, BUNDLE, BATCH, PROMETHEUS, CSV, FAILURE)

BINARY = (SEGMENT, BUNDLE, BATCH)
"""Those that are no text, whatever their first bytes look like."""


def decode(source: Source, name: str | None = None) -> tuple[Format, Decoded]:
    """Decode content of a named format, or of the first that it fits.

    Raises:
        WireLimitError: if it is longer than `MAX_BYTES`, or passes a bound of its format.
        WireError: if it is of no format here, or does not follow the one that was named or recognised.
    """
    if len(source.content) > MAX_BYTES:
        raise WireLimitError("", f"{len(source.content)} bytes, more than {MAX_BYTES}")
    text = msgspec.structs.replace(source, content=_as_utf8(source.content))
    for one in FORMATS:
        content = source if one in BINARY else text
        if one.name == name or (name is None and one.fits(content.content)):
            return one, one.decode(content)
    raise WireError("", f"not recognised; {_known()}")


def _as_utf8(content: bytes) -> bytes:
    """Return a text that is marked as UTF-16, as PowerShell writes what is redirected to a file, in UTF-8."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def _known() -> str:
    return "known are " + ", ".join(f"{one.name} ({one.help})" for one in FORMATS)
