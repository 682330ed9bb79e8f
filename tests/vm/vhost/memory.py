"""Guest memory and virtqueues (virtio 1.x, split rings)."""

import mmap
import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

_DESCRIPTOR = struct.Struct("<QIHH")
_NEXT, _WRITE = 1, 2


class Region(NamedTuple):
    """Region of the guest's memory: its addresses in the guest and in QEMU, and its mapping here."""

    guest: int
    size: int
    user: int
    offset: int
    map: mmap.mmap


class Memory:
    """Guest memory as shared by QEMU."""

    def __init__(self) -> None:
        self._regions: list[Region] = []

    def set(self, parts: Iterable[tuple[int, int, int, int]], files: Iterable[int]) -> None:
        for region in self._regions:
            region.map.close()
        self._regions = []
        for (guest, size, user, offset), file in zip(parts, files, strict=True):
            found = mmap.mmap(file, size + offset, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            os.close(file)
            self._regions.append(Region(guest, size, user, offset, found))

    def guest(self, address: int) -> tuple[mmap.mmap, int]:
        """Return the mapping and offset of a guest address."""
        return next((r.map, address - r.guest + r.offset) for r in self._regions if 0 <= address - r.guest < r.size)

    def user(self, address: int) -> tuple[mmap.mmap, int]:
        """Return the mapping and offset of a QEMU address."""
        return next((r.map, address - r.user + r.offset) for r in self._regions if 0 <= address - r.user < r.size)


class Queue:
    """Ring of descriptors."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = self.taken = 0
        self.kick = self.call = -1
        self.enabled = False
        self.addresses: tuple[int, int, int] | None = None

    def pop(self) -> tuple[int, list[tuple[int, int, bool]]] | None:
        """Return the next chain: its head, and address, length and direction of each part."""
        if self.addresses is None or not self.enabled:
            return None
        descriptors, _, available = (self._memory.user(address) for address in self.addresses)
        if struct.unpack_from("<H", available[0], available[1] + 2)[0] == self.taken:
            return None
        (head,) = struct.unpack_from("<H", available[0], available[1] + 4 + 2 * (self.taken % self.size))
        self.taken = (self.taken + 1) & 0xFFFF
        chain, at, flags = [], head, _NEXT
        while flags & _NEXT:
            address, length, flags, following = _DESCRIPTOR.unpack_from(
                descriptors[0], descriptors[1] + _DESCRIPTOR.size * at
            )
            chain.append((address, length, bool(flags & _WRITE)))
            at = following
        return head, chain

    def push(self, head: int, length: int) -> None:
        """Return a chain to the guest, with the number of bytes written."""
        assert self.addresses is not None
        used, at = self._memory.user(self.addresses[1])
        (index,) = struct.unpack_from("<H", used, at + 2)
        struct.pack_into("<II", used, at + 4 + 8 * (index % self.size), head, length)
        struct.pack_into("<H", used, at + 2, (index + 1) & 0xFFFF)

    def signal(self) -> None:
        """Notify the guest."""
        if self.call >= 0:
            os.write(self.call, struct.pack("<Q", 1))

    def read(self, chain: list[tuple[int, int, bool]]) -> bytes:
        """Return the data that the guest wrote into a chain."""
        found = b""
        for address, length, writable in chain:
            if not writable:
                map_, at = self._memory.guest(address)
                found += map_[at : at + length]
        return found

    def write(self, chain: list[tuple[int, int, bool]], data: bytes) -> None:
        """Write data into a chain."""
        done = 0
        for address, length, _ in chain:
            part = data[done : done + length]
            map_, at = self._memory.guest(address)
            map_[at : at + len(part)] = part
            done += len(part)
        assert done == len(data), f"a buffer of {done} bytes for a packet of {len(data)}"
