"""Rendered rule files: both formats, the selection of inputs, and the command."""

from pathlib import Path

import msgspec
import pytest
import yaml

from gpufleet.rules.render import RulesFormat, render_rules
from gpufleet.rules.rule import AlertRule, RecordingRule, RuleInput
from gpufleet.rules.selection import rule_groups
from tests.support.command import gpufleet

EVERYTHING = rule_groups(list(RuleInput))


@pytest.mark.parametrize("output", RulesFormat)
def test_document_has_every_rule_unchanged(output: RulesFormat) -> None:
    document = yaml.safe_load(render_rules(EVERYTHING, output))
    if output is RulesFormat.PROMETHEUSRULE:
        assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
        document = document["spec"]
    assert [group["name"] for group in document["groups"]] == [group.name for group in EVERYTHING]
    for group, known in zip(document["groups"], EVERYTHING, strict=True):
        for rule, one in zip(group["rules"], known.rules, strict=True):
            assert rule["expr"] == one.expr
            if isinstance(one, AlertRule):
                assert (rule["alert"], rule.get("for", ""), rule["labels"]["severity"]) == (
                    one.alert,
                    one.wait,
                    one.severity,
                )
                assert rule["annotations"]["summary"] == one.summary
            else:
                assert (rule["record"], rule.get("labels", {})) == (one.record, one.labels)


def test_names_of_series_have_three_parts_and_are_unique() -> None:
    rules = [rule for group in EVERYTHING for rule in group.rules if isinstance(rule, RecordingRule)]
    assert all(len(rule.record.split(":")) == 3 for rule in rules)
    keys = [(rule.record, *rule.labels.items()) for rule in rules]
    assert len(keys) == len(set(keys))


def test_rules_for_honored_labels_are_shorter_and_record_the_same_series() -> None:
    short = rule_groups(list(RuleInput), honor_labels=True)
    for group, known in zip(short, EVERYTHING, strict=True):
        assert group.name == known.name
        for rule, one in zip(group.rules, known.rules, strict=True):
            assert msgspec.structs.replace(rule, expr=one.expr) == one
    native = [rule.expr for group in short if "native" in group.name for rule in group.rules]
    assert not [expr for expr in native if "exported_" in expr]
    assert len("".join(native)) < 0.7 * len("".join(rule.expr for group in EVERYTHING[:2] for rule in group.rules))


def test_alerts_link_the_published_runbooks() -> None:
    def links(runbook_url: str, annotation: str) -> list[str]:
        document = yaml.safe_load(render_rules(EVERYTHING, runbook_url=runbook_url))
        rules = [rule for group in document["groups"] for rule in group["rules"] if "alert" in rule]
        assert all(rule["annotations"].keys() == {"summary", annotation} for rule in rules)
        return [rule["annotations"][annotation] for rule in rules]

    page = "https://wiki.example/runbooks?team=gpu"
    assert links("", "runbook")[0] == "docs/runbooks.md#gpulost"
    assert links(page, "runbook_url") == [text.replace("docs/runbooks.md", page) for text in links("", "runbook")]


def test_command_selects_inputs_and_kinds(tmp_path: Path) -> None:
    done = gpufleet("rules", "print", "--input", "native,kubevirt", "--only", "alerts", "--format", "prometheusrule")
    groups = yaml.safe_load(done.stdout)["spec"]["groups"]
    assert [group["name"] for group in groups] == ["gpufleet-native-alerts", "gpufleet-kubevirt-alerts"]
    file = tmp_path / "rules.yml"
    assert gpufleet("rules", "print", "--only", "recording", "--output", str(file)).returncode == 0
    assert [group["name"] for group in yaml.safe_load(file.read_text())["groups"]] == ["gpufleet-native"]


def test_command_prints_rules_for_honored_labels_and_published_runbooks() -> None:
    done = gpufleet("rules", "print", "--honor-labels", "--runbook-url", "https://wiki.example/runbooks")
    groups = rule_groups([RuleInput.NATIVE], honor_labels=True)
    assert done.stdout == render_rules(groups, runbook_url="https://wiki.example/runbooks")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--input", "netdata"], "netdata"),
        (["--input", "kubevirt", "--honor-labels"], "--honor-labels"),
        (["--runbook-url", "wiki.example/runbooks"], "--runbook-url"),
        (["--runbook-url", "https://wiki.example/{{ $labels.node }}"], "--runbook-url"),
        (["--runbook-url", "https://wiki.example/runbooks#gpus"], "--runbook-url"),
    ],
)
def test_wrong_option_is_refused_by_name(arguments: list[str], named: str) -> None:
    done = gpufleet("rules", "print", *arguments)
    assert done.returncode == 1
    assert named in done.stderr
