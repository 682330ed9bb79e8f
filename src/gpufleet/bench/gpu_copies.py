"""GPU copies by nvbandwidth, or else by bandwidthTest of the CUDA samples: arguments and parsers. Pure."""

import math
import re

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.probe.measurements import MeasurementKind
from gpufleet.probe.records import Better, MeasuredUnit

TIMEOUT_SECONDS = 120.0

MAX_CELLS = 4096

TESTCASES = {
    "gpu_host_to_device": "host_to_device_memcpy_ce",
    "gpu_device_to_host": "device_to_host_memcpy_ce",
    "gpu_device_to_device": "device_to_device_memcpy_read_ce",
    "gpu_local_copy": "device_local_copy",
}
"""Measurement to the test case of nvbandwidth."""

SAMPLES = {
    "gpu_host_to_device": "bandwidthTest-H2D-Pinned",
    "gpu_device_to_host": "bandwidthTest-D2H-Pinned",
    "gpu_local_copy": "bandwidthTest-D2D",
}
"""Measurement to the row of bandwidthTest, which tests the first GPU."""

_SAMPLE = re.compile(
    r"(bandwidthTest-[A-Za-z0-9-]{1,40}), Bandwidth = ([0-9]{1,9}(?:\.[0-9]{1,3})?) (GB|MB)/s, Time = [0-9.]{1,20} s,"
    r" Size = [0-9]{1,15} bytes, NumDevsUsed = ([0-9]{1,3})",
    re.ASCII,
)


class NvbandwidthResult(msgspec.Struct, frozen=True):
    """Result of a test case: bytes per second of the slowest pair of devices, and the program's version."""

    slowest: float
    version: str


class _Testcase(msgspec.Struct):
    name: str
    status: str
    bandwidth_description: str = ""
    bandwidth_matrix: list[list[str | float]] = []
    error: str = ""


class _CopyBody(msgspec.Struct):
    testcases: list[_Testcase] = []
    version: str = ""
    git_version: str = ""
    error: str = ""


class _CopyOutput(msgspec.Struct):
    nvbandwidth: _CopyBody


_decoder = msgspec.json.Decoder(_CopyOutput)


def nvbandwidth_arguments(name: str) -> tuple[str, ...]:
    """Return the arguments of nvbandwidth for a measurement."""
    return ("--json", "--testcase", TESTCASES[name])


def copy_kind(name: str, tool: str) -> MeasurementKind:
    """Return a measurement by one of the tools."""
    arguments = nvbandwidth_arguments(name) if tool == "nvbandwidth" else ("--csv",)
    return MeasurementKind(
        name=name,
        help=f"bandwidth of copies, {name.removeprefix('gpu_').replace('_', ' ')}, slowest pair",
        unit=MeasuredUnit.BYTES_PER_SECOND,
        better=Better.HIGHER,
        tool=tool,
        arguments=arguments,
    )


def parse_nvbandwidth(content: bytes, name: str) -> NvbandwidthResult:
    """Parse the output of one test case.

    Raises:
        WireError: if the output is not that of the test case, or it was waived or failed.
    """
    try:
        body = _decoder.decode(content).nvbandwidth
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("nvbandwidth", f"not the JSON of a test case: {error}"[:300]) from error
    if body.error or len(body.testcases) != 1 or body.testcases[0].name != TESTCASES[name]:
        raise WireError("nvbandwidth", body.error[:300] or f"the output is not that of {TESTCASES[name]}")
    case = body.testcases[0]
    if case.status != "Passed":
        raise WireError("nvbandwidth", f"{case.name}: {case.status} {case.error}"[:300].strip())
    if not case.bandwidth_description.endswith("(GB/s)"):
        raise WireError("nvbandwidth", "the bandwidth is not in GB/s")
    cells = [cell for row in case.bandwidth_matrix for cell in row if cell != "N/A"]
    if not 0 < len(cells) <= MAX_CELLS:
        raise WireError("nvbandwidth", f"{len(cells)} values")
    return NvbandwidthResult(min(map(_bandwidth, cells)), body.git_version or body.version)


def parse_bandwidth_test(content: bytes) -> dict[str, float]:
    """Parse the rows of `bandwidthTest --csv`: measurement to bytes per second.

    Raises:
        WireError: if a row is missing or appears twice.
    """
    found: dict[str, list[float]] = {}
    for line in content[-65536:].decode("utf-8", errors="replace").splitlines():
        if (row := _SAMPLE.fullmatch(line.strip())) is not None:
            found.setdefault(row[1], []).append(float(row[2]) * (1e9 if row[3] == "GB" else 1e6))
    values: dict[str, float] = {}
    for name, title in SAMPLES.items():
        if len(found.get(title, ())) != 1 or found[title][0] <= 0:
            raise WireError("bandwidthTest", f"the output has not one row {title}")
        values[name] = found[title][0]
    return values


def _bandwidth(cell: str | float) -> float:
    try:
        value = float(cell) * 1e9
    except ValueError as error:
        raise WireError("nvbandwidth", f"{str(cell)[:40]!r} is not a bandwidth") from error
    if not (math.isfinite(value) and value > 0):
        raise WireError("nvbandwidth", f"{str(cell)[:40]!r} is not a bandwidth")
    return value
