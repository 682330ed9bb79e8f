"""What the agent itself needs, and what it can talk to here."""

from gpufleet.doctor.facts import Check, Facts, Verdict
from gpufleet.model.absence import Absent

WANTED_BYTES = 2 << 30
"""Free space below which a long outage of the hub would lose measurements."""


def check_state_folder(facts: Facts) -> Check:
    """Ask whether the spool has a place."""
    name, proves = "state_folder", "measurements survive a restart and an outage of the hub"
    error = facts.state_folder_error
    if error is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="it was not looked for")
    if error:
        mend = "make it writable for this user, or name another folder as `state`"
        found = f"{facts.state_folder}: {error}"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    if facts.state_folder_free is None:
        found = f"{facts.state_folder} is writable; its free space is not told"
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=found)
    found = f"{facts.state_folder}, {facts.state_folder_free / (1 << 30):.1f} GiB free"
    if facts.state_folder_free < WANTED_BYTES:
        mend = f"free space, or name another folder as `state`: {WANTED_BYTES >> 30} GiB are wanted"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def check_pod_resources(facts: Facts) -> Check:
    """Ask for the kubelet's socket that tells which pod holds which GPU."""
    name, proves = "kubelet_pod_resources", "the kubelet tells which pod holds which GPU"
    error = facts.pod_resources
    kubelet = (facts.services or {}).get("kubelet")
    if error == "":
        return Check(name=name, verdict=Verdict.OK, proves=proves, found="its socket may be connected to")
    if error is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="it was not looked for")
    if error != "ENOENT":
        mend = "run as root, or in a group that may use /var/lib/kubelet/pod-resources"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=f"its socket: {error}", mend=mend)
    if kubelet == "not_installed":
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found="no kubelet on this machine")
    if kubelet == "running":
        mend = "in a container mount /var/lib/kubelet/pod-resources; else see the kubelet's root-dir"
        found = "the kubelet is running, and its socket is not there"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    if kubelet == "not_running":
        found = "the kubelet is installed and not running"
        return Check(
            name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend="start it: systemctl start kubelet"
        )
    why = f" ({kubelet.detail})" if isinstance(kubelet, Absent) else ""
    found = f"no socket, and whether a kubelet runs is not known{why}"
    return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=found)


def check_agent_packages(facts: Facts) -> Check:
    """Ask for what the agent imports."""
    name, proves = "agent_packages", "the agent can run, and read GPUs through nvidia-ml-py"
    missing = facts.missing_packages.get("agent")
    if missing is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="it was not looked for")
    if not missing:
        return Check(name=name, verdict=Verdict.OK, proves=proves, found="all importable")
    mend = "pip install 'gpufleet[agent]'"
    return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=f"missing: {', '.join(missing)}", mend=mend)


def check_hub_packages(facts: Facts) -> Check:
    """Ask for what a hub imports; a node needs none of it."""
    name, proves = "hub_packages", "a hub can run here"
    missing = facts.missing_packages.get("hub")
    if missing is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="it was not looked for")
    if not missing:
        return Check(name=name, verdict=Verdict.OK, proves=proves, found="all importable")
    return Check(
        name=name,
        verdict=Verdict.NOT_APPLICABLE,
        proves=proves,
        found=f"needed on a hub only; missing: {', '.join(missing)}",
        mend="for a hub: pip install 'gpufleet[hub]'",
    )


AGENT_CHECKS = (check_state_folder, check_pod_resources, check_agent_packages, check_hub_packages)
"""In the order of their weight."""
