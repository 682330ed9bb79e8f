"""Table of all rules. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

from gpufleet.fleet.rules.counts import COUNT_RULES
from gpufleet.fleet.rules.delivery import DELIVERY_RULES
from gpufleet.fleet.rules.drift import DRIFT_RULES
from gpufleet.fleet.rules.faults import FAULT_RULES
from gpufleet.fleet.rules.freshness import FRESHNESS_RULES
from gpufleet.fleet.rules.hub import HUB_RULES
from gpufleet.fleet.rules.identity import IDENTITY_RULES
from gpufleet.fleet.rules.rule import FindingRule
from gpufleet.fleet.rules.use import USE_RULES
from gpufleet.fleet.rules.values import VALUE_RULES
from gpufleet.fleet.rules.xids import XID_RULES

RULES: tuple[FindingRule, ...] = (
    *HUB_RULES,
    *FRESHNESS_RULES,
    *COUNT_RULES,
    *IDENTITY_RULES,
    *VALUE_RULES,
    *USE_RULES,
    *DELIVERY_RULES,
    *FAULT_RULES,
    *XID_RULES,
    *DRIFT_RULES,
)
"""Every rule. Of two rules that hide each other's findings about a subject, the earlier hides the later."""

RULES_BY_ID: Mapping[str, FindingRule] = MappingProxyType({rule.id: rule for rule in RULES})
"""Every rule by its id."""
