"""Parser of `nvidia-smi -q -x`: XML of the DTD versions 11 to 13. No external resource is loaded, no entity expanded.

The document references a DTD that does not exist on most machines; the parser does not need it.
"""

import re
from xml.parsers import expat

from gpufleet.codecs.nvidia_smi.records import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DEVICES,
    MAX_LINES,
    MAX_PARTS,
    MAX_ROUNDS,
    MAX_VALUE,
    DeviceBuilder,
    Log,
    NamedTexts,
    add_part,
)
from gpufleet.codecs.nvidia_smi.values import decode, messages_of, slug
from gpufleet.codecs.xml_parser import make_xml_parser
from gpufleet.model.errors import WireError, WireLimitError

ROOT = "nvidia_smi_log"

_STARTS = (b"<?xml", b"<!DOCTYPE", b"<nvidia_smi_log")

_DOCUMENT_END = re.compile(rb"(?m)^</nvidia_smi_log>[ \t\r]{0,16}$")

_NAME, _NAME_END = b"<process_name>", b"</process_name>"
MAX_NAME = 4096
"""Maximum size of a removed process name in bytes; longer names are kept as text."""


def parse_xml(content: bytes) -> Log:
    """Parse a document. Lines before it are messages; a truncated document yields its complete GPUs.

    Raises:
        WireLimitError: if it is too long, too deep, or has too many devices or values.
        WireError: if it is not such a document, uses entities, or is truncated before its first GPU is complete.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError("xml", f"{len(content)} bytes, more than {MAX_BYTES}")
    begin = min((at for start in _STARTS if (at := content.find(start)) >= 0), default=-1)
    if begin < 0:
        raise WireError("xml", "no XML document found")
    lines = decode(content[:begin]).split("\n")
    document = _LogParser()
    try:
        document.parse(_nameless(content[begin:].rstrip(b"\0 \t\r\n")))
    except expat.ExpatError as error:
        what = f"the XML is truncated or malformed at line {error.lineno}: {expat.ErrorString(error.code)}"
        if not document.devices:
            raise WireError("xml", what) from error
        lines.append(what)
    except (UnicodeError, LookupError) as error:  # an encoding that Python does not support
        raise WireError("xml", f"its encoding cannot be read: {error}") from error
    return Log(
        leaves=document.leaves.found,
        devices=tuple(device.record() for device in document.devices),
        messages=messages_of(lines),
    )


def split_documents(content: bytes) -> list[bytes]:
    """Split an output into the documents of `--loop`, or of appended outputs, each with the messages before it.

    Messages after the last document are the last part.

    Raises:
        WireLimitError: if it is too long or has too many documents.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError("xml", f"{len(content)} bytes, more than {MAX_BYTES}")
    content = _nameless(content)
    ends = [found.end() for found in _DOCUMENT_END.finditer(content)]
    if len(ends) > MAX_ROUNDS:
        raise WireLimitError("xml", f"more than {MAX_ROUNDS} documents")
    parts = [content[begin:end] for begin, end in zip((0, *ends), (*ends, len(content)), strict=True)]
    return [one for at, one in enumerate(parts) if at == 0 or one.strip(b"\0 \t\r\n")]


def _nameless(content: bytes) -> bytes:
    """Remove process names: they are unused, and printed without escaping, so that a name can break the XML.

    Users choose these names; names with bytes that are not text were seen (cwltool, pull request 1910).
    """
    kept: list[bytes] = []
    at = 0
    for _ in range(MAX_LINES):
        start = content.find(_NAME, at) + len(_NAME)
        if start < len(_NAME):
            break
        last = content.find(b"\n", start, start + MAX_NAME)
        end = content.rfind(_NAME_END, start, last) if last >= 0 else -1
        if end < 0 or content.find(b"</process_info>", start, end) >= 0:
            end = content.find(_NAME_END, start, start + MAX_NAME)
        kept.append(content[at:start])
        at = max(start, end)
    return b"".join((*kept, content[at:]))


class _LogParser:
    """State of one parse: current element path, and the device and part that receive values."""

    def __init__(self) -> None:
        self.leaves = NamedTexts()
        self.devices: list[DeviceBuilder] = []
        self._device: DeviceBuilder | None = None
        self._part: DeviceBuilder | None = None
        self._process: NamedTexts | None = None
        self._path: list[str] = []
        self._from = 0  # position in the path where value names start
        self._text: list[str] = []
        self._letters = 0
        self._elements = 0
        self._has_children = [False]

    def parse(self, content: bytes) -> None:
        """Parse a document; raises ExpatError and WireError."""
        parser = make_xml_parser("xml", "it declares or uses an entity, which nvidia-smi never does")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.Parse(content, True)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._path and tag != ROOT:
            raise WireError("xml", f"the root is <{tag[:40]}>, not <{ROOT}>")
        self._elements += 1
        if self._elements > MAX_LINES:
            raise WireLimitError("xml", f"more than {MAX_LINES} elements")
        if len(self._path) >= MAX_DEPTH:
            raise WireLimitError("xml", f"deeper than {MAX_DEPTH} elements")
        self._has_children[-1] = True
        self._has_children.append(False)
        self._path.append(slug(tag[:MAX_VALUE]))
        self._text, self._letters = [], 0
        if len(self._path) == 2 and tag == "gpu":
            if len(self.devices) == MAX_DEVICES:
                raise WireLimitError("xml", f"more than {MAX_DEVICES} GPUs")
            self._device = DeviceBuilder(attributes.get("id", "")[:MAX_VALUE])
            self._from = 2
        elif self._device is not None and self._within("mig_devices", "mig_device"):
            self._part = add_part(self._device.mig, str(len(self._device.mig)))
            self._from = 4
        elif self._device is not None and self._within("processes", "process_info"):
            if len(self._device.processes) == MAX_PARTS:
                raise WireLimitError("xml", f"more than {MAX_PARTS} processes of one GPU")
            self._process = NamedTexts()
            self._device.processes.append(self._process)
            self._from = 4

    def _end(self, tag: str) -> None:
        has_children = self._has_children.pop()
        text = "".join(self._text).strip()
        inside = len(self._path) > self._from if self._device is not None else len(self._path) > 1
        if inside and not has_children:
            self._target().put("/".join(self._path[self._from if self._device is not None else 1 :]), text)
        self._text, self._letters = [], 0
        if len(self._path) == 4 and (self._part is not None or self._process is not None):
            self._part = self._process = None
            self._from = 2
        elif len(self._path) == 2 and self._device is not None:
            self.devices.append(self._device)
            self._device = None
        self._path.pop()

    def _characters(self, text: str) -> None:
        if self._letters < MAX_VALUE:
            self._text.append(text[: MAX_VALUE - self._letters])
            self._letters += len(text)

    def _within(self, *names: str) -> bool:
        return len(self._path) == 4 and self._path[2:] == list(names)

    def _target(self) -> NamedTexts:
        if self._process is not None:
            return self._process
        if self._part is not None:
            return self._part.leaves
        return self._device.leaves if self._device is not None else self.leaves
