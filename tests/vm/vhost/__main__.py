"""Listen on both sockets, and serve one QEMU until it ends."""

import socket
import sys

from tests.vm.vhost.device import Device


def main(vhost: str, front: str, cid: str) -> None:
    listeners = []
    for path in (front, vhost):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(64)
        listeners.append(listener)
    qemu, _ = listeners[1].accept()
    Device(qemu, listeners[0], int(cid), front).run()


main(*sys.argv[1:])
