"""Check of the holder sources."""

from collections.abc import Iterable

from gpufleet.doctor.facts import CheckResult, CheckVerdict, NodeFacts
from gpufleet.model.text import printable

DECLARING = ("kubelet", "slurm", "libvirt")
"""Sources that declare holders. The others only confirm them."""

AVAILABLE, NOT_ENABLED, NOT_PERMITTED, PARTIAL = "available", "not_enabled", "not_permitted", "partial"
NO_DATA, DISABLED = "no_data", "disabled"

_ABSENT = "not on this machine"
_PERMISSIONS = {
    "kubelet": "run as root, or in a group that may use the kubelet's socket",
    "slurm": "run as a user that sees every job: root, SlurmUser or an operator",
    "libvirt": "set libvirt's read-only socket as `socket` of [libvirt], or add this user to the group libvirt",
    "processes": "use the host's PID namespace (hostPID: true), and root or CAP_SYS_PTRACE with CAP_DAC_READ_SEARCH",
    "kubernetes": "permit list and watch of pods, and get of the kinds of their owners (agent.enrich of the chart)",
}
_REPAIRS = {
    "kubelet": "check it with systemctl status kubelet",
    "slurm": "check the controller with scontrol ping",
    "libvirt": "check it with virsh -r list",
    "processes": "check that /proc of this machine is readable",
    "kubernetes": "check the credentials of [kubernetes], and that this machine reaches the API server",
}
_LIST_NAMES = "gpufleet who --agent URL lists the names: compare them with gpufleet snapshot"
_NO_PACKAGES = "pip install 'gpufleet[kubernetes]'"
_NO_NODE = "set k8s_node_name of [readers.host]; in a pod, set NODE_NAME from spec.nodeName"
_NO_SOCKET = (
    "in a container, mount /var/lib/kubelet/pod-resources; otherwise set the kubelet's root-dir as `folder` of "
    "[holders.kubelet]"
)

_NO_FOLDERS = (
    "permit reading the named folders and files; in a container, mount them at the same paths; if the kubelet uses "
    "other folders, set `folder`, `pod_logs` and `container_logs` of [holders.kubelet]"
)


def check_holders(facts: NodeFacts) -> CheckResult:
    """Check which sources report the pods, jobs and virtual machines that have the GPUs."""
    name, proves = "holders", "the pods, jobs and virtual machines that have the GPUs are known"
    if facts.holders is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    states = {source: text.partition(": ") for source, text in facts.holders.items()}
    problems = {
        source: (reason, text)
        for source, (reason, _, text) in states.items()
        if reason not in (AVAILABLE, NOT_ENABLED, DISABLED)
    }
    is_absent = facts.holders.get("kubelet", "").startswith(NOT_ENABLED)
    if is_absent and (facts.services or {}).get("kubelet") == "running":
        problems["kubelet"] = (NOT_ENABLED, "the kubelet is running, but its socket does not exist")
    others = {
        text: [source for source, (reason, _, _) in states.items() if reason == state and source not in problems]
        for state, text in ((AVAILABLE, AVAILABLE), (NOT_ENABLED, _ABSENT), (DISABLED, DISABLED))
    }
    unresolved = _unresolved(facts)
    found = "; ".join(
        [
            *unresolved,
            *(f"{source}: {reason}: {text}" for source, (reason, text) in problems.items()),
            *(f"{', '.join(sources)}: {text}" for text, sources in others.items() if sources),
        ]
    )
    if not any(source in problems or source in others[AVAILABLE] for source in DECLARING):
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found=found)
    if not problems and not unresolved:
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)
    fixes = list(_fixes(problems, facts.missing_packages.get("kubernetes") or ()))
    fix = "; ".join([*fixes, _LIST_NAMES] if unresolved else fixes)
    return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)


def _unresolved(facts: NodeFacts) -> list[str]:
    """Return the number of device names without a device for each source, with an example."""
    if facts.unresolved is None:
        return []
    examples = {
        one.source: printable(f", such as {one.name}: {one.detail}") for one in reversed(facts.unresolved.devices)
    }
    return [
        f"{source}: {count} device name{'' if count == 1 else 's'} without a device here{examples.get(source, '')}"
        for source, count in facts.unresolved.counts.items()
        if count
    ]


def _fixes(problems: dict[str, tuple[str, str]], missing_packages: Iterable[str]) -> Iterable[str]:
    for source, (reason, _) in problems.items():
        fix = _REPAIRS.get(source, "")
        if source in ("kubelet", "kubernetes") and missing_packages:
            fix = _NO_PACKAGES
        elif source == "kubelet" and reason == NOT_ENABLED:
            fix = _NO_SOCKET
        elif source == "kubelet" and reason == PARTIAL:
            fix = _NO_FOLDERS
        elif source == "kubernetes" and reason == NO_DATA:
            fix = _NO_NODE
        elif reason in (NOT_PERMITTED, PARTIAL):
            fix = _PERMISSIONS.get(source, "")
        yield f"{source}: {fix}"
