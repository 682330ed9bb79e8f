"""GPU copies: the parsers of nvbandwidth and bandwidthTest."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.bench.gpu_copies import parse_bandwidth_test, parse_nvbandwidth
from gpufleet.model.errors import WireError

NAME = "gpu_host_to_device"
CSV = """[CUDA Bandwidth Test] - Starting...
Running on...

 Device 0: Tesla T4
 Quick Mode

bandwidthTest-H2D-Pinned, Bandwidth = 12.3 GB/s, Time = 0.00260 s, Size = 32000000 bytes, NumDevsUsed = 1
bandwidthTest-D2H-Pinned, Bandwidth = 11659.1 MB/s, Time = 0.00243 s, Size = 32000000 bytes, NumDevsUsed = 1
bandwidthTest-D2D, Bandwidth = 239.6 GB/s, Time = 0.00013 s, Size = 32000000 bytes, NumDevsUsed = 1
Result = PASS
"""


def output(**changes: Any) -> bytes:
    case = {
        "name": "host_to_device_memcpy_ce",
        "status": "Passed",
        "bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
        "bandwidth_matrix": [["55.6", "54.2", "N/A"]],
        "sum": 109.8,
        **changes,
    }
    return json.dumps({"nvbandwidth": {"git_version": "v0.8", "testcases": [case]}}).encode()


def test_slowest_pair_counts() -> None:
    found = parse_nvbandwidth(output(), NAME)
    assert found.slowest == pytest.approx(54.2e9)
    assert found.version == "v0.8"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"CUDA error",
        output(status="Waived"),
        output(status="Error", error="no memory"),
        output(name="device_to_host_memcpy_ce"),
        output(bandwidth_matrix=[]),
        output(bandwidth_matrix=[["N/A"]]),
        output(bandwidth_matrix=[["inf"]]),
        output(bandwidth_matrix=[["-1"]]),
        output(bandwidth_matrix=[["1"] * 5000]),
        output(bandwidth_description="latency (ns)"),
        b'{"nvbandwidth":{"error":"No CUDA device","testcases":[]}}',
    ],
)
def test_other_output_of_nvbandwidth_is_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        parse_nvbandwidth(content, NAME)


def test_rows_of_bandwidth_test_are_in_bytes_per_second() -> None:
    assert parse_bandwidth_test(CSV.encode()) == {
        "gpu_host_to_device": pytest.approx(12.3e9),
        "gpu_device_to_host": pytest.approx(11659.1e6),
        "gpu_local_copy": pytest.approx(239.6e9),
    }


@pytest.mark.parametrize("content", ["", CSV.replace("D2D", "X"), CSV + CSV, CSV.replace("239.6", "0.0")])
def test_other_rows_of_bandwidth_test_are_refused(content: str) -> None:
    with pytest.raises(WireError):
        parse_bandwidth_test(content.encode())


@given(st.binary(max_size=100), st.integers(0, len(CSV)))
def test_damaged_outputs_raise_at_most_a_wire_error(noise: bytes, at: int) -> None:
    for parse, content in ((parse_bandwidth_test, CSV.encode()), (lambda c: parse_nvbandwidth(c, NAME), output())):
        try:
            parse(content[:at] + noise + content[at:])
        except WireError:
            continue
