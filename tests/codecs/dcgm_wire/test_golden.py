"""Frames byte for byte as NVIDIA's headers define them (DCGM 4.2.3, 4.5.0 and 4.6.0, which agree)."""

from pathlib import Path

import pytest

from gpufleet.codecs.dcgm_wire import requests
from gpufleet.codecs.dcgm_wire.commands import ALL_GPUS, LATEST_FORMS, READ_ONLY
from gpufleet.codecs.dcgm_wire.frame import HEADER
from gpufleet.codecs.dcgm_wire.values import GPU, Entity, FieldValue, decode_values, encode_value

LINES = (Path(__file__).parents[2] / "data" / "dcgm" / "golden-frames.txt").read_text().splitlines()
GOLDEN = {name: rest for name, _, rest in (line.partition(" ") for line in LINES if not line.startswith("#"))}
REQUESTS = {
    "version": requests.version_request(7),
    "entities": requests.entities_request(8, GPU),
    "fg": requests.create_fields_request(9, "fg1", [203, 252]),
    "watch": requests.watch_request(10, ALL_GPUS, 5, every_seconds=5, keep_seconds=30, keep_samples=2),
    "latest": requests.latest_request(LATEST_FORMS[0], 11, [Entity(GPU, 0)], [203, 252]),
    "update": requests.update_request(12),
    "multi": requests.history_request(13, Entity(GPU, 0), 230, 123, 64),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_request_matches_its_golden_frame(name: str) -> None:
    assert REQUESTS[name].hex() == GOLDEN[name]


def test_every_golden_line_is_used() -> None:
    assert set(GOLDEN) == {"hdr", "fv", "fvd", *REQUESTS}
    assert int(GOLDEN["hdr"]) == HEADER.size


@pytest.mark.parametrize(("name", "field", "value"), [("fv", 252, 20000), ("fvd", 155, 35.686)])
def test_value_matches_its_golden_record(name: str, field: int, value: float) -> None:
    expected = FieldValue(Entity(GPU, 0), field, 0, 1_700_000_000_000_000, value)
    assert decode_values(bytes.fromhex(GOLDEN[name]), 1) == [expected]
    assert encode_value(expected).hex() == GOLDEN[name]


def test_writing_commands_are_not_allowed() -> None:
    inject, fake, denylist, attach, detach, config, health_set = 27, 44, 46, 76, 75, 8, 4
    assert not READ_ONLY & {inject, fake, denylist, attach, detach, config, health_set, 72, 73}
    for frame in REQUESTS.values():
        number = int.from_bytes(frame[28:32], "little")
        assert number in READ_ONLY
