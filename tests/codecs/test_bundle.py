"""Bundles of batches: packing, bounds and waiting times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.bundle import MAX_BODIES, pack, parse_waited, render_waited, unpack
from gpufleet.model.errors import WireError, WireLimitError


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_bodies_round_trip(bodies: list[bytes]) -> None:
    assert unpack(pack(bodies)) == bodies


@given(st.binary(max_size=200))
def test_any_bytes_unpack_to_bodies_or_an_error(content: bytes) -> None:
    try:
        bodies = unpack(content)
    except WireError as error:
        assert error.field.startswith("bundle")  # noqa: PT017 - success is valid too
    else:
        assert pack(bodies) == content


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        (b"", "bundle", "no bodies"),
        (b"\x01\x00\x00", "bundle[0]", "3 bytes left"),
        (b"\x02\x00\x00\x00a", "bundle[0]", "2 bytes, 1 left"),
        (b"\x01\x00\x00\x00a\xff\xff\xff\xff", "bundle[1]", "4294967295 bytes, 0 left"),
    ],
)
def test_invalid_lengths_are_rejected(content: bytes, field: str, message: str) -> None:
    with pytest.raises(WireError, match=message) as caught:
        unpack(content)
    assert caught.value.field == field


def test_number_of_bodies_is_bounded() -> None:
    assert len(unpack(pack([b""] * MAX_BODIES))) == MAX_BODIES
    with pytest.raises(WireLimitError, match="1024") as caught:
        unpack(pack([b""] * (MAX_BODIES + 1)))
    assert caught.value.field == "bundle"


def test_bundle_bytes_are_as_documented() -> None:
    assert pack([b"abc", b""]) == bytes.fromhex("03000000 616263 00000000")


@given(st.lists(st.integers(0, 10**17), min_size=1, max_size=20))
def test_waiting_times_are_rounded_up_to_milliseconds(waited: list[int]) -> None:
    parsed = parse_waited(render_waited(waited), len(waited))
    assert all(0 <= long - one < 10**6 for long, one in zip(parsed, waited, strict=True))


@pytest.mark.parametrize("text", ["", "1,", "-1", "1.5", "1;2", " 1", "1" * 13, "\u0661"])
def test_invalid_waiting_time_is_rejected(text: str) -> None:
    with pytest.raises(WireError) as caught:
        parse_waited(text, 1)
    assert caught.value.field == "Gpufleet-Waited"


def test_number_of_waiting_times_matches_the_bodies() -> None:
    with pytest.raises(WireError) as caught:
        parse_waited("1,2", 3)
    assert caught.value.field == "Gpufleet-Waited"
