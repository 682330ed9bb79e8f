"""SLURM's list of GPUs of a node, from gres.conf or `slurmd -G`: what the index in a job's GRES counts. Pure.

The index counts the entries in the order of the types in slurm.conf's `Gres=`, and within a type in the order of
gres.conf, as seen on SLURM 22.05. It is neither the device number nor the order of the lines.
"""

import re
from collections.abc import Mapping, Sequence

from gpufleet.holders.slurm.hostlist import contains, expand
from gpufleet.holders.slurm.records import GpuFiles, GresUse
from gpufleet.model.errors import WireError

MAX_GPUS = 1024
"""Maximum number of entries of one node."""

MAX_LINES = 65_536
MAX_INCLUDES = 16

_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*(?:\"([^\"]*)\"|(\S*))")
_SLURMD = re.compile(r"Gres Name=gpu(?: Type=(\S+))? Count=(\d{1,6}) .*?File=(\S+)")
_NUMBER = re.compile(r".*/nvidia(\d{1,5})\Z", re.ASCII | re.DOTALL)
_CAPABILITY_FILE = re.compile(r".*/nvidia-cap(\d{1,9})\Z", re.ASCII | re.DOTALL)


def includes(text: str) -> tuple[str, ...]:
    """Return the files that a configuration file includes, as written there."""
    found = [line.split(None, 1)[1].strip() for line in _lines(text) if _is_include(line)]
    return tuple(dict.fromkeys(found))[:MAX_INCLUDES]


def parse_gres_conf(files: Mapping[str, str], first: str, node: str) -> tuple[GpuFiles, ...] | None:
    """Return the GPUs of a node in the order of gres.conf, or None if slurmd detects them by itself.

    Args:
        files: name to text of the file and of the files that it includes, by the names in `Include`.
        first: name of gres.conf itself.
        node: SLURM's node name.

    Raises:
        WireError: if an included file is missing, or the entries are malformed or exceed a limit.
    """
    found: list[GpuFiles] = []
    detects = _read(files, first, node, found, {})
    return None if detects else tuple(found)


def parse_slurmd_gres(data: bytes) -> tuple[GpuFiles, ...]:
    """Return the GPUs in the order of `slurmd -G`.

    It prints the files of a MIG device in lines of their own: a line of a capability belongs to the GPU before it.

    Raises:
        WireError: if there are more than `MAX_GPUS`.
    """
    found: list[GpuFiles] = []
    for match in _SLURMD.finditer(data.decode(errors="replace")):
        kind, files = match[1] or "", expand(match[3], MAX_GPUS)
        if len(files) > 1 and any(_CAPABILITY_FILE.match(file) for file in files):
            found.append(GpuFiles(kind, files))
        elif found and found[-1].type == kind and all(_CAPABILITY_FILE.match(file) for file in files):
            found[-1] = GpuFiles(kind, (*found[-1].files, *files))
        else:
            found += [GpuFiles(kind, (file,)) for file in files]
        if len(found) > MAX_GPUS:
            raise WireError("slurmd -G", f"more than {MAX_GPUS} GPUs")
    return tuple(found)


def order(entries: Sequence[GpuFiles], configured: Sequence[GresUse]) -> tuple[GpuFiles, ...]:
    """Return the entries in the order that a job's indexes count, by the types of slurm.conf.

    Raises:
        WireError: if entries and configuration differ in types or numbers, so that an index identifies no entry.
    """
    gpus = [item for item in configured if item.name == "gpu"]
    if len({item.type for item in gpus}) != len(gpus):
        raise WireError("gres", "slurm.conf lists a type of GPU twice")
    ordered: list[GpuFiles] = []
    for item in gpus:
        one_kind = len(gpus) == 1 and len({entry.type for entry in entries}) <= 1
        same = [entry for entry in entries if entry.type == item.type or (one_kind and not (entry.type and item.type))]
        if len(same) != item.count:
            kind = f"gpu:{item.type}" if item.type else "gpu"
            raise WireError("gres", f"{len(same)} device files of {kind}, and {item.count} in slurm.conf")
        ordered += same
    if len(ordered) != len(entries):
        raise WireError("gres", f"{len(entries)} device files, and {len(ordered)} GPUs in slurm.conf")
    return tuple(ordered)


def minor(file: str) -> int | None:
    """Return N of a device file `nvidiaN`, or None."""
    match = _NUMBER.match(file)
    return int(match[1]) if match else None


def capability(file: str) -> int | None:
    """Return N of a device file `nvidia-capN`, or None."""
    match = _CAPABILITY_FILE.match(file)
    return int(match[1]) if match else None


def _read(files: Mapping[str, str], name: str, node: str, found: list[GpuFiles], seen: dict[str, None]) -> bool:
    """Append the entries of a file; return whether slurmd detects GPUs by itself."""
    if name not in files:
        raise WireError("gres.conf", f"the included file {name[:120]!r} cannot be read")
    if name in seen or len(seen) >= MAX_INCLUDES:
        raise WireError("gres.conf", f"{name[:120]!r} is included twice, or there are more than {MAX_INCLUDES} files")
    seen[name] = None
    detects = False
    for line in _lines(files[name]):
        if _is_include(line):
            detects |= _read(files, line.split(None, 1)[1].strip(), node, found, seen)
            continue
        pairs = {match[1].lower(): match[2] if match[2] is not None else match[3] for match in _PAIR.finditer(line)}
        if not contains(pairs.get("nodename", node), node):
            continue
        detects |= pairs.get("autodetect", "off").lower() != "off"
        if pairs.get("name", "").lower() == "gpu":
            found += _entries(pairs)
        if len(found) > MAX_GPUS:
            raise WireError("gres.conf", f"more than {MAX_GPUS} GPUs")
    return detects


def _entries(pairs: Mapping[str, str]) -> list[GpuFiles]:
    kind = pairs.get("type", "")
    if "multiplefiles" in pairs:
        return [GpuFiles(kind, expand(pairs["multiplefiles"], MAX_GPUS))]
    if "file" in pairs:
        return [GpuFiles(kind, (file,)) for file in expand(pairs["file"], MAX_GPUS)]
    count = pairs.get("count", "1")
    if not (count.isascii() and count.isdigit() and len(count) <= 4 and int(count) <= MAX_GPUS):
        raise WireError("gres.conf", f"Count={count[:20]!r} of gpu is no number up to {MAX_GPUS}")
    return [GpuFiles(kind, ())] * int(count)


def _is_include(line: str) -> bool:
    return line[:8].lower() == "include " and len(line.split(None, 1)) == 2


def _lines(text: str) -> list[str]:
    """Return the lines without comments and empty lines, continued lines joined."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = (line.partition("#")[0].strip() for line in joined.splitlines()[:MAX_LINES])
    return [line for line in lines if line]
