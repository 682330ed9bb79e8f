"""Parsers of `nvidia-smi -L` (GPUs and MIG devices by UUID) and `--help-query-gpu` (supported field names)."""

import re

import msgspec

from gpufleet.codecs.nvidia_smi.records import MAX_DEVICES, MAX_PARTS
from gpufleet.codecs.nvidia_smi.values import OutputMessages, split_lines
from gpufleet.model.errors import WireError, WireLimitError

_GPU = re.compile(r"GPU ([0-9]{1,5}): (.{0,200}) \(UUID: (GPU-[0-9A-Fa-f-]{1,64})\)\s*", re.ASCII)
_MIG = re.compile(
    r"\s+MIG (\S{1,64})\s+Device\s+([0-9]{1,5}): \(UUID: (MIG-[0-9A-Za-z/-]{1,120})\)\s*",
    re.ASCII,
)


class ListedMig(msgspec.Struct, frozen=True):
    """MIG device of a list.

    Attributes:
        index: number within its GPU, as the driver counts (`Device 3`; the index that `-q` prints too).
        profile: such as `1g.18gb`, or `1c.3g.71gb` for a compute instance that is a part of its GPU instance.
        uuid: its UUID.
    """

    index: int
    profile: str
    uuid: str


class ListedGpu(msgspec.Struct, frozen=True):
    """GPU of a list: number in this output, name, UUID and MIG devices."""

    index: int
    name: str
    uuid: str
    mig: tuple[ListedMig, ...] = ()


class Listing(msgspec.Struct, frozen=True):
    """Parsed list; `messages` are the lines without a device."""

    gpus: tuple[ListedGpu, ...]
    messages: tuple[str, ...] = ()


def parse_listing(content: bytes) -> Listing:
    """Parse a list.

    Raises:
        WireLimitError: if it is too long.
        WireError: if it has no GPU.
    """
    gpus: list[ListedGpu] = []
    others = OutputMessages()
    for line in split_lines(content, "-L"):
        if (gpu := _GPU.fullmatch(line)) is not None:
            gpus.append(ListedGpu(int(gpu[1]), gpu[2], gpu[3]))
        elif (mig := _MIG.fullmatch(line)) is not None and gpus:
            listed = ListedMig(int(mig[2]), mig[1], mig[3])
            gpus[-1] = msgspec.structs.replace(gpus[-1], mig=(*gpus[-1].mig, listed))
        else:
            others.add(line)
        if len(gpus) > MAX_DEVICES or (gpus and len(gpus[-1].mig) > MAX_PARTS):
            raise WireLimitError("-L", f"more than {MAX_DEVICES} GPUs, or {MAX_PARTS} MIG devices of one")
    if not gpus:
        raise WireError("-L", "no GPU in the list")
    return Listing(tuple(gpus), others.lines())


MAX_NAMES = 4096

_NAMED = re.compile(r'"([A-Za-z][A-Za-z0-9_.]{0,127})"')
_ENTRY = re.compile(r'"[^"]{1,128}"(?: or "[^"]{1,128}"){0,7}\s*')


def parse_help(content: bytes) -> frozenset[str]:
    """Return all field names, including aliases.

    Raises:
        WireLimitError: if it is too long.
        WireError: if it has no field name.
    """
    names: set[str] = set()
    for line in split_lines(content, "help"):
        if line.startswith('"') and _ENTRY.fullmatch(line):
            names.update(_NAMED.findall(line))
        if len(names) > MAX_NAMES:
            raise WireLimitError("help", f"more than {MAX_NAMES} names")
    if not names:
        raise WireError("help", "no field name in the help")
    return frozenset(names)
