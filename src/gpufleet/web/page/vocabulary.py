"""Vocabulary of the web page: units and help of metrics, rules, and a sentence for each source, reason and state."""

from collections.abc import Mapping
from typing import Any

from gpufleet import __version__
from gpufleet.exporters.themes import THEMES, theme_of
from gpufleet.fleet.rules.table import RULES
from gpufleet.model.absence import REASON_TEXTS
from gpufleet.model.catalogue import ROWS
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.finding import FindingState, Severity
from gpufleet.model.liveness import State
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.model.reading import Provenance
from gpufleet.model.view import Scope

SOURCE_TEXTS: Mapping[Provenance, str] = {
    Provenance.HOST_LOCAL_PROBE: "Measured on the machine itself by gpufleet's agent.",
    Provenance.HOST_NETDATA: "Measured on the machine itself by the operator's Netdata.",
    Provenance.SLICE_GUEST: "Measured inside your virtual machine.",
    Provenance.SLICE_VGPU_HOST: "Measured by the host for your own vGPU instances only. Your virtual machine does not "
    "report.",
    Provenance.IMPORTED: "Measured by another exporter and imported.",
    Provenance.UNAVAILABLE: "No source has a current answer. Readings of a host are never shown in place of yours.",
}
"""Sentence for each source of an answer."""

STATE_TEXTS: Mapping[State, str] = {
    State.NEVER_SEEN: "Expected, and never reported.",
    State.LIVE: "Reports in time.",
    State.LATE: "Reports are late.",
    State.STALE: "No report for so long that its values are no longer current.",
    State.LOST: "No report for so long that it is excluded from totals.",
    State.RETIRED: "Retired by an operator.",
}
"""Sentence for each liveness state."""

SCOPE_TEXTS: Mapping[Scope, str] = {
    Scope.OWN: "Reading of the device itself.",
    Scope.PARENT: "Reading of the whole GPU that contains this device.",
    Scope.SHARED_DEVICE: "Reading of the whole device, which several holders share.",
}
"""Sentence for each scope of a reading."""

SEVERITY_TEXTS: Mapping[Severity, str] = {
    Severity.CRITICAL: "Needs action now.",
    Severity.WARNING: "Needs action soon.",
    Severity.INFO: "For information.",
}
"""Sentence for each severity."""

FINDING_STATE_TEXTS: Mapping[FindingState, str] = {
    FindingState.OPEN: "The rule fires, or its subject has recovered a short time ago.",
    FindingState.UNKNOWN: "Not closed. An input is missing, or another finding explains this one.",
    FindingState.CLOSED: "The subject is healthy again, or no longer expected.",
}
"""Sentence for each state of a finding."""


def vocabulary() -> dict[str, Any]:
    """Return the document that the page loads at its start."""
    of_processes = {
        name: {"unit": reading.unit, "theme": "processes", "help": reading.help}
        for name, reading in PROCESS_READINGS.items()
    }
    of_catalogue = {
        metric.name: {
            "unit": metric.unit,
            "theme": theme_of(metric.name),
            "help": metric.help,
            "subjects": metric.subjects,
        }
        for metric in ROWS
    }
    return {
        "version": __version__,
        "metrics": {**of_processes, **of_catalogue},
        "themes": THEMES,
        "sources": SOURCE_TEXTS,
        "reasons": REASON_TEXTS,
        "states": STATE_TEXTS,
        "scopes": SCOPE_TEXTS,
        "severities": SEVERITY_TEXTS,
        "finding_states": FINDING_STATE_TEXTS,
        "rules": [rule.id for rule in RULES],
        "clock_events": dict(CLOCK_EVENT_REASONS),
    }
