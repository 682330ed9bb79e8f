"""Addresses: the dialer of each kind, and invalid forms."""

import pytest

from gpufleet.channels.stream.dialers import HybridVsockDialer, TcpDialer, UnixDialer, VsockDialer, make_dialer


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("tcp://127.0.0.1:5555", TcpDialer),
        ("tcp://[::1]:5555", TcpDialer),
        ("tcp://guest.example:65535", TcpDialer),
        ("unix:///run/dcgm.sock", UnixDialer),
        ("vsock://42:5555", VsockDialer),
        ("vsock://3:4294967294", VsockDialer),
        ("hybrid-vsock:///run/vm/v.sock:5555", HybridVsockDialer),
    ],
)
def test_address_gives_the_dialer_of_its_kind(address: str, kind: type) -> None:
    assert type(make_dialer(address)) is kind


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:5555",
        "tcp://127.0.0.1",
        "tcp://:5555",
        "tcp://host:0",
        "tcp://host:65536",
        "tcp://host:٣",
        "unix://relative",
        "vsock://any:5555",
        "vsock://42",
        "vsock://2:5555",
        "vsock://42:4294967295",
        "hybrid-vsock://relative:1",
        "http://host:1",
    ],
)
def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="vsock"):
        make_dialer(address)
