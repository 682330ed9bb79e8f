"""Rules about faults of GPUs and their machines: state, driver, memory, links, heat and bus. Pure."""

import numpy as np

from gpufleet.fleet.rules.logic import Column, all_of, any_known, any_of, at_least, over, under
from gpufleet.fleet.rules.rule import Columns, FindingRule, Hides, Limits, RuleFamily, Threshold
from gpufleet.model.finding import RuleScope, Severity

_FAMILY = RuleFamily.FAULTS


def _flag(
    rule_id: str,
    severity: Severity,
    name: str,
    explanation: str,
    action: str,
    unknown_when: str,
    *,
    pending_seconds: float = 120,
    texts: tuple[str, ...] = (),
    hides: Hides = Hides.NOTHING,
) -> FindingRule:
    """Return the rule of a GPU that fires while an input of it is 1."""
    return FindingRule(
        id=rule_id,
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=severity,
        inputs=(name,),
        condition=lambda facts, _: at_least(facts[name], 1),
        pending_seconds=pending_seconds,
        explanation=explanation,
        action=action,
        unknown_when=unknown_when,
        texts=texts,
        hides=hides,
    )


def _has_inactive_links(facts: Columns, _: Limits) -> Column:
    """Compare with the machine's GPUs of the same model, and with the day before.

    A GPU without active links is compared with the day before only: boards without a bridge have none. Equality with
    the peers is no proof of health, because all of them can have lost links.
    """
    active = facts["nvlinks_active"]
    below_peers = all_of(over(active, 0), under(active, facts["nvlinks_of_peers"]))
    return any_of(np.nan_to_num(below_peers), under(active, facts["nvlinks_day_before"]))


def _is_link_degraded(facts: Columns, limits: Limits) -> Column:
    """Compare width always, and generation under load only: the link saves power by a lower generation."""
    slow = all_of(
        over(facts["utilization_ratio"], limits["utilization"]),
        under(facts["pcie_generation"], facts["pcie_generation_max"]),
    )
    return any_known(under(facts["pcie_width"], facts["pcie_width_max"]), slow)


_NO_STATE = "The state of the GPU is not reported."
_NO_MEMORY_STATE = "The GPU, its driver or a guest does not report it."

_STATE_RULES = (
    FindingRule(
        id="node.gpu_stack_broken",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("driver_works",),
        condition=lambda facts, _: under(facts["driver_works"], 1),
        texts=("driver_state", "last_error"),
        pending_seconds=60,
        explanation="The driver or its library does not work on the machine. Its GPUs stay in the inventory, without "
        "readings.",
        action="Act on `driver_state`: install, load or update the driver, and restart after an update.",
        unknown_when="No reader of the machine uses the driver.",
        hides=Hides.BELOW,
    ),
    FindingRule(
        id="node.fabric_down",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("fabric_manager_runs", "nvswitch_links"),
        condition=lambda facts, _: all_of(over(facts["nvswitch_links"], 0), under(facts["fabric_manager_runs"], 1)),
        pending_seconds=120,
        explanation="The GPUs have links to an NVSwitch, but the Fabric Manager does not run.",
        action="Start `nvidia-fabricmanager`. Its version must be that of the driver.",
        unknown_when="The state of the service or the number of links is missing.",
    ),
    _flag(
        *("gpu.reset_required", Severity.CRITICAL, "reset_required", "The GPU does not respond until it is reset."),
        *("Drain the machine and reset the GPU.", _NO_STATE),
        pending_seconds=60,
        hides=Hides.BELOW,
    ),
    _flag(
        *("gpu.hung", Severity.CRITICAL, "hung", "A driver call about the GPU does not return."),
        *("Drain and restart the machine.", _NO_STATE),
        hides=Hides.BELOW,
    ),
    _flag(
        *("gpu.unreadable", Severity.WARNING, "unreadable", "No reading of the GPU has a value."),
        *("Run `gpufleet why` on the machine.", _NO_STATE),
        pending_seconds=600,
        hides=Hides.BELOW,
    ),
    _flag(
        *("gpu.recovery_action", Severity.WARNING, "recovery_needed", "The driver recommends a recovery action."),
        *("Run the action in the evidence.", "The driver is too old to recommend actions."),
        pending_seconds=300,
        texts=("recovery_action",),
    ),
)

_MEMORY_RULES = (
    FindingRule(
        id="gpu.ecc_uncorrected",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("uncorrected_errors",),
        condition=lambda facts, _: over(facts["uncorrected_errors"], 0),
        explanation="The memory of the GPU had uncorrected ECC errors in the last hour.",
        action="Restart the application, and reset the GPU if a remap is pending.",
        unknown_when="ECC is off, or the GPU has none.",
    ),
    _flag(
        *("gpu.row_remap_failed", Severity.CRITICAL, "row_remap_failed", "A memory row could not be remapped."),
        *("Take the GPU out of service and contact the vendor.", _NO_MEMORY_STATE),
        pending_seconds=0,
    ),
    _flag(
        *(
            "gpu.row_remap_pending",
            Severity.WARNING,
            "row_remap_pending",
            "A memory row will be remapped by a reset.",
        ),
        *("Reset the GPU when it is free.", _NO_MEMORY_STATE),
    ),
    _flag(
        *("gpu.repair_pending", Severity.WARNING, "repair_pending", "A part of the GPU is repaired at the next reset."),
        *("Reset the GPU when it is free.", _NO_MEMORY_STATE),
    ),
    _flag(
        *("gpu.unrepairable_memory", Severity.CRITICAL, "unrepairable_memory", "The memory cannot be repaired."),
        *("Replace the board.", _NO_MEMORY_STATE),
        pending_seconds=0,
    ),
    FindingRule(
        id="gpu.retired_pages",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("retired_pages",),
        condition=lambda facts, limits: at_least(facts["retired_pages"], limits["pages"]),
        thresholds=(Threshold("pages", 10, "pages", "Retired memory pages."),),
        explanation="The GPU retired many memory pages.",
        action="Plan the replacement of the board.",
        unknown_when="The GPU remaps rows instead, or has no ECC.",
    ),
)

_LINK_RULES = (
    FindingRule(
        id="gpu.nvlink_down",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("nvlinks_active", "nvlinks_of_peers", "nvlinks_day_before"),
        condition=_has_inactive_links,
        pending_seconds=300,
        explanation="The GPU has fewer active NVLinks than its peers on the machine, or than a day before.",
        action="Check bridges, switches and the Fabric Manager, then reset the GPU.",
        unknown_when="The GPU has no NVLinks, MIG mode hides them, or the hub started less than a day before and "
        "no open finding has the number of links.",
    ),
    _flag(
        *("gpu.fabric_unhealthy", Severity.CRITICAL, "fabric_unhealthy", "The GPU is unhealthy in its NVLink fabric."),
        *("Check the Fabric Manager or the switches of the rack.", "The GPU is not part of a fabric."),
        pending_seconds=300,
    ),
    FindingRule(
        id="gpu.pcie_degraded",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max", "utilization_ratio"),
        condition=_is_link_degraded,
        thresholds=(Threshold("utilization", 0.1, "ratio", "Utilisation from which the generation is compared."),),
        pending_seconds=600,
        explanation="The PCIe link has fewer lanes than GPU and slot support, or a lower generation under load.",
        action="Reseat the board or its riser, and check the slot's configuration.",
        unknown_when="The link is not reported, as in a guest.",
    ),
    FindingRule(
        id="gpu.throttled",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("slowdown_starts", "hardware_slowdown", "temperature_margin_celsius", "slowdown_margin_celsius"),
        condition=lambda facts, limits: any_known(
            at_least(facts["slowdown_starts"], limits["starts"]),
            at_least(facts["hardware_slowdown"], 1),
            under(facts["temperature_margin_celsius"], facts["slowdown_margin_celsius"]),
        ),
        thresholds=(Threshold("starts", 6, "", "Starts of slowdowns within 10 min."),),
        pending_seconds=600,
        closing_seconds=600,
        explanation="The hardware slows the GPU down, by heat or by a lack of power, for 10 min or repeatedly.",
        action="Check the cooling and the power supply of the machine.",
        unknown_when="The GPU reports neither reasons for low clocks nor a temperature margin.",
    ),
)

FAULT_RULES = (*_STATE_RULES, *_MEMORY_RULES, *_LINK_RULES)
