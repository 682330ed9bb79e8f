"""A file with several outputs of nvidia-smi, each under the command that printed it."""

from gpufleet.codecs.nvidia_smi import Section, parse_capture, parse_csv, parse_listing, parse_text, parse_xml
from gpufleet.codecs.nvidia_smi.capture import is_capture
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.decoding.smi import Outputs, decode_outputs
from gpufleet.model.errors import WireError


def _decode(source: Source) -> Decoded:
    moments: dict[str, Outputs] = {}
    listing: Listing | None = None
    other: list[str] = []
    for section in parse_capture(source.content):
        outputs = moments.setdefault(section.group, Outputs(notes=[]))
        try:
            if section.arguments == "-L":
                listing = parse_listing(section.body)
            elif not _take(section, outputs):
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


def _take(section: Section, outputs: Outputs) -> bool:
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
    name="nvidia-smi-capture", help="several outputs, each under its command", fits=is_capture, decode=_decode
)
