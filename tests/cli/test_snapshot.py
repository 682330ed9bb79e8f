"""`gpufleet snapshot` as a process: readings of this host, and of GPUs through a fake driver."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.nvml.driver import FakeNvml
from tests.support.command import gpufleet

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "snapshot.schema.json").read_text())


def test_json_of_this_host_matches_the_schema(fake: FakeNvml) -> None:
    done = gpufleet("snapshot", "--json", env=fake.environment)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert document["node"]["name"] == os.uname().nodename
    host = document["host"]["readings"]
    assert 0 <= host["host_cpu_utilization_ratio"]["value"] <= 1
    assert host["host_memory_total_bytes"]["value"] > 1 << 20
    assert document["aggregate"]["coverage"] == "8 of 8 devices"
    assert [device["readings"]["gpu_temperature_celsius"]["value"] for device in document["devices"]] == [
        31 + index for index in range(8)
    ]
    assert document["capabilities"]["nvml"] == "available"


def test_table_has_a_line_for_each_gpu(fake: FakeNvml) -> None:
    done = gpufleet("snapshot", env=fake.environment)
    assert done.returncode == 0
    assert done.stdout.count("NVIDIA H200") == 8
    assert "8 of 8 devices report" in done.stdout
    assert "\x1b" not in done.stdout


def test_host_and_error_are_shown_without_a_driver() -> None:
    done = gpufleet("snapshot", env={"LD_LIBRARY_PATH": "/nonexistent"})
    assert done.returncode == 0
    assert "cores" in done.stdout
    document = json.loads(gpufleet("snapshot", "--format", "json").stdout)
    nvml = [report for report in document["readers"] if report["reader"] == "nvml"]
    if nvml[0]["state"] == "failed":
        assert document["devices"] == [] or all(device["side"] == "pci_only" for device in document["devices"])
        assert nvml[0]["last_error"]


def test_csv_and_prometheus_output_can_be_parsed(fake: FakeNvml) -> None:
    done = gpufleet("snapshot", "-f", "csv", env=fake.environment)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len({row["uuid"] for row in rows if row["uuid"]}) == 8
    done = gpufleet("snapshot", "-f", "prometheus", env=fake.environment)
    names = {family.name for family in text_string_to_metric_families(done.stdout)}
    assert {"gpufleet_gpu_power_watts", "gpufleet_host_load_1m", "gpufleet_build_info"} <= names


@pytest.mark.system
def test_promtool_accepts_the_page_of_this_host(peer: Callable[[str], Path], fake: FakeNvml) -> None:
    page = gpufleet("snapshot", "-f", "prometheus", env=fake.environment).stdout
    done = subprocess.run(
        [peer("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_disabled_reader_is_not_used(fake: FakeNvml) -> None:
    env = {**fake.environment, "GPUFLEET_AGENT_READERS__NVML__ENABLED": "false"}
    document = json.loads(gpufleet("snapshot", "--json", env=env).stdout)
    assert {report["reader"] for report in document["readers"]} == {"host", "kmsg", "events"}


@pytest.mark.parametrize("command", [("snapshot",), ("bench", "report"), ("bench", "compare", "a", "b")])
def test_contradicting_formats_are_rejected(command: tuple[str, ...]) -> None:
    other = "csv" if command[0] == "snapshot" else "md"
    done = gpufleet(*command, "--json", "--format", other)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--json" in done.stderr


def test_snapshot_of_a_running_agent(agent_url: str) -> None:
    document = json.loads(gpufleet("snapshot", "--json", "--agent", agent_url).stdout)
    assert document["aggregate"]["coverage"] == "1 of 3 devices"


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (503, b'{"detail":"not yet"}', "503: not yet"),
        (200, b'{"schema":"gpufleet.snapshot/9"}', "snapshot"),
        (200, b"<html>", "snapshot"),
    ],
)
def test_invalid_agent_response_is_reported(
    agent_pages: dict[str, tuple[int, bytes]], agent_url: str, status: int, body: bytes, expected: str
) -> None:
    agent_pages["/v1/snapshot"] = (status, body)
    done = gpufleet("snapshot", "--agent", agent_url)
    assert done.returncode == 1
    assert expected in done.stderr
    assert done.stdout == ""


def test_closed_stdout_exits_1_without_a_message(agent_url: str) -> None:
    command = [sys.executable, "-m", "gpufleet.cli.main", "snapshot", "--json", "--agent", agent_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


def test_full_disk_behind_stdout_is_reported(agent_url: str) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "gpufleet.cli.main", "snapshot", "--json", "--agent", agent_url],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "gpufleet: [Errno 28] No space left on device\n")
