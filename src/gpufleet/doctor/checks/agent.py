"""Checks of the agent's own prerequisites."""

from gpufleet.doctor.facts import CheckResult, CheckVerdict, NodeFacts

MIN_FREE_BYTES = 2 << 30
"""Free bytes below which a long outage of the hub loses measurements."""


def check_state_folder(facts: NodeFacts) -> CheckResult:
    """Check that the spool can be written."""
    name, proves = "state_folder", "measurements survive a restart and an outage of the hub"
    error = facts.state_folder_error
    if error is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    if error:
        fix = "make it writable for this user, or set another folder as `state`"
        found = f"{facts.state_folder}: {error}"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    if facts.state_folder_free is None:
        found = f"{facts.state_folder} is writable; its free space is unknown"
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=found)
    found = f"{facts.state_folder}, {facts.state_folder_free / (1 << 30):.1f} GiB free"
    if facts.state_folder_free < MIN_FREE_BYTES:
        fix = f"free space, or set another folder as `state`: {MIN_FREE_BYTES >> 30} GiB are needed"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)


def check_agent_packages(facts: NodeFacts) -> CheckResult:
    """Check that the agent's packages can be imported."""
    name, proves = "agent_packages", "the agent can run, and read GPUs through nvidia-ml-py"
    missing = facts.missing_packages.get("agent")
    if missing is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    if not missing:
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found="all importable")
    fix = "pip install 'gpufleet[agent]'"
    return CheckResult(
        name=name, verdict=CheckVerdict.FAILED, proves=proves, found=f"missing: {', '.join(missing)}", fix=fix
    )


def check_hub_packages(facts: NodeFacts) -> CheckResult:
    """Check that the hub's packages can be imported. A node does not need them."""
    name, proves = "hub_packages", "a hub can run here"
    missing = facts.missing_packages.get("hub")
    if missing is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    if not missing:
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found="all importable")
    return CheckResult(
        name=name,
        verdict=CheckVerdict.NOT_APPLICABLE,
        proves=proves,
        found=f"needed on a hub only; missing: {', '.join(missing)}",
        fix="for a hub: pip install 'gpufleet[hub]'",
    )


AGENT_CHECKS = (check_state_folder, check_agent_packages, check_hub_packages)
"""Checks, most important first."""
