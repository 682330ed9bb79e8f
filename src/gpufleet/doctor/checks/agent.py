"""Checks of the agent's own prerequisites and of the services that it queries."""

from gpufleet.doctor.facts import CheckResult, CheckVerdict, NodeFacts
from gpufleet.model.absence import Absent

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


def check_pod_resources(facts: NodeFacts) -> CheckResult:
    """Check the kubelet's pod-resources socket."""
    name, proves = "kubelet_pod_resources", "the kubelet reports which pod holds which GPU"
    error = facts.pod_resources
    kubelet = (facts.services or {}).get("kubelet")
    if error == "":
        return CheckResult(
            name=name, verdict=CheckVerdict.OK, proves=proves, found="its socket accepts connections from this user"
        )
    if error is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    if error != "ENOENT":
        fix = "run as root, or in a group that may use /var/lib/kubelet/pod-resources"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=f"its socket: {error}", fix=fix)
    if kubelet == "not_installed":
        return CheckResult(
            name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found="no kubelet on this machine"
        )
    if kubelet == "running":
        fix = "in a container, mount /var/lib/kubelet/pod-resources; otherwise check the kubelet's root-dir"
        found = "the kubelet is running, but its socket does not exist"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    if kubelet == "not_running":
        found = "the kubelet is installed but not running"
        return CheckResult(
            name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix="start it: systemctl start kubelet"
        )
    why = f" ({kubelet.detail})" if isinstance(kubelet, Absent) else ""
    found = f"no socket; whether a kubelet runs is unknown{why}"
    return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=found)


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


AGENT_CHECKS = (check_state_folder, check_pod_resources, check_agent_packages, check_hub_packages)
"""Checks, most important first."""
