"""`gpufleet decode` as a process."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.codecs.batch import encode
from gpufleet.codecs.bundle import pack
from gpufleet.model.machine import Machine
from gpufleet.model.time import NANOS
from tests.fakes.batches import make_batch
from tests.fakes.nvidia_smi.standin import DATA
from tests.support.command import gpufleet

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "snapshot.schema.json").read_text())
H100 = str(DATA / "xml-h100.xml")


def test_table_shows_the_devices_of_the_file() -> None:
    done = gpufleet("decode", H100, "--timezone", "UTC")
    assert (done.returncode, done.stderr) == (0, "")
    assert "8 of 8 devices report" in done.stdout
    assert "GPU-00000007" in done.stdout
    assert "cores" not in done.stdout


def test_json_follows_the_schema_and_decodes_again(tmp_path: Path) -> None:
    done = gpufleet("decode", H100, "--format", "json")
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert document["node"]["name"] == "xml-h100.xml"
    assert document["measured_at"] == "2026-08-21T08:54:01Z"
    file = tmp_path / "again.json"
    file.write_text(done.stdout)
    assert json.loads(gpufleet("decode", str(file), "-f", "json").stdout) == document


@pytest.mark.parametrize(
    ("options", "at", "stated"),
    [
        ([], "2026-08-21T08:54:01Z", False),
        (["--timezone", "Europe/Berlin"], "2026-08-21T06:54:01Z", True),
        (["--timezone", "+05:30"], "2026-08-21T03:24:01Z", True),
        (["--timezone", "UTC"], "2026-08-21T08:54:01Z", True),
    ],
)
def test_document_states_an_assumed_time_zone(options: list[str], at: str, stated: bool) -> None:
    done = gpufleet("decode", H100, "--format", "json", *options)
    document = json.loads(done.stdout)
    assert document["measured_at"] == at
    assert (document["capabilities"]["time_zone"] == "available") is stated
    assert bool(done.stderr) is not stated


def test_csv_and_prometheus_output() -> None:
    rows = list(csv.DictReader(io.StringIO(gpufleet("decode", H100, "-f", "csv").stdout)))
    assert {row["value"] for row in rows if row["metric"] == "gpu_memory_total_bytes"} == {str(81559 << 20)}
    page = gpufleet("decode", H100, "-f", "prometheus").stdout
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert len(families["gpufleet_gpu_temperature_celsius"].samples) == 8


def test_standard_input_with_a_given_format() -> None:
    content = (DATA / "text-vgpu-guest-a6000-24q-unlicensed-unrestricted.txt").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "gpufleet.cli.main", "decode", "-", "--as", "nvidia-smi-text", "-f", "json"],
        input=content,
        capture_output=True,
        check=True,
        timeout=60,
    )
    document = json.loads(done.stdout)
    (device,) = document["devices"]
    assert document["node"]["name"] == "stdin"
    assert device["readings"]["vgpu_license_state"]["value"] == "unlicensed_unrestricted"
    assert device["readings"]["gpu_power_watts"]["absent"] == "not_in_guest"


@pytest.mark.parametrize("zone", ["", "Nowhere/City", "../../etc/passwd", "+25:00", "+01:99", "Europe"])
def test_unknown_time_zone_is_an_error(zone: str) -> None:
    done = gpufleet("decode", H100, "--timezone", zone)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--timezone" in done.stderr


def test_verbose_reports_unread_fields() -> None:
    done = gpufleet("decode", H100, "--verbose")
    assert "gpufleet: format: nvidia-smi-xml" in done.stderr
    assert "UTC" in done.stderr
    assert "unread: pci/tx_util: " in done.stderr


def test_bundle_of_several_machines(tmp_path: Path) -> None:
    at = 1_700_000_000 * NANOS
    machines = [Machine(name=f"node-{letter}", machine_id=letter * 32) for letter in "ab"]
    file = tmp_path / "bundle"
    file.write_bytes(pack([encode(make_batch(1, at, machine=machine)) for machine in machines]))
    lines = gpufleet("decode", str(file), "-f", "json").stdout.splitlines()
    assert [json.loads(line)["node"]["name"] for line in lines] == ["node-a", "node-b"]
    ambiguous = gpufleet("decode", str(file), "-f", "csv")
    assert ambiguous.returncode == 1
    assert "--machine (node-a, node-b)" in ambiguous.stderr
    chosen = gpufleet("decode", str(file), "-f", "csv", "--machine", "node-b")
    assert {row["node"] for row in csv.DictReader(io.StringIO(chosen.stdout))} == {"node-b"}
    assert "no machine x" in gpufleet("decode", str(file), "--machine", "x").stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/nowhere/at/all"], "No such file or directory"),
        (["/proc/self/cmdline"], "cmdline: "),
        ([H100, "--as", "batch"], "xml-h100.xml: "),
        ([H100, "--as", "toml"], "toml"),
    ],
)
def test_undecodable_input_is_reported(arguments: list[str], expected: str) -> None:
    done = gpufleet("decode", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_standard_input_is_reported() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -m gpufleet.cli.main decode - <&-', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpufleet: ")
