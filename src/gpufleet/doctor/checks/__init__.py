"""Checks of node facts. Pure."""

from gpufleet.doctor.checks.agent import AGENT_CHECKS
from gpufleet.doctor.checks.connection import HUB_CHECKS
from gpufleet.doctor.checks.guests import check_guests, check_libvirt
from gpufleet.doctor.checks.holders import check_holders
from gpufleet.doctor.checks.machine import MACHINE_CHECKS
from gpufleet.doctor.checks.nvidia import NVIDIA_CHECKS
from gpufleet.doctor.facts import CheckResult, NodeFacts

CHECKS = (*NVIDIA_CHECKS, *MACHINE_CHECKS, *AGENT_CHECKS, *HUB_CHECKS, check_holders, check_libvirt)
"""Checks of the node itself, in the order of repair: lower layers first."""


def examine(facts: NodeFacts) -> tuple[CheckResult, ...]:
    """Run every check. Virtual machines come last, with one check each."""
    return (*(check(facts) for check in CHECKS), *check_guests(facts))
