"""Addresses of streams, as people write them."""

from pathlib import Path

from gpufleet.channels.stream.dialers import HybridVsockDialer, TcpDialer, UnixDialer, VsockDialer
from gpufleet.ports import Dialer

FORMS = "tcp://HOST:PORT, unix:///PATH, vsock://CID:PORT or hybrid-vsock:///PATH:PORT"

LAST_TCP_PORT, LAST_VSOCK_PORT = 0xFFFF, 0xFFFF_FFFE


def dialer_of(address: str) -> Dialer:
    """Return a dialer to an address.

    Raises:
        ValueError: if it is none; the words name the forms there are.
    """
    scheme, found, rest = address.partition("://")
    if found and scheme == "unix" and rest.startswith("/"):
        return UnixDialer(Path(rest))
    place, colon, port = rest.rpartition(":")
    if found and colon and port.isascii() and port.isdigit() and place:
        number = int(port)
        if scheme == "tcp" and 0 < number <= LAST_TCP_PORT:
            return TcpDialer(place.strip("[]"), number)
        if scheme == "hybrid-vsock" and place.startswith("/") and number <= LAST_VSOCK_PORT:
            return HybridVsockDialer(Path(place), number)
        if scheme == "vsock" and place.isascii() and place.isdigit() and number <= LAST_VSOCK_PORT:
            return VsockDialer(int(place), number)
    raise ValueError(f"{address!r} is no address of a stream: write {FORMS}")
