"""A spool that was made whole inside another one's folder takes that one's place."""

import os
import shutil
from pathlib import Path

from gpufleet.spool import acknowledgements
from gpufleet.spool.folder import load_epoch, save_epoch, sync_folder
from gpufleet.spool.record import SEGMENT_HEADER_BYTES, unpack_segment_header
from gpufleet.spool.recovery import SUFFIX

_NEXT = "next"
_WHOLE = "whole"


def successor(folder: Path) -> Path:
    """Return where the successor of the spool in `folder` is made."""
    return folder / _NEXT


def clear(folder: Path) -> None:
    """Remove a successor that is not to be. Raises OSError."""
    if successor(folder).exists():
        shutil.rmtree(successor(folder))


def declare_whole(folder: Path) -> None:
    """Say durably that the successor has everything. Raises OSError."""
    fd = os.open(successor(folder) / _WHOLE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(successor(folder))
    sync_folder(folder)


def settle(folder: Path) -> None:
    """Put a whole successor in the spool's place, from wherever that was interrupted; remove one that is not whole.

    Raises:
        OSError: if the disk refuses; it is done the next time then.
    """
    following = successor(folder)
    epoch = load_epoch(following) if (following / _WHOLE).exists() else None
    if epoch is None:
        clear(folder)
        return
    for path in folder.glob(f"*{SUFFIX}"):
        if _epoch_of(path) != epoch:
            path.unlink()
            acknowledgements.path_beside(path).unlink(missing_ok=True)
    for path in following.glob(f"*{SUFFIX}"):
        path.replace(folder / path.name)
    save_epoch(folder, epoch)
    clear(folder)


def _epoch_of(segment: Path) -> str | None:
    with segment.open("rb") as file:
        header = unpack_segment_header(file.read(SEGMENT_HEADER_BYTES))
    return None if header is None else header.epoch
