"""An exporter inside of a guest, over the channel that its description names."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from gpufleet.config.guests import GuestConfig
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.view import Side
from gpufleet.wiring.guests import reach
from tests.fakes.clock import FakeClock
from tests.support.exporters import serving

PAGE = Path(__file__).parents[1] / "data" / "exposition" / "dcgm-exporter-h100-vgpu-guest.txt"
VM = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"


def guest(address: str, **channel: str) -> GuestConfig:
    channels = [{"type": "metrics", "address": address, **channel}]
    return msgspec.convert({"name": "train-0", "vm_uuid": VM, "channels": channels}, GuestConfig)


def test_what_a_guests_exporter_shows_is_seen_from_inside(tmp_path: Path) -> None:
    with serving(PAGE.read_bytes(), tmp_path / "socket") as (_, address):
        (way,) = reach(guest(address), tmp_path, FakeClock()).gpus
        done = asyncio.run(way.reader.read(Lane.FAST))
    (sample,) = done.samples
    assert sample.view is not None
    assert sample.view.side is Side.GUEST
    assert sample.values["gpu_sm_clock_hertz"] == 1_755_000_000
    assert address in way.name


def test_a_guest_that_answers_with_something_else_is_a_failure(tmp_path: Path) -> None:
    with serving(b"node_load1 1\n", tmp_path / "socket") as (_, address):
        (way,) = reach(guest(address, dialect="dcgm"), tmp_path, FakeClock()).gpus
        with pytest.raises(ReaderError, match="dcgm-exporter"):
            asyncio.run(way.reader.read(Lane.FAST))


def test_an_address_that_is_no_stream_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="vsock://CID:PORT"):
        guest("http://10.0.0.1:9400")
