"""The checks: pure judgements over the facts."""

from gpufleet.doctor.checks.agent import AGENT_CHECKS
from gpufleet.doctor.checks.guests import check_guests, check_libvirt
from gpufleet.doctor.checks.machine import MACHINE_CHECKS
from gpufleet.doctor.checks.nvidia import NVIDIA_CHECKS
from gpufleet.doctor.facts import Check, Facts

CHECKS = (*NVIDIA_CHECKS, *MACHINE_CHECKS, *AGENT_CHECKS, check_libvirt)
"""Every check of the node itself, in the order in which a person mends: what is below first."""


def examine(facts: Facts) -> tuple[Check, ...]:
    """Make every check; virtual machines, one each, come last."""
    return (*(check(facts) for check in CHECKS), *check_guests(facts))
