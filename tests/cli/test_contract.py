"""`gpufleet contract`."""

import json
from pathlib import Path

import msgspec
import pytest

from gpufleet.fleet.contract.facts import MachineGroup
from gpufleet.fleet.contract.history import ClusterHistory
from gpufleet.fleet.contract.judge import judge_cluster
from gpufleet.fleet.contract.report import ConformanceReport, conformance_report
from gpufleet.model.cluster import ClusterSpec
from gpufleet.wiring.contract import load_contract
from tests.support.command import gpufleet
from tests.support.contract_facts import SPEC, bare, cluster, machine

ROOT = Path(__file__).parents[2]
CONTRACT = load_contract()


def test_contract_of_the_package_is_valid() -> None:
    done = gpufleet("contract", "lint")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(gpufleet("contract", "lint", "--json").stdout)
    assert (found["problems"], found["file"]) == ([], "contract/v1.yaml")
    assert found["items"] > 20


def test_broken_file_is_refused_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "contract.yaml"
    file.write_text("contract: a\nversions: [one]\ntiers: []\nitems:\n- id: node.x\n  level: MOST\n")
    done = gpufleet("contract", "lint", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}:6: node.x: level: " in done.stderr
    as_json = gpufleet("contract", "lint", str(file), "--json")
    assert as_json.returncode == 2
    problems = json.loads(as_json.stdout)["problems"]
    assert {"line", "item", "field", "reason"} == problems[0].keys()
    assert len(problems) == len(done.stderr.splitlines())


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 9000, b"a: &x 1\nb: *x\n", b"\x1b[2J: 1\n"])
def test_hostile_file_is_no_traceback(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "contract.yaml"
    file.write_bytes(content)
    done = gpufleet("contract", "lint", str(file))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


def test_missing_file_is_named(tmp_path: Path) -> None:
    done = gpufleet("contract", "lint", str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert "none.yaml" in done.stderr


def test_contract_is_shown_in_each_format() -> None:
    table = gpufleet("contract", "show").stdout
    document = json.loads(gpufleet("contract", "show", "--format", "json").stdout)
    page = gpufleet("contract", "show", "--format", "md").stdout
    assert page == (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    for item in document["items"]:
        assert f"{item['id']}\t{item['level']}\t" in table
        assert f"### {item['id']}\n" in page


def test_items_of_a_node_are_judged_by_the_doctor() -> None:
    done = gpufleet("contract", "check", "--on", "node", "--json")
    assert done.returncode in (0, 1)
    found = {one["item"]: one["status"] for one in json.loads(done.stdout)}
    assert found.keys() == {"node.disk_queue", "permission.devices", "freshness.clock_synchronised"}
    assert (done.returncode == 1) == ("not_met" in (found["node.disk_queue"], found["permission.devices"]))


def report_of(*reported: int, spec: ClusterSpec = SPEC) -> ConformanceReport:
    """Return the report of a cluster of two machines with these numbers of reporting GPUs, of 8 each."""
    machines = [
        MachineGroup(
            machine(reporting_gpus=count, identified_gpus=count, usage_gpus=count, condition_gpus=count), (name,)
        )
        for name, count in zip(("node-1", "node-2"), reported, strict=True)
    ]
    return conformance_report(
        CONTRACT, judge_cluster(CONTRACT, cluster(*machines, spec=spec)), ClusterHistory(), age_seconds=9.0
    )


COMPLETE = report_of(8, 8)
HOSTS = conformance_report(CONTRACT, judge_cluster(CONTRACT, bare()), age_seconds=9.0)


@pytest.mark.parametrize(
    ("report", "options", "code"),
    [
        (COMPLETE, (), 0),
        (COMPLETE, ("--tier", "3"), 0),
        (COMPLETE, ("--tier", "4"), 1),
        (HOSTS, ("--tier", "4"), 0),
        (HOSTS, ("--tier", "0"), 0),
        (HOSTS, ("--tier", "3"), 1),
        (report_of(8, 7), (), 1),
        (report_of(8, 7), ("--tier", "1"), 0),
        (report_of(8, 8, spec=msgspec.structs.replace(SPEC, contact=None)), ("--tier", "0"), 1),
        (conformance_report(CONTRACT, judge_cluster(CONTRACT, cluster(machines=None))), (), 1),
    ],
    ids=[
        "visible",
        "tier",
        "higher tier",
        "hosts",
        "hosts without",
        "tier of Kubernetes",
        "lost GPU",
        "lower tier",
        "no contact",
        "not judged",
    ],
)
def test_check_on_a_hub_fails_below_the_tier(
    agent_pages: dict[str, tuple[int, bytes]],
    agent_url: str,
    report: ConformanceReport,
    options: tuple[str, ...],
    code: int,
) -> None:
    agent_pages["/v1/clusters/rack-7/contract"] = (200, msgspec.json.encode(report))
    done = gpufleet("contract", "check", "--on", "hub", "rack-7", "--hub", agent_url, *options)
    assert (done.returncode, done.stderr.count("Traceback")) == (code, 0)
    assert "ownership.contact" in done.stdout
    as_json = gpufleet("contract", "check", "--on", "hub", "rack-7", "--hub", agent_url, "--json", *options)
    assert (as_json.returncode, json.loads(as_json.stdout)["metadata"]["cluster"]) == (code, "east")


@pytest.mark.parametrize(
    "arguments", [("hub",), ("node", "rack-7"), ("cluster", "rack-7"), ("hub", "rack-7", "--kubeconfig", "file")]
)
def test_check_on_a_place_has_its_own_arguments(arguments: tuple[str, ...]) -> None:
    done = gpufleet("contract", "check", "--on", *arguments)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "waiver", ["freshness.age", "freshness.age:soon:x", "x:2030-01-01:y", "freshness.age:2030-01-01:"]
)
def test_invalid_waiver_is_rejected(waiver: str) -> None:
    done = gpufleet("cluster", "put", "rack-7", "--waive", waiver)
    assert done.returncode == 2
    assert "--waive" in done.stderr
