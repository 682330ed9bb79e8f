import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.bundle import MAX_BODIES, pack, parse_waited, render_waited, unpack
from gpufleet.model.errors import WireError, WireLimitError


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_what_is_packed_is_unpacked(bodies: list[bytes]) -> None:
    assert unpack(pack(bodies)) == bodies


@given(st.binary(max_size=200))
def test_any_bytes_unpack_to_bodies_or_an_error(content: bytes) -> None:
    try:
        bodies = unpack(content)
    except WireError as error:
        assert error.field.startswith("bundle")  # noqa: PT017 - the other outcome is as good
    else:
        assert pack(bodies) == content


@pytest.mark.parametrize(
    ("content", "field", "words"),
    [
        (b"", "bundle", "no bodies"),
        (b"\x01\x00\x00", "bundle[0]", "3 bytes left"),
        (b"\x02\x00\x00\x00a", "bundle[0]", "2 bytes, 1 left"),
        (b"\x01\x00\x00\x00a\xff\xff\xff\xff", "bundle[1]", "4294967295 bytes, 0 left"),
    ],
)
def test_what_does_not_add_up_is_named(content: bytes, field: str, words: str) -> None:
    with pytest.raises(WireError, match=words) as caught:
        unpack(content)
    assert caught.value.field == field


def test_bodies_are_bounded_in_number() -> None:
    assert len(unpack(pack([b""] * MAX_BODIES))) == MAX_BODIES
    with pytest.raises(WireLimitError, match="1024") as caught:
        unpack(pack([b""] * (MAX_BODIES + 1)))
    assert caught.value.field == "bundle"


def test_the_bytes_are_as_documented() -> None:
    assert pack([b"abc", b""]) == bytes.fromhex("03000000 616263 00000000")


@given(st.lists(st.integers(0, 10**17), min_size=1, max_size=20))
def test_how_long_bodies_waited_is_told_in_milliseconds_begun(waited: list[int]) -> None:
    told = parse_waited(render_waited(waited), len(waited))
    assert all(0 <= long - one < 10**6 for long, one in zip(told, waited, strict=True))


@pytest.mark.parametrize("text", ["", "1,", "-1", "1.5", "1;2", " 1", "1" * 13, "\u0661"])
def test_a_wait_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(WireError) as caught:
        parse_waited(text, 1)
    assert caught.value.field == "Gpufleet-Waited"


def test_there_is_one_wait_a_body() -> None:
    with pytest.raises(WireError) as caught:
        parse_waited("1,2", 3)
    assert caught.value.field == "Gpufleet-Waited"
