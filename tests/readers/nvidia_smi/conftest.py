"""Fixtures of the nvidia-smi reader tests."""

from pathlib import Path

import pytest

from gpufleet.channels.local import LocalExec
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from tests.fakes.clock import FakeClock
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi, scenario_of_capture, xml


@pytest.fixture
def smi(tmp_path: Path) -> FakeNvidiaSmi:
    """Return a fake with eight GPUs of one driver: rows of the H200 capture, and the H100 XML with one GPU each."""
    scenario = scenario_of_capture("capture-h200__590.48.01.txt", "load")
    (row,) = scenario["rows"]
    rows = [
        {
            **row,
            "index": str(number),
            "count": "8",
            "driver_version": "580.105.08",
            "uuid": f"GPU-{number:08d}-0000-0000-0000-{number:012d}",
            "pci.bus_id": f"00000000:{bus}:00.0",
            "temperature.gpu": str(40 + number),
        }
        for number, bus in enumerate(("53", "64", "75", "86", "97", "A8", "B9", "CA"))
    ]
    return FakeNvidiaSmi(tmp_path, **{**scenario, "rows": rows, "log": xml("xml-h100.xml")})


@pytest.fixture
def reader(smi: FakeNvidiaSmi) -> NvidiaSmiReader:
    return make_reader(smi)


def make_reader(smi: FakeNvidiaSmi, *, timeout_seconds: float = 60) -> NvidiaSmiReader:
    channel = LocalExec(environment=smi.environment, grace_seconds=0.2)
    return NvidiaSmiReader(channel, FakeClock(), timeout_seconds=timeout_seconds)
