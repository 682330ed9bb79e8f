"""Forms of identifiers, and defaults of firmware."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.machine_ids import (
    AWS,
    GCP,
    PLACEHOLDER_UUIDS,
    byte_swapped,
    is_instance_id,
    is_machine_id,
    is_placeholder_uuid,
)


@given(st.uuids())
def test_swapping_bytes_twice_is_the_identity(value: uuid.UUID) -> None:
    assert byte_swapped(byte_swapped(value)) == value


def test_byte_swap_reverses_the_first_three_fields() -> None:
    swapped = byte_swapped(uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"))
    assert str(swapped) == "33221100-5544-7766-8899-aabbccddeeff"


def test_placeholders_are_found_in_either_byte_order() -> None:
    for value in (*PLACEHOLDER_UUIDS, uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)):
        assert is_placeholder_uuid(value)
        assert is_placeholder_uuid(byte_swapped(value))
    assert not is_placeholder_uuid(uuid.UUID("4c4c4544-0042-3510-8051-b7c04f4e3533"))


@pytest.mark.parametrize(
    ("provider", "text", "is_valid"),
    [
        (AWS, "i-0123456789abcdef0", True),
        (AWS, "i-0123", False),
        (GCP, "4520031799277581759", True),
        (GCP, "gke-pool-1-abc", False),
        ("other", "i-0123456789abcdef0", False),
    ],
)
def test_instance_ids_have_the_form_of_their_provider(provider: str, text: str, is_valid: bool) -> None:
    assert is_instance_id(provider, text) is is_valid


def test_machine_id_of_zeros_is_invalid() -> None:
    assert is_machine_id("0123456789abcdef0123456789abcdef")
    assert not is_machine_id("0" * 32)
