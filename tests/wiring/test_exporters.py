"""Configured exporters: CA and token files, and exporters inside guests."""

import asyncio
import ssl
from pathlib import Path

import msgspec
import pytest

from gpufleet.config.guests import GuestConfig
from gpufleet.config.scrape import ExporterTarget
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ConfigError, ReaderError
from gpufleet.model.view import Side
from gpufleet.wiring.exports import make_exporter_reader
from gpufleet.wiring.guests import make_access
from tests.fakes.clock import FakeClock
from tests.support.authority import Authority, put_in_place
from tests.support.exporters import serving

PAGE = Path(__file__).parents[1] / "data" / "exposition" / "dcgm-exporter-h100-vgpu-guest.txt"
VM = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"


def guest(address: str, **channel: str) -> GuestConfig:
    channels = [{"type": "metrics", "address": address, **channel}]
    return msgspec.convert({"name": "train-0", "vm_uuid": VM, "channels": channels}, GuestConfig)


def test_exporter_of_a_guest_has_the_guest_side(tmp_path: Path) -> None:
    with serving(PAGE.read_bytes(), tmp_path / "socket") as (_, address):
        (path,) = make_access(guest(address), tmp_path, FakeClock()).gpus
        round_read = asyncio.run(path.reader.read(Lane.FAST))
    (sample,) = round_read.samples
    assert sample.view is not None
    assert sample.view.side is Side.GUEST
    assert sample.values["gpu_sm_clock_hertz"] == 1_755_000_000
    assert address in path.name


def test_other_exporter_in_a_guest_is_an_error(tmp_path: Path) -> None:
    with serving(b"node_load1 1\n", tmp_path / "socket") as (_, address):
        (path,) = make_access(guest(address, dialect="dcgm"), tmp_path, FakeClock()).gpus
        with pytest.raises(ReaderError, match="dcgm-exporter"):
            asyncio.run(path.reader.read(Lane.FAST))


def test_invalid_guest_address_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="vsock://CID:PORT"):
        guest("http://10.0.0.1:9400")


def test_ca_and_token_files_are_read_again_on_change(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key, token = tmp_path / "crt", tmp_path / "key", tmp_path / "token"
    authority.issue(certificate, key)
    token.write_text("first\n")
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    with serving(PAGE.read_bytes(), tls=server_side) as (server, url):
        target = ExporterTarget(name="x", url=url, ca=str(authority.file), token_file=str(token))
        reader = make_exporter_reader(target, FakeClock(), "readers.exporter x")
        assert asyncio.run(reader.read(Lane.FAST)).samples
        put_in_place(token, b"second")
        assert asyncio.run(reader.read(Lane.FAST)).samples
        assert [headers["authorization"] for headers in server.requests] == ["Bearer first", "Bearer second"]
        token.unlink()
        with pytest.raises(ReaderError, match=str(token)):
            asyncio.run(reader.read(Lane.FAST))
        assert len(server.requests) == 2  # without a token no request is sent


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"url": "https://h/metrics", "ca": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        ({"url": "https://h/metrics", "token_file": "/nowhere/token"}, "/nowhere/token"),
        ({"address": "carrier-pigeon://x"}, "readers.exporter x.address"),
    ],
)
def test_target_files_are_checked_before_the_start(more: dict[str, str], expected: str) -> None:
    target = msgspec.convert({"name": "x", **more}, ExporterTarget)
    with pytest.raises(ConfigError, match=expected):
        make_exporter_reader(target, FakeClock(), "readers.exporter x")
