"""Views, timestamps and PCI addresses."""

import datetime as dt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.reading import Reading
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address


@given(st.integers(0, 2**62))
def test_timestamps_survive_a_round_trip_to_the_microsecond(at_ns: int) -> None:
    assert to_ns(to_datetime(at_ns)) == at_ns // 1000 * 1000


def test_naive_time_is_rejected() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        to_ns(dt.datetime(2026, 1, 1))  # noqa: DTZ001 - the naive time is the point


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7), st.sampled_from([4, 8]))
def test_pci_addresses_of_nvml_and_sysfs_are_normalised_equally(
    domain: int, bus: int, device: int, function: int, width: int
) -> None:
    nvml = f"{domain:0{width}X}:{bus:02X}:{device:02X}.{function:X}"

    assert normalise_pci_address(nvml) == f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


@pytest.mark.parametrize("text", ["", "1b", "0000:1b:00", "a:b:c:d.e", "xx:yy.z"])
def test_invalid_pci_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"PCI address|invalid literal"):
        normalise_pci_address(text)


def test_view_key_is_the_identity_not_the_position() -> None:
    seen_first = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-a", pci_address="0000:01:00.0", index=0)
    seen_later = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-a", pci_address="0000:02:00.0", index=5)

    assert seen_first.key == seen_later.key == "gpu/GPU-a"
    assert View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:01:00.0").key == "gpu/pci/0000:01:00.0"
    assert View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, instance="17").key == "vgpu/instance/17"


def test_zero_is_encoded_as_a_value() -> None:
    assert msgspec.json.decode(msgspec.json.encode(Reading(value=0, reader="nvml"))) == {"value": 0, "reader": "nvml"}
