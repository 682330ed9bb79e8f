"""Reference page of the rules about the fleet."""

from collections.abc import Iterable, Mapping

from gpufleet.fleet.rules.inputs import INPUTS, TEXTS
from gpufleet.fleet.rules.rule import FindingRule, Hides, RuleFamily, Threshold
from gpufleet.fleet.rules.table import RULES
from gpufleet.fleet.rules.tracker import FLAP_OPENINGS, FLAP_SECONDS, GONE_SECONDS, MAX_STEP_SECONDS, MAX_TRACKED
from gpufleet.model.finding import RuleScope
from gpufleet.model.xid import TABLE_DATE, TABLE_SOURCE

_HIDES = {
    Hides.BELOW: "While it fires, all other findings of the subject and of its parts are hidden.",
    Hides.FRESHNESS: f"While it fires, findings of the family {RuleFamily.FRESHNESS} are hidden.",
}


def render_findings_reference(simulations: Mapping[str, str], outages: Iterable[tuple[str, str, int]]) -> str:
    """Return the page as Markdown.

    Args:
        simulations: rule id to the fault that shows the rule, as a list item.
        outages: kinds of missing, partial or stale data, with rule and minutes until its finding opens.
    """
    lines = [
        "# Findings",
        "",
        "Rendered from the rules by `make docs`; do not edit.",
        "",
        "The hub evaluates the rules once a minute (`findings.interval_seconds`). A rule judges every subject of its",
        "scope: it fires, the subject is healthy, or the verdict is unknown.",
        "",
        "- A finding opens after the rule fired for `pending_seconds`, and closes after `closing_seconds` of health.",
        f"  Time without judgements, and more than {MAX_STEP_SECONDS:g} s between two of them, does not count.",
        "- An unknown verdict neither opens nor closes a finding. The verdict about an open finding is also unknown",
        "  while inputs of its evidence are missing and the rule would fire with their last values.",
        "- A cause hides its effects: while its rule fires or its finding is open, their verdicts are unknown.",
        f"- A finding that opens {FLAP_OPENINGS} times within {FLAP_SECONDS:g} s closes only after this time.",
        "- The findings of a retired subject are closed.",
        f"- A finding closes after {GONE_SECONDS / 86400:g} days without its subject, such as a removed GPU.",
        f"- At most {MAX_TRACKED:,} findings of machines, GPUs and allocations are tracked. Half of that number is",
        "  divided equally between the clusters, and all clusters share the other half. Findings of the hub, of",
        "  clusters and of senders are always tracked.",
        "- The severity of a finding rises by escalation and never falls while the finding is open.",
        "- Evidence has values of the subject only.",
        "",
        "Thresholds, `pending_seconds`, `closing_seconds` and `escalation_seconds` can be set in the configuration of",
        "the hub:",
        "",
        "```toml",
        '[findings.rules."node.missing"]',
        "intervals = 4",
        "```",
        "",
        "Simulated faults are for [`simulate fleet --faults`](../simulate.md#faults). The times until findings",
        "open were measured on a simulated clock, with agents that report every 30 s. Faults on a test hub are states",
        "of the hub, its registry or its imports, which no fault of the fleet makes. Each fault was shown to open the",
        "finding of its rule within the given time and no others than given. The end of the fault closes the finding.",
        "",
        f"Actions of XIDs are those of [NVIDIA's catalogue]({TABLE_SOURCE}) of {TABLE_DATE}.",
    ]
    lines += ["", "## Time until outages are reported", ""]
    lines += ["With all defaults, agents that report every 30 s, and evaluations each minute:", ""]
    lines += ["| outage | finding | minutes |", "|---|---|---|"]
    lines += [f"| {text} | `{rule}` | {minutes} |" for text, rule, minutes in outages]
    for family in RuleFamily:
        lines += ["", f"## {family[0].upper()}{family[1:]}"]
        for rule in RULES:
            if rule.family is family:
                lines += ["", *_rule(rule), f"- {simulations[rule.id]}"]
    lines += ["", "## Inputs", "", "An input that the hub does not have is missing."]
    for scope in RuleScope:
        lines += ["", *_inputs(scope)]
    return "\n".join(lines) + "\n"


def _rule(rule: FindingRule) -> Iterable[str]:
    yield from (f"### {rule.id}", "", rule.explanation, "", f"- Action: {rule.action}")
    yield f"- Scope {rule.scope}, severity {rule.severity}{_escalation(rule)}."
    opens = f"after {_duration(rule.pending_seconds)}" if rule.pending_seconds else "at once"
    yield f"- Opens {opens}, closes after {_duration(rule.closing_seconds)} of health."
    if rule.hides in _HIDES:
        yield f"- {_HIDES[rule.hides]}"
    if not rule.can_be_hidden:
        yield "- No other finding hides it."
    yield f"- Inputs: {', '.join(f'`{name}`' for name in (*rule.inputs, *rule.texts))}."
    yield f"- Unknown: {rule.unknown_when}"
    yield from (f"- `{one.name}`, by default {_value(one)}: {one.help}" for one in rule.thresholds)


def _escalation(rule: FindingRule) -> str:
    if rule.escalation_seconds:
        return f", {rule.escalated_severity} after {_duration(rule.escalation_seconds)} of firing"
    return f", then {rule.escalated_severity}" if rule.escalation is not None else ""


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _inputs(scope: RuleScope) -> Iterable[str]:
    yield from (f"### Scope {scope}", "", "| input | unit | meaning |", "|---|---|---|")
    yield from (f"| `{one.name}` | {one.unit} | {one.help} |" for one in INPUTS[scope].values())
    yield from (f"| `{name}` | text | {help_} |" for name, help_ in TEXTS[scope].items())


def _value(threshold: Threshold) -> str:
    if threshold.unit == "bytes":
        return f"{threshold.default / 2**20:g} MiB"
    return f"{threshold.default:g}" + ("" if threshold.unit in ("", "ratio") else f" {threshold.unit}")
