"""Every recording rule has a case with its expected result."""

import re

from gpufleet.rules.rule import RecordingRule, RuleInput
from gpufleet.rules.selection import rule_groups
from tests.rules import test_dcgm, test_kubevirt, test_native, test_queries

MODULES = (test_native, test_dcgm, test_kubevirt, test_queries)
OF_ALERTS = {
    "gpu:gpufleet_xid:max",
    "gpu:dcgm_last_xid:max",
    "gpu:dcgm_fault:timestamp_seconds",
    "gpu:gpufleet_fault_reading:max",
    "gpu:gpufleet_gpu_nvlinks_active:max",
    "gpu:gpufleet_gpu_model:info",
    "gpu:gpufleet_gpu_state:info",
    "gpu:gpufleet_gpu_working:info",
}
"""Series that are tested by the alerts that read them."""


def test_each_recorded_series_has_an_expected_result() -> None:
    rules = [rule for group in rule_groups(list(RuleInput)) for rule in group.rules]
    recorded = {rule.record for rule in rules if isinstance(rule, RecordingRule)}
    results = [text for module in MODULES for case in module.cases() for one in case.expected for text in one.result]
    tested = {re.split(r"[{]", text)[0] for text in results} | OF_ALERTS
    assert recorded - tested == set()
