"""perftest: the parser of its tables."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.bench.perftest import TESTS, RdmaTest, check_peer, parse_perftest
from gpufleet.model.errors import WireError

DATA = Path(__file__).parents[1] / "data" / "bench"
BANDWIDTH, LATENCY = TESTS
RULE = "-" * 87
WRITE_BW = f"""{RULE}
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
 Number of qps   : 1            Transport type : IB
{RULE}
 local address: LID 0x04 QPN 0x0110 PSN 0x17e736 RKey 0x8010100 VAddr 0x0055f4c06e7000
{RULE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 65536      5000             392.87             388.00             0.740051
{RULE}
"""
WRITE_LAT = f"""{RULE}
                    RDMA_Write Latency Test
{RULE}
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   """
WRITE_LAT += f"""99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.76           6.12         1.79       1.80        0.06            1.95            6.12
{RULE}
"""


def test_bandwidth_is_in_bytes_per_second() -> None:
    assert parse_perftest(WRITE_BW.encode(), BANDWIDTH) == {"rdma_write_bandwidth": pytest.approx(48.5e9)}


def test_latency_is_in_seconds() -> None:
    assert parse_perftest(WRITE_LAT.encode(), LATENCY) == {
        "rdma_write_latency": pytest.approx(1.79e-6),
        "rdma_write_latency_p99": pytest.approx(1.95e-6),
    }


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (BANDWIDTH, {"rdma_write_bandwidth": 0.36e9 / 8}),
        (LATENCY, {"rdma_write_latency": 4022.91e-6, "rdma_write_latency_p99": 9819.75e-6}),
    ],
)
def test_recorded_output_of_soft_roce_is_parsed(test: RdmaTest, expected: dict[str, float]) -> None:
    recorded = (DATA / f"{test.program}-6.06-rxe.txt").read_bytes()
    assert parse_perftest(recorded, test) == pytest.approx(expected)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "Couldn't connect to peer:18515",
        WRITE_BW.replace(" 65536 ", " 32768 "),
        WRITE_BW.replace("388.00", "0.00"),
        WRITE_BW.replace("388.00", "nan"),
        WRITE_BW.replace("BW average[Gb/sec]", "BW average[MiB/sec]"),
        WRITE_BW + WRITE_BW.splitlines()[-2] + "\n 65536 5000 1.0 1.0 1.0\n",
        WRITE_BW.replace(" 0.740051", ""),
    ],
)
def test_other_table_is_refused(content: str) -> None:
    with pytest.raises(WireError):
        parse_perftest(content.encode(), BANDWIDTH)


@given(st.binary(max_size=200), st.integers(0, len(WRITE_LAT)))
def test_damaged_table_raises_at_most_a_wire_error(noise: bytes, at: int) -> None:
    content = WRITE_LAT.encode()
    try:
        parse_perftest(content[:at] + noise + content[at:], LATENCY)
    except WireError:
        return


@pytest.mark.parametrize("peer", ["", "-R", "a b", "a;b", "--out", "x" * 300])
def test_peer_that_is_no_host_is_refused(peer: str) -> None:
    with pytest.raises(WireError):
        check_peer(peer)
