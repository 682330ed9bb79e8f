"""A file with several outputs of nvidia-smi, each under the command that printed it.

    ################################################################################
    # idle :: query (-q)
    # $ nvidia-smi -q
    ################################################################################

This is how the public captures of nvidia_gpu_exporter are laid out; any file written like that is read.
"""

import re

import msgspec

from gpufleet.codecs.nvidia_smi.records import MAX_BYTES
from gpufleet.model.errors import WireError, WireLimitError

MAX_SECTIONS = 256

_HEAD = re.compile(rb"(?m)^#{8,}\r?\n# ([^\r\n]{1,300})\r?\n# \$ nvidia-smi([^\r\n]{0,20000})\r?\n#{8,}\r?\n")
_OTHER = re.compile(rb"(?m)^#{8,}\r?\n# [^\r\n]{1,300} :: ")


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One output.

    Attributes:
        group: what stands before `::` in its title, such as `idle`; empty without that.
        title: the rest of the title.
        arguments: what followed `nvidia-smi` on the command line.
        body: what was printed, without the empty lines around it.
    """

    group: str
    title: str
    arguments: str
    body: bytes


def is_capture(content: bytes) -> bool:
    """Tell whether it looks like such a file."""
    return _HEAD.search(content[: 1 << 16]) is not None


def parse_capture(content: bytes) -> tuple[Section, ...]:
    """Part a file into its outputs.

    Raises:
        WireLimitError: if it is too long or has too many.
        WireError: if it has none.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError("capture", f"{len(content)} bytes, more than {MAX_BYTES}")
    heads = list(_HEAD.finditer(content))
    if not heads:
        raise WireError("capture", "no section of it says which nvidia-smi command printed it")
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
