"""Rendered rule files: both formats, the selection of inputs, and the command."""

from pathlib import Path

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


def test_command_selects_inputs_and_kinds(tmp_path: Path) -> None:
    done = gpufleet("rules", "print", "--input", "native,kubevirt", "--only", "alerts", "--format", "prometheusrule")
    groups = yaml.safe_load(done.stdout)["spec"]["groups"]
    assert [group["name"] for group in groups] == ["gpufleet-native-alerts", "gpufleet-kubevirt-alerts"]
    file = tmp_path / "rules.yml"
    assert gpufleet("rules", "print", "--only", "recording", "--output", str(file)).returncode == 0
    assert [group["name"] for group in yaml.safe_load(file.read_text())["groups"]] == ["gpufleet-native"]


def test_unknown_input_is_refused() -> None:
    done = gpufleet("rules", "print", "--input", "netdata")
    assert done.returncode == 1
    assert "netdata" in done.stderr
