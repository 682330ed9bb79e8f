"""Rules about XIDs, by the action that NVIDIA recommends. Pure.

The actions are those of the dated table in `model/xid.py`. A code that is not in the table fires
`gpu.xid.unclassified`: it is never ignored.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from gpufleet.fleet.rules.logic import Column, any_known, at_least, over, under
from gpufleet.fleet.rules.rule import FindingRule, RuleFamily, Threshold
from gpufleet.model.finding import RuleScope, Severity
from gpufleet.model.xid import XidAction, XidClass, xid

_FAMILY = RuleFamily.XIDS

COLUMN_OF_ACTION: Mapping[XidAction, str | None] = MappingProxyType(
    {
        XidAction.NONE: None,
        XidAction.RESTART_APP: "xids_restart_app",
        XidAction.RESET_GPU: "xids_reset",
        XidAction.REBOOT_NODE: "xids_reset",
        XidAction.CHECK_HARDWARE: "xids_repair",
        XidAction.CONTACT_VENDOR: "xids_repair",
        XidAction.INVESTIGATE: "xids_investigate",
        XidAction.AS_REPORTED: "xids_investigate",
        XidAction.UPDATE_SOFTWARE: "xids_update_software",
        XidAction.RESTART_VM: "xids_update_software",
        XidAction.UNKNOWN: "xids_unknown",
    }
)
"""Input that counts the XIDs with each action; None for XIDs that are only recorded."""

FATAL_ACTIONS = frozenset(
    {XidAction.RESET_GPU, XidAction.REBOOT_NODE, XidAction.CHECK_HARDWARE, XidAction.CONTACT_VENDOR}
)
"""Actions of XIDs after which the GPU cannot be used until an operator acts."""

MAX_CODES = 16
"""Maximum number of codes in the text of a GPU."""


class XidFacts:
    """Columns and texts of the XIDs of all GPUs.

    Attributes:
        columns: columns of `FactTable` for the scope device.
        codes: text `xid_codes` of each GPU.
        fatal: number of XIDs of each GPU that need a reset, a reboot or a repair.
    """

    def __init__(self, counts: Mapping[int, Mapping[int, int]], watched: Column | Sequence[bool]) -> None:
        """Take the XIDs since the last reset of each GPU, within 24 h.

        Args:
            counts: row of a GPU to code to number; a GPU without XIDs has no entry.
            watched: whether XIDs of each GPU are read at all; otherwise its numbers are missing.
        """
        start = np.where(np.asarray(watched, bool), 0.0, np.nan)
        names = (*dict.fromkeys(name for name in COLUMN_OF_ACTION.values() if name), "xids_most_repeated")
        self.columns: dict[str, Column] = {name: start.copy() for name in names}
        self.codes: list[str | None] = [None] * len(start)
        self.fatal: Column = start.copy()
        for row, codes in counts.items():
            self._count(row, codes)

    def _count(self, row: int, codes: Mapping[int, int]) -> None:
        numbers: Counter[str] = Counter()
        fatal = most = 0
        for code, count in codes.items():
            entry = xid(code)
            name = COLUMN_OF_ACTION[entry.action]
            if name is not None:
                numbers[name] += count
            if entry.action in FATAL_ACTIONS:
                fatal += count
            if entry.cls is XidClass.APPLICATION and entry.action is XidAction.RESTART_APP:
                most = max(most, count)
        if most:
            numbers["xids_most_repeated"] = most
        for name, number in numbers.items():
            self.columns[name][row] = number  # also if the XIDs of the GPU are not read otherwise
        if fatal:
            self.fatal[row] = fatal
        parts = [f"{code} x{count}" if count > 1 else str(code) for code, count in sorted(codes.items())]
        more = f" and {len(parts) - MAX_CODES} more" if len(parts) > MAX_CODES else ""
        self.codes[row] = ", ".join(parts[:MAX_CODES]) + more if parts else None


def _class_rule(name: str, severity: Severity, column: str, explanation: str, action: str) -> FindingRule:
    return FindingRule(
        id=f"gpu.xid.{name}",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=severity,
        inputs=(column,),
        condition=lambda facts, _: over(facts[column], 0),
        texts=("xid_codes",),
        explanation=explanation,
        action=action,
        unknown_when="No reader of the machine reads XIDs.",
    )


_C, _W = Severity.CRITICAL, Severity.WARNING

XID_RULES = (
    _class_rule(
        *("reset", _C, "xids_reset", "The driver reported an error that only a reset or a restart ends."),
        "Drain the machine and reset the GPU. Restart the machine if the GPU cannot be reset. XID 79 is `gpu.lost`.",
    ),
    _class_rule(
        *("repair", _C, "xids_repair", "The driver reported an error of the board or its firmware."),
        "Check power, seating and cables, then contact the vendor.",
    ),
    _class_rule(
        *("investigate", _W, "xids_investigate", "The driver reported an error that has its own procedure."),
        "Follow NVIDIA's procedure for the codes in the evidence, such as 48 or 74.",
    ),
    _class_rule(
        *("software", _W, "xids_update_software", "The driver reported an error of a vGPU or a virtual machine."),
        "Update the software of host and guest, or restart the virtual machine.",
    ),
    _class_rule(
        *("unclassified", _W, "xids_unknown", "The driver reported a code without a known action."),
        "Look the code up in NVIDIA's current catalogue.",
    ),
    FindingRule(
        id="gpu.xid.application",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.INFO,
        inputs=("xids_restart_app", "xids_most_repeated"),
        condition=lambda facts, _: over(facts["xids_restart_app"], 0),
        escalation=lambda facts, limits: at_least(facts["xids_most_repeated"], limits["repeats"]),
        escalated_severity=Severity.WARNING,
        thresholds=(Threshold("repeats", 2, "", "Occurrences of one application code from which it is a warning."),),
        texts=("xid_codes",),
        explanation="A program on the GPU failed. Repeated codes on one GPU can be a defect of the GPU.",
        action="Restart the application. If the code repeats with other programs, test the GPU.",
        unknown_when="No reader of the machine reads XIDs.",
    ),
    FindingRule(
        id="node.repeat_offender",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("fatal_xids",),
        condition=lambda facts, limits: at_least(facts["fatal_xids"], limits["xids"]),
        thresholds=(Threshold("xids", 5, "", "XIDs within 24 h that need a reset, a reboot or a repair."),),
        explanation="GPUs of the machine failed repeatedly.",
        action="Take the machine out of service until it is repaired.",
        unknown_when="No reader of the machine reads XIDs.",
    ),
    FindingRule(
        id="node.xid_blind",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("xids_watched", "lost_log_messages"),
        condition=lambda facts, _: any_known(under(facts["xids_watched"], 1), over(facts["lost_log_messages"], 0)),
        pending_seconds=600,
        explanation="XIDs of the machine are not read, or messages of the kernel log were lost.",
        action="Permit the agent to read `/dev/kmsg`, or use the driver's events.",
        unknown_when="The machine has no agent.",
    ),
)
