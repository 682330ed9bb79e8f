"""Conversions, and what stands in their place where there are many of them."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.readers.nvml.mapping.units import SCALES


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_scale_does_to_whole_numbers_what_its_conversion_does(raw: int) -> None:
    assert SCALES
    for convert, (times, by) in SCALES.items():
        assert repr(raw / by if by else raw * times) == repr(convert(raw))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_divides_does_the_same_to_others(raw: float) -> None:
    for convert, (_, by) in SCALES.items():
        if by:
            assert repr(raw / by) == repr(convert(raw))
