"""`gpufleet onboard`: plans without a hub, and wrong combinations. tests/docs/test_onboarding.py runs it with a hub."""

import datetime as dt
import json
import re

import msgspec
import pytest

from gpufleet.fleet.contract.starting_points import StartingPointName
from gpufleet.model.cluster import Cluster, ClusterRecord, ClusterSpec
from gpufleet.model.contract import ClusterVisibility, ContractSummary, Tier
from tests.support.command import gpufleet


def test_plan_names_steps_egress_and_items() -> None:
    done = gpufleet("onboard", "--tier", "2", "--from", "all-smi", "rack-7")
    assert (done.returncode, done.stderr) == (0, "Contract: version 1.0.\n")
    for text in ("docs/onboarding/all-smi.md", "gpufleet cluster put rack-7 ", "8470", "cluster.collector"):
        assert text in done.stdout
    assert "done" not in done.stdout  # no hub was queried


def test_json_has_every_field() -> None:
    found = json.loads(gpufleet("onboard", "--tier", "4", "--json").stdout)
    assert (found["starting_point"], found["tier"], found["percent"]) == ("bare-metal", 4, None)
    assert {one["id"] for one in found["items"]} > {"node.agent", "metadata.registration"}


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--tier", "3", "--from", "slurm"), "--tier"),
        (("--tier", "5"), "--tier"),
        (("--tier", "4", "--from", "nothing"), "--from"),
        (("--tier", "4", "--hub", "http://127.0.0.1:1"), "--hub"),
    ],
)
def test_wrong_combination_is_a_usage_error(arguments: tuple[str, ...], option: str) -> None:
    done = gpufleet("onboard", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert option in done.stderr


def test_unreachable_hub_is_an_error() -> None:
    done = gpufleet("onboard", "--tier", "4", "--hub", "http://127.0.0.1:1", "rack-7")
    assert (done.returncode, done.stdout) == (1, "")
    assert "http://127.0.0.1:1" in done.stderr


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (None, "Verdict: not judged yet. The hub judges once a minute."),
        (
            ContractSummary(
                at=dt.datetime(2026, 3, 1, tzinfo=dt.UTC),
                visibility=ClusterVisibility.PARTLY,
                tier=Tier.AGENT,
                reached_tier=Tier.COLLECTOR,
                percent=87.0,
                not_visible=("freshness.age", "ownership.contact"),
                gpus_not_visible=2,
                machines_without_count=0,
            ),
            (
                "Verdict: partly visible, reached tier 1, 87 % of MUST items met; "
                "not met: freshness.age, ownership.contact."
            ),
        ),
    ],
)
def test_verdict_of_the_hub_is_shown(
    agent_pages: dict[str, tuple[int, bytes]], agent_url: str, verdict: ContractSummary | None, line: str
) -> None:
    cluster = Cluster(id="rack-7", known_since=dt.datetime(2026, 3, 1, tzinfo=dt.UTC), spec=ClusterSpec(team="infra"))
    record = ClusterRecord(cluster=cluster, served=True, configured=False, contract=verdict)
    agent_pages["/v1/clusters/rack-7"] = (200, msgspec.json.encode(record))
    done = gpufleet("onboard", "--tier", "3", "rack-7", "--hub", agent_url)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == line
    as_json = json.loads(gpufleet("onboard", "--tier", "3", "rack-7", "--hub", agent_url, "--json").stdout)
    assert (as_json["verdict"] is None) == (verdict is None)


def test_option_lists_every_starting_point() -> None:
    choices = re.search(r"--from <(.*?)>", gpufleet("onboard", "--help", env={"COLUMNS": "200"}).stdout)
    assert choices is not None
    assert choices[1].split("|") == [one.value for one in StartingPointName]
