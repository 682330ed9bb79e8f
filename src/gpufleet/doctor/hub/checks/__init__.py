"""The checks of a hub: pure judgements over its facts."""

from gpufleet.doctor.check import Check
from gpufleet.doctor.hub.checks.data import DATA_CHECKS
from gpufleet.doctor.hub.checks.host import HOST_CHECKS
from gpufleet.doctor.hub.checks.network import NETWORK_CHECKS
from gpufleet.doctor.hub.facts import HubFacts

CHECKS = (*HOST_CHECKS, *DATA_CHECKS, *NETWORK_CHECKS)
"""Every check, in the order in which a person mends: what is below first."""


def examine_hub(facts: HubFacts) -> tuple[Check, ...]:
    """Make every check."""
    return tuple(check(facts) for check in CHECKS)
