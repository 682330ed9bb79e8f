"""Unit scales: equivalent to the conversion functions."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.readers.nvml.mapping.units import SCALES


@given(st.integers(-(2**63), 2**64 - 1))
def test_scale_equals_its_conversion_for_integers(raw: int) -> None:
    assert SCALES
    for convert, (times, by) in SCALES.items():
        assert repr(raw / by if by else raw * times) == repr(convert(raw))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_dividing_scale_equals_its_conversion_for_floats(raw: float) -> None:
    for convert, (_, by) in SCALES.items():
        if by:
            assert repr(raw / by) == repr(convert(raw))
