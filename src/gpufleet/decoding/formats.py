"""Registry of formats. A new format is a module in this package, and an entry here."""

import codecs

import msgspec

from gpufleet.decoding.batch import BATCH, BUNDLE, SEGMENT
from gpufleet.decoding.format import MAX_BYTES, CapturedInput, CaptureFormat, DecodeResult
from gpufleet.decoding.nvidia_smi import CAPTURE, CSV, FAILURE, TEXT, XML
from gpufleet.decoding.prometheus import PROMETHEUS
from gpufleet.decoding.recordings import RECORDING
from gpufleet.decoding.snapshot import SNAPSHOT
from gpufleet.model.errors import WireError, WireLimitError

# In the order of detection. Formats with a magic number come first. CSV matches any line with commas. FAILURE is last:
# its messages can also precede another output.
FORMATS: tuple[CaptureFormat, ...] = (
    *(SEGMENT, RECORDING, SNAPSHOT, CAPTURE, XML),
    *(TEXT, BUNDLE, BATCH, PROMETHEUS, CSV, FAILURE),
)

BINARY = (SEGMENT, RECORDING, BUNDLE, BATCH)
"""Binary formats, which are not converted to UTF-8."""


def decode(source: CapturedInput, name: str | None = None) -> tuple[CaptureFormat, DecodeResult]:
    """Decode content of a named format, or in the first format that matches.

    Raises:
        WireLimitError: if it is longer than `MAX_BYTES`, or exceeds a limit of its format.
        WireError: if no format matches, or the content is not valid in the named or detected format.
    """
    if len(source.content) > MAX_BYTES:
        raise WireLimitError("", f"{len(source.content)} bytes, more than {MAX_BYTES}")
    text = msgspec.structs.replace(source, content=_as_utf8(source.content))
    for one in FORMATS:
        content = source if one in BINARY else text
        if one.name == name or (name is None and one.matches(content.content)):
            return one, one.decode(content)
    raise WireError("", f"unknown format; {_known_formats()}")


def _as_utf8(content: bytes) -> bytes:
    """Convert UTF-16 with a byte order mark, as written by a redirection in PowerShell, to UTF-8."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def _known_formats() -> str:
    return "known formats: " + ", ".join(f"{one.name} ({one.help})" for one in FORMATS)
