"""Which readers read on this machine."""

from pathlib import Path

import pytest

from gpufleet.config.agent import DcgmConfig, NvidiaSmiConfig, NvmlConfig, ReadersConfig
from gpufleet.runtime import SystemClock
from gpufleet.wiring.readers import READERS, capabilities, enabled_readers, has_binding, make_readers
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi


@pytest.fixture
def command(tmp_path: Path) -> str:
    return str(FakeNvidiaSmi(tmp_path).path)


def test_with_the_binding_nvml_reads(command: str) -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(command=command))
    assert has_binding()
    assert enabled_readers(config, binding=True) == ("host", "nvml", "kmsg")
    assert capabilities(config, binding=True) == {}


def test_without_it_nvidia_smi_reads_in_its_place_and_it_is_said(command: str) -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(command=command))
    assert enabled_readers(config, binding=False) == ("host", "nvidia_smi", "kmsg")
    assert capabilities(config, binding=False)["nvml"].startswith("no_library: the Python package nvidia-ml-py")


def test_without_both_nvml_says_what_is_missing() -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(command="gpufleet-no-such-command"))
    assert enabled_readers(config, binding=False) == ("host", "nvml", "kmsg")
    assert capabilities(config, binding=False) == {}


def test_nobody_reads_gpus_where_nvml_is_switched_off(command: str) -> None:
    config = ReadersConfig(nvml=NvmlConfig(enabled=False), nvidia_smi=NvidiaSmiConfig(command=command))
    assert enabled_readers(config, binding=False) == ("host", "kmsg")


def test_it_never_reads_where_it_never_should(command: str) -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(use="never", command=command))
    assert enabled_readers(config, binding=False) == ("host", "nvml", "kmsg")


def test_both_read_where_both_should(command: str) -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(use="always", command=command))
    made = {reader.name: seconds for reader, seconds in make_readers(config, SystemClock())}
    assert made == {"host": 20.0, "nvml": 20.0, "nvidia_smi": 30.0, "kmsg": 20.0}
    assert made.keys() == READERS.keys() - {"dcgm", "netdata"}  # those are named by their addresses only


def test_an_engine_of_this_host_reads_where_it_is_named() -> None:
    config = ReadersConfig(nvml=NvmlConfig(enabled=False), dcgm=DcgmConfig(address="unix:///run/nvidia-dcgm.socket"))
    assert enabled_readers(config, binding=True) == ("host", "kmsg", "dcgm")
    assert [reader.name for reader, _ in make_readers(config, SystemClock())] == ["host", "kmsg", "dcgm"]
