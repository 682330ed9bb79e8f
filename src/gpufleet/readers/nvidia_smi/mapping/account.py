"""Classification of printed fields: read, deliberately unread, or unknown."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.codecs.nvidia_smi.records import DeviceRecord
from gpufleet.readers.nvidia_smi.mapping.processes import MEMORY, PID
from gpufleet.readers.nvidia_smi.mapping.rows import (
    MIG_PATHS,
    PATHS,
    QUERIES,
    READ_ELSEWHERE,
    REASON_PATHS,
    SUMS,
    VGPU_PATHS,
)
from gpufleet.readers.nvidia_smi.mapping.tables import BY_QUERY, MIG_SRAM_ERRORS, PATHS_READ
from gpufleet.readers.nvidia_smi.mapping.unread_fields import why_unread

_AGAIN = re.compile(r"\[[0-9]+\]$")


class UnreadReport(NamedTuple):
    """Fields of an output that are not read.

    Attributes:
        unread: deliberately unread names, with the reason.
        unknown: names in no table; a newer nvidia-smi prints more.
    """

    unread: dict[str, str]
    unknown: list[str]


def _names(table: Mapping[str, Iterable[str]]) -> set[str]:
    return {name for names in table.values() for name in names}


def _with_containers(paths: set[str]) -> frozenset[str]:
    """Return the paths and all their parent paths, which can have `N/A` instead of children."""
    known = set(paths)
    for path in paths:
        while "/" in path:
            path = path.rpartition("/")[0]
            known.add(path)
    return frozenset(known)


READ_OF_CSV = frozenset(_names(QUERIES) | READ_ELSEWHERE | BY_QUERY.keys())
READ_OF_GPU = _with_containers(
    _names(PATHS)
    | PATHS_READ
    | _names(REASON_PATHS)
    | READ_ELSEWHERE
    | {path for alternatives in SUMS.values() for parts in alternatives for path in parts}
)
READ_OF_MIG = _with_containers(_names(MIG_PATHS) | set(MIG_SRAM_ERRORS.paths)) | {"index"}
READ_OF_VGPU = _with_containers(_names(VGPU_PATHS)) | {"vgpu_id", "vgpu_uuid"}
READ_OF_PROCESS = frozenset({"type", "gpu_instance_id", "compute_instance_id", *PID, *MEMORY})


def report_unread(devices: Iterable[DeviceRecord], head: Iterable[str] = ()) -> UnreadReport:
    """Return the unread fields of devices, and of the names in the head of their output."""
    found = UnreadReport({}, [])
    _add(found, head, READ_ELSEWHERE)
    for device in devices:
        _add(found, device.fields, READ_OF_CSV)
        _add(found, device.leaves, READ_OF_GPU)
        for mig in device.mig:
            _add(found, mig.leaves, READ_OF_MIG)
        for vgpu in device.vgpus:
            _add(found, vgpu.leaves, READ_OF_VGPU)
        for process in device.processes or ():
            _add(found, process, READ_OF_PROCESS)
    found.unknown.sort()
    return found


def _add(found: UnreadReport, names: Iterable[str], read: frozenset[str]) -> None:
    for name in names:
        bare = _AGAIN.sub("", name)
        if bare in read or bare in found.unread or bare in found.unknown:
            continue
        why = why_unread(bare)
        if why is None:
            found.unknown.append(bare)
        else:
            found.unread[bare] = why
