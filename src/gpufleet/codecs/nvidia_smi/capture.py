"""Capture files: several outputs of nvidia-smi, each below its command.

    ################################################################################
    # idle :: query (-q)
    # $ nvidia-smi -q
    ################################################################################

The public captures of nvidia_gpu_exporter have this format.
"""

import datetime as dt
import re

import msgspec

from gpufleet.codecs.nvidia_smi.records import MAX_BYTES
from gpufleet.model.errors import WireError, WireLimitError

MAX_SECTIONS = 256

_HEAD = re.compile(rb"(?m)^#{8,}\r?\n# ([^\r\n]{1,300})\r?\n# \$ nvidia-smi([^\r\n]{0,20000})\r?\n#{8,}\r?\n")
_OTHER = re.compile(rb"(?m)^#{8,}\r?\n# [^\r\n]{1,300} :: ")


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of a capture file: one output.

    Attributes:
        group: part of the title before `::`, such as `idle`; empty if there is none.
        title: rest of the title.
        arguments: arguments of `nvidia-smi`.
        body: output without surrounding empty lines.
    """

    group: str
    title: str
    arguments: str
    body: bytes


_COLLECTED = re.compile(
    rb"(?m)^collected_at:[ \t]{1,16}([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})"
    rb"(Z|[+-][0-9]{2}:[0-9]{2})[ \t\r]{0,16}$"
)


def collected_at(content: bytes) -> dt.datetime | None:
    """Return the time in the head of a capture file, with its zone, or None if it has none."""
    first = _HEAD.search(content)
    found = _COLLECTED.search(content[: first.start()] if first is not None else b"")
    if found is None:
        return None
    try:
        return dt.datetime.fromisoformat((found[1] + found[2].replace(b"Z", b"+00:00")).decode())
    except ValueError:  # such as June 31
        return None


def is_capture(content: bytes) -> bool:
    """Return whether the content looks like a capture file."""
    return _HEAD.search(content[: 1 << 16]) is not None


def parse_capture(content: bytes) -> tuple[Section, ...]:
    """Split a capture file into its outputs.

    Raises:
        WireLimitError: if it is too long or has too many outputs.
        WireError: if it has no output.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError("capture", f"{len(content)} bytes, more than {MAX_BYTES}")
    heads = list(_HEAD.finditer(content))
    if not heads:
        raise WireError("capture", "no section with an nvidia-smi command")
    if len(heads) > MAX_SECTIONS:
        raise WireLimitError("capture", f"more than {MAX_SECTIONS} sections")
    sections: list[Section] = []
    for head in heads:
        end = _OTHER.search(content, head.end())
        body = content[head.end() : end.start() if end is not None else len(content)]
        group, parted, title = head[1].decode("utf-8", "replace").partition(" :: ")
        sections.append(
            Section(
                group=group.strip() if parted else "",
                title=title.strip() if parted else group.strip(),
                arguments=head[2].decode("utf-8", "replace").strip(),
                body=body.strip(b"\r\n") + b"\n",
            )
        )
    return tuple(sections)
