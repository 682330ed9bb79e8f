"""Disk of a guest with Debian's fio and its libraries, which are too large for the boot image in memory."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.support import peers
from tests.vm.machine import VirtualMachine

MODULE = "modules/virtio_blk.ko"
DEVICE = "/dev/vda"
FREE_MEBIBYTES = 24

_LIBRARY = re.compile(r"(/\S+)")
_FIO = '#!/bin/sh\nexec /disk/lib/ld-linux-x86-64.so.2 --library-path /disk/lib /disk/fio "$@"\n'


def attach_fio(machine: VirtualMachine, fio: Path, folder: Path) -> Path:
    """Give the next boot a writable disk, and a program `fio` that runs from it; return the image."""
    staging, disk = folder / "staging", folder / "disk"
    (staging / "lib").mkdir(parents=True)
    listed = subprocess.run(
        ["ldd", fio], env={**os.environ, **peers.environment("fio")}, capture_output=True, text=True, check=True
    )
    for library in map(Path, _LIBRARY.findall(listed.stdout)):
        shutil.copy(library.resolve(), staging / "lib" / library.name)
    shutil.copy(fio, staging / "fio")
    size = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file()) >> 20
    # Without a journal, mounting it for reading writes nothing.
    options = ("-q", "-t", "ext4", "-O", "^has_journal", "-d", str(staging), str(disk), f"{size + FREE_MEBIBYTES}M")
    subprocess.run([shutil.which("mke2fs") or "/usr/sbin/mke2fs", *options], check=True, capture_output=True)
    shutil.rmtree(staging)
    kernel = peers.find("vmlinuz")
    assert kernel is not None
    (module,) = (kernel.parents[1] / "lib/modules").rglob("virtio_blk.ko")
    machine.files[MODULE] = (0o644, module.read_bytes())
    machine.program("fio", _FIO)
    machine.disk = disk
    return disk


def mount_disk(machine: VirtualMachine) -> None:
    """Mount the disk for reading in a running machine."""
    code, printed = machine.run(f"insmod /{MODULE} && mkdir -p /disk && mount -t ext4 -o ro {DEVICE} /disk")
    assert code == 0, printed
