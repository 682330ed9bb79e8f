"""How much room there is, who takes it, and how fast it goes."""

import datetime as dt
import os
import re
from pathlib import Path

from gpufleet.doctor.hub.facts import Disk

_PART_OF_A_DAY = re.compile(r"(\d{8})_\d+_\d+_\d+(_\d+)?")
"""Folder of a part of a table that is partitioned by day: partition, first and last block, level, mutation."""


def look_at_disk(folder: Path, today: dt.date) -> Disk:
    """Measure the folder and its file system. Raises OSError."""
    figures = os.statvfs(_nearest(folder))
    used: dict[str, int] = {}
    days: dict[str, int] = {}
    for path, size in _files(folder):
        parts = path.relative_to(folder).parts
        used[parts[0]] = used.get(parts[0], 0) + size
        if parts[0] == "store" and len(parts) > 4 and (found := _PART_OF_A_DAY.fullmatch(parts[4])):
            days[found[1]] = days.get(found[1], 0) + size
    whole = max((day for day in days if day < f"{today:%Y%m%d}"), default="")
    return Disk(
        free=figures.f_bavail * figures.f_frsize,
        size=figures.f_blocks * figures.f_frsize,
        used=used,
        day_bytes=days.get(whole),
        day=whole and f"{whole[:4]}-{whole[4:6]}-{whole[6:]}",
    )


def _files(folder: Path) -> list[tuple[Path, int]]:
    """Return every file and its size; a merge may take one away meanwhile."""
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            found.append((path, status.st_size))
    return found


def _nearest(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
