"""Rules and real pages: every input series is on a page, and Prometheus evaluates every rule over them."""

import datetime as dt
import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.delivery.export import AgentStats
from gpufleet.model.holdings import DeviceHolders, Holder, HolderKind, HolderState
from gpufleet.model.view import Side
from gpufleet.rules.queries import ATTRIBUTION_QUERIES, VGPU_QUERIES
from gpufleet.rules.render import render_rules
from gpufleet.rules.rule import RecordingRule, RuleInput
from gpufleet.rules.selection import rule_groups
from tests.support.everything import snapshot_of_everything
from tests.support.pages import agent_page
from tests.support.serving import serving
from tests.support.snapshots import example_guest, holding
from tests.support.tsdb import prometheus
from tests.support.waiting import wait_until

PAGES = Path(__file__).parents[1] / "data" / "kubernetes"
RAW = re.compile(r"(?<![\w:\"])(?:gpufleet|DCGM|kube|kubevirt)_\w+(?![\w:])")
DIALECTS = ("gpufleet", "dcgm-exporter", "kubevirt")


def page() -> bytes:
    """Return an agent's page with every metric, a held GPU and a virtual machine, and the pages of a cluster."""
    everything = snapshot_of_everything(dt.datetime.now(dt.UTC), 0)
    pod = Holder(kind=HolderKind.POD, id="6f1e-1", name="web-1", namespace="ml")
    holders = DeviceHolders(state=HolderState.HELD, holdings=(holding(pod),))
    gpu = everything.devices[0]
    inside = msgspec.structs.replace(gpu, key="gpu/GPU-9", uuid="GPU-9", side=Side.GUEST)
    guest = msgspec.structs.replace(example_guest(), devices=(inside,))
    devices = (msgspec.structs.replace(gpu, holders=holders), *everything.devices[1:])
    snapshot = msgspec.structs.replace(everything, devices=devices, guests=(guest,))
    own = agent_page(snapshot, AgentStats(started_at=1, lanes={}), DIALECTS)
    return own + b"".join((PAGES / name).read_bytes() for name in ("kube-state-metrics.txt", "kubevirt-metrics.txt"))


def expressions() -> list[str]:
    groups = rule_groups(list(RuleInput))
    queries = [query.expr for query in (*ATTRIBUTION_QUERIES, *VGPU_QUERIES)]
    return [*(rule.expr for group in groups for rule in group.rules), *queries]


def test_every_input_series_is_on_a_page() -> None:
    exported = {series.name for series in TextParser().parse(page()).series}
    names = {name for expr in expressions() for name in RAW.findall(expr)}
    assert len(names) > 40
    assert names - exported == set()


def test_every_recorded_series_in_a_query_is_recorded() -> None:
    recorded = {
        rule.record for group in rule_groups(list(RuleInput)) for rule in group.rules if isinstance(rule, RecordingRule)
    }
    read = {name for expr in expressions() for name in re.findall(r"(?<!\w)[a-z]+:\w+:\w+", expr)}
    assert read - recorded == set()


def test_each_input_alone_reads_only_its_own_series() -> None:
    prefixes = {RuleInput.NATIVE: "gpufleet_", RuleInput.DCGM: "DCGM_", RuleInput.KUBEVIRT: "kube"}
    for source, prefix in prefixes.items():
        groups = rule_groups([source])
        names = {name for group in groups for rule in group.rules for name in RAW.findall(rule.expr)}
        assert {name for name in names if not name.startswith(prefix)} == set()
        recorded = {rule.record for group in groups for rule in group.rules if isinstance(rule, RecordingRule)}
        read = {name for group in groups for rule in group.rules for name in re.findall(r"[a-z]+:\w+:\w+", rule.expr)}
        assert read - recorded == set()


@pytest.mark.system
@pytest.mark.timeout(180)
def test_prometheus_evaluates_every_rule(peer: Callable[[str], Path], tmp_path: Path) -> None:
    rules = render_rules(rule_groups(list(RuleInput))).replace("interval: 30s", "interval: 2s")
    with serving(page) as target, prometheus(peer("prometheus"), tmp_path / "prometheus", target, rules) as database:

        def evaluated() -> list[Any]:
            with urllib.request.urlopen(f"{database.url}/api/v1/rules", timeout=30) as answer:
                groups = json.load(answer)["data"]["groups"]
            return [rule for group in groups for rule in group["rules"]]

        def results(name: str) -> list[dict[str, str]]:
            return [sample.labels for sample in database.now(name)]

        wait_until(lambda: results("pod:gpufleet_gpu_power_watts:sum"), seconds=60, what="a roll-up of a pod")
        wait_until(lambda: results("vmi:dcgm_gpu_power_watts:sum"), seconds=60, what="a roll-up of the last group")
        wait_until(lambda: all(rule["health"] != "unknown" for rule in evaluated()), seconds=60, what="all rules")
        assert [(rule["name"], rule["lastError"]) for rule in evaluated() if rule["health"] != "ok"] == []
        (held,) = results("pod:gpufleet_gpu_power_watts:sum")
        assert (held["namespace"], held["pod"], held["share"]) == ("ml", "web-1", "exclusive")
        (inside,) = results("vmi:gpufleet_gpu_power_watts:sum")
        assert (inside["namespace"], inside["name"]) == ("ml", "train-0")
        assert len(results("node:gpufleet_gpus:count")) == 1
