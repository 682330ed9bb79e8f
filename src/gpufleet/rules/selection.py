"""Selection of rules by input."""

from collections.abc import Collection

from gpufleet.rules.alerts import dcgm_alerts, kubevirt_alerts, native_alerts
from gpufleet.rules.dcgm import dcgm_rules
from gpufleet.rules.devices import AgentSeries
from gpufleet.rules.kubevirt import kubevirt_rules
from gpufleet.rules.native import native_rules
from gpufleet.rules.rule import AlertRule, RecordingRule, RuleGroup, RuleInput

RECORDING_INTERVAL, ALERT_INTERVAL = "30s", "30s"


def rule_groups(
    inputs: Collection[RuleInput], *, recording: bool = True, alerts: bool = True, honor_labels: bool = False
) -> tuple[RuleGroup, ...]:
    """Return the groups of the inputs. Rules that combine inputs are in the group of the last one.

    Args:
        inputs: exporters whose series the same Prometheus has.
        recording: include recording rules.
        alerts: include alerts; they read the recording rules.
        honor_labels: whether all scrapes of agents keep their labels.
    """
    series = AgentSeries(honor_labels)
    groups: list[RuleGroup] = []
    for source in RuleInput:  # in this order, for rules that use another input's series
        if source not in inputs:
            continue
        if recording:
            name = f"gpufleet-{source}"
            groups.append(RuleGroup(name=name, interval=RECORDING_INTERVAL, rules=_recording(source, inputs, series)))
        if alerts:
            name = f"gpufleet-{source}-alerts"
            groups.append(RuleGroup(name=name, interval=ALERT_INTERVAL, rules=_alerts(source, inputs, series)))
    return tuple(groups)


def _recording(source: RuleInput, inputs: Collection[RuleInput], series: AgentSeries) -> tuple[RecordingRule, ...]:
    match source:
        case RuleInput.NATIVE:
            return native_rules(series)
        case RuleInput.DCGM:
            return dcgm_rules(inputs)
        case RuleInput.KUBEVIRT:
            return kubevirt_rules(inputs)


def _alerts(source: RuleInput, inputs: Collection[RuleInput], series: AgentSeries) -> tuple[AlertRule, ...]:
    match source:
        case RuleInput.NATIVE:
            return native_alerts(series)
        case RuleInput.DCGM:
            return dcgm_alerts()
        case RuleInput.KUBEVIRT:
            return kubevirt_alerts(with_gpu_data=len(set(inputs)) > 1)
