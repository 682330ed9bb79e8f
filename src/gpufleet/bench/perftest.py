"""RDMA workloads of perftest against a peer: arguments, and the parser of its table. Pure."""

import re

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.probe.measurements import PEER, MeasurementKind
from gpufleet.probe.records import Better, MeasuredUnit

TIMEOUT_SECONDS = 30.0

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|[0-9A-Fa-f:]{2,39}", re.ASCII)
_HEADING = re.compile(r"#?[A-Za-z0-9_.%]+(?: (?:peak|average|percentile))?(?:\[[A-Za-z/]{1,12}\])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", re.ASCII)


class RdmaTest(msgspec.Struct, frozen=True):
    """Test of perftest.

    Attributes:
        program: name.
        size: message size in bytes.
        iterations: number of messages.
        columns: heading to measurement and the factor to its unit.
    """

    program: str
    size: int
    iterations: int
    columns: dict[str, tuple[str, float]]

    def arguments(self, peer: str) -> tuple[str, ...]:
        """Return the arguments for a peer."""
        return (*self.server_arguments(), peer)

    def server_arguments(self) -> tuple[str, ...]:
        """Return the arguments of the server, which ends after one test."""
        units = ("--report_gbits",) if self.program == "ib_write_bw" else ()
        return ("-F", *units, "-n", str(self.iterations), "-s", str(self.size))

    def kinds(self) -> dict[str, MeasurementKind]:
        """Return the measurements by name."""
        is_bandwidth = self.program == "ib_write_bw"
        return {
            name: MeasurementKind(
                name=name,
                help=f"{heading} of {self.size}-byte RDMA writes",
                unit=MeasuredUnit.BYTES_PER_SECOND if is_bandwidth else MeasuredUnit.SECONDS,
                better=Better.HIGHER if is_bandwidth else Better.LOWER,
                tool=self.program,
                arguments=self.arguments(PEER),
            )
            for heading, (name, _) in self.columns.items()
        }


TESTS = (
    RdmaTest("ib_write_bw", 65536, 5000, {"BW average[Gb/sec]": ("rdma_write_bandwidth", 1e9 / 8)}),
    RdmaTest(
        "ib_write_lat",
        2,
        1000,
        {
            "t_typical[usec]": ("rdma_write_latency", 1e-6),
            "99% percentile[usec]": ("rdma_write_latency_p99", 1e-6),
        },
    ),
)


def check_peer(peer: str) -> None:
    """Check the name of a peer.

    Raises:
        WireError: if it is neither a host name nor an address.
    """
    if _HOST.fullmatch(peer) is None:
        raise WireError("perftest", "the peer is neither a host name nor an address")


def parse_perftest(content: bytes, test: RdmaTest) -> dict[str, float]:
    """Parse the table of one run: measurement to value. Messages may stand between the heading and the row.

    Raises:
        WireError: if the table has not exactly one row of the test's message size, or lacks a column.
    """
    lines = [line.strip() for line in content[-65536:].decode("utf-8", errors="replace").splitlines()]
    start = next((at for at, line in enumerate(lines) if line.startswith("#bytes ")), None)
    if start is None:
        raise WireError(test.program, "the output has no table")
    headings = _HEADING.findall(lines[start])
    rows = [cells for line in lines[start + 1 :] if all(map(_NUMBER.fullmatch, cells := line.split())) and cells]
    if len(rows) != 1 or len(rows[0]) != len(headings) or rows[0][0] != str(test.size):
        raise WireError(test.program, f"the table has not one row of {test.size} bytes")
    row = dict(zip(headings, rows[0], strict=True))
    values: dict[str, float] = {}
    for heading, (name, factor) in test.columns.items():
        if heading not in row:
            raise WireError(test.program, f"the table has no column {heading}")
        if (value := float(row[heading]) * factor) <= 0:
            raise WireError(test.program, f"{heading} is zero")
        values[name] = value
    return values
