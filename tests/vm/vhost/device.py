"""QEMU's side of the device: vhost-user protocol over one Unix socket."""

import array
import os
import select
import socket
import struct
from collections import deque

from tests.vm.vhost.connections import Connections
from tests.vm.vhost.memory import Memory, Queue

PROTOCOL_FEATURES, VERSION_1 = 1 << 30, 1 << 32
MULTIQUEUE, REPLY_ACK, CONFIG = 1 << 0, 1 << 3, 1 << 9
NEED_REPLY, REPLY = 8, 1 | 4
GET_FEATURES, SET_MEMORY, SET_SIZE, SET_ADDRESSES, SET_BASE, GET_BASE, SET_KICK, SET_CALL = 1, 5, 8, 9, 10, 11, 12, 13
GET_PROTOCOL_FEATURES, GET_QUEUES, SET_ENABLED, GET_CONFIG = 15, 17, 18, 24
TO_GUEST, FROM_GUEST = 0, 1


class Device:
    """Device that runs until QEMU closes the connection."""

    def __init__(self, qemu: socket.socket, front: socket.socket, cid: int, path: str) -> None:
        self._qemu, self._front, self._cid = qemu, front, cid
        self._memory = Memory()
        self._queues = [Queue(self._memory), Queue(self._memory)]
        self._waiting: deque[bytes] = deque()
        self._connections = Connections(cid, path, self._waiting.append)

    def run(self) -> None:
        while True:
            reading, writing = self._connections.waiting()
            kicks = [queue.kick for queue in self._queues if queue.kick >= 0]
            watched: list[socket.socket | int] = [self._qemu, self._front, *kicks, *reading]
            ready, writable, _ = select.select(watched, writing, [])
            for one in ready:
                if one is self._qemu:
                    if not self._message():
                        return
                elif one is self._front:
                    self._connections.accept(self._front.accept()[0])
                elif isinstance(one, int):
                    os.read(one, 8)
                    self._take_from_guest()
                else:
                    self._connections.readable(one)
            for sock in writable:
                self._connections.writable(sock)
            self._give_to_guest()

    def _take_from_guest(self) -> None:
        queue, found = self._queues[FROM_GUEST], False
        while (popped := queue.pop()) is not None:
            head, chain = popped
            packet = queue.read(chain)
            queue.push(head, 0)
            self._connections.from_guest(packet)
            found = True
        if found:
            queue.signal()

    def _give_to_guest(self) -> None:
        queue, found = self._queues[TO_GUEST], False
        while self._waiting and (popped := queue.pop()) is not None:
            head, chain = popped
            packet = self._waiting.popleft()
            queue.write(chain, packet)
            queue.push(head, len(packet))
            found = True
        if found:
            queue.signal()

    def _message(self) -> bool:
        """Answer one message. Return False when QEMU has closed the connection."""
        head, ancillary, *_ = self._qemu.recvmsg(12, socket.CMSG_SPACE(8 * 4))
        if not head:
            return False
        files: list[int] = []
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files += array.array("i", data[: len(data) // 4 * 4])
        request, flags, size = struct.unpack("<III", head)
        payload = self._qemu.recv(size, socket.MSG_WAITALL) if size else b""
        answer = self._answer(request, payload, files)
        if answer is None and flags & NEED_REPLY:
            answer = struct.pack("<Q", 0)
        if answer is not None:
            self._qemu.sendall(struct.pack("<III", request, REPLY, len(answer)) + answer)
        return True

    def _answer(self, request: int, payload: bytes, files: list[int]) -> bytes | None:
        if request == GET_FEATURES:
            return struct.pack("<Q", PROTOCOL_FEATURES | VERSION_1)
        if request == GET_PROTOCOL_FEATURES:
            return struct.pack("<Q", MULTIQUEUE | REPLY_ACK | CONFIG)
        if request == GET_QUEUES:
            return struct.pack("<Q", len(self._queues))
        if request == GET_CONFIG:
            offset, size, flags = struct.unpack_from("<III", payload)
            return struct.pack("<III", offset, size, flags) + struct.pack("<Q", self._cid)[offset : offset + size]
        if request == SET_MEMORY:
            (count,) = struct.unpack_from("<I", payload)
            parts = [struct.unpack_from("<QQQQ", payload, 8 + 32 * at) for at in range(count)]
            self._memory.set(parts, files)
        elif request in (SET_KICK, SET_CALL):
            queue = self._queues[payload[0]]
            if request == SET_KICK:
                queue.kick, queue.enabled = (files[0] if files else -1), True
            else:
                queue.call = files[0] if files else -1
        elif request in (SET_SIZE, SET_BASE, SET_ENABLED, GET_BASE, SET_ADDRESSES):
            return self._of_queue(request, payload)
        return None

    def _of_queue(self, request: int, payload: bytes) -> bytes | None:
        index, number = struct.unpack_from("<II", payload)
        queue = self._queues[index]
        if request == SET_SIZE:
            queue.size = number
        elif request == SET_BASE:
            queue.taken = number
        elif request == SET_ENABLED:
            queue.enabled = bool(number)
        elif request == SET_ADDRESSES:
            _, _, descriptors, used, available = struct.unpack_from("<IIQQQ", payload)
            queue.addresses = (descriptors, used, available)
        else:
            queue.enabled, queue.addresses = False, None
            return struct.pack("<II", index, queue.taken)
        return None
