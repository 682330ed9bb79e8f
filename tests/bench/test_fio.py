"""fio: arguments that never write, and the parser of its JSON output."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.bench.fio import JOBS, check_path, parse_fio
from gpufleet.model.errors import WireError
from gpufleet.probe.measurements import TARGET

OUTPUT = (Path(__file__).parents[1] / "data" / "bench" / "fio-3.33.json").read_bytes()
JOB = JOBS[2]


def changed(path: str, value: Any) -> bytes:
    document = json.loads(OUTPUT)
    place = document
    *parents, last = path.split("/")
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return json.dumps(document).encode()


def test_recorded_output_is_parsed() -> None:
    job = json.loads(OUTPUT)["jobs"][0]["read"]
    found = parse_fio(OUTPUT, JOB)
    assert (found.bandwidth, found.iops) == (job["bw_bytes"], job["iops"])
    assert found.latency == pytest.approx(job["clat_ns"]["mean"] / 1e9)
    assert found.latency_p99 == pytest.approx(job["clat_ns"]["percentile"]["99.000000"] / 1e9)


def test_messages_before_the_json_are_skipped() -> None:
    assert parse_fio(b"note: a message {\n" + OUTPUT, JOB) == parse_fio(OUTPUT, JOB)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"fio: no",
        b"{",
        b"[]",
        b"{" * 100_000,
        b'{"jobs":[]}',
        changed("jobs", []),
        changed("jobs", json.loads(OUTPUT)["jobs"] * 2),
        changed("jobs/0/jobname", "other"),
        changed("jobs/0/error", 5),
        changed("jobs/0/write/io_bytes", 4096),
        changed("jobs/0/trim/io_bytes", 4096),
        changed("jobs/0/read/io_bytes", 0),
        changed("jobs/0/read/iops", "99"),
        changed("jobs/0/read/clat_ns/percentile", {}),
        OUTPUT.replace(b'"iops" :', b'"iops" : NaN, "x" :', 1),
    ],
)
def test_other_output_is_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        parse_fio(content, JOB)


@given(st.data())
def test_damaged_output_raises_at_most_a_wire_error(data: st.DataObject) -> None:
    content = bytearray(OUTPUT)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_fio(bytes(content), JOB)
    except WireError:
        return


@pytest.mark.parametrize("path", ["data", "/a:b", "/a b", "", "-", "/a\\b", "/" + "x" * 1025])
def test_ambiguous_path_is_refused(path: str) -> None:
    with pytest.raises(WireError):
        check_path(path)


def test_recorded_arguments_have_no_path() -> None:
    for job in JOBS:
        for kind in job.kinds(direct=True).values():
            assert f"--filename={TARGET}" in kind.arguments
            assert {"--readonly", "--allow_file_create=0"} <= set(kind.arguments)
