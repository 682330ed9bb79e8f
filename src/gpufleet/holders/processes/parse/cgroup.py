r"""Parser of `/proc/PID/cgroup`: the pod, job, virtual machine or container of a process. Pure.

The forms are those of the kubelet with both of its cgroup drivers, containerd, CRI-O, Docker, Podman, libvirt with and
without systemd, and SLURM's cgroup plugins for v1 and v2.

Local users can create cgroups of any name: systemd gives each of them `user@UID.service`, and a service with
`Delegate=yes` its own cgroup. Therefore a name counts only if every cgroup around it has a name that root creates
(`leads_to_holders`). A container can create cgroups below its own. Therefore the outermost name counts, with one
exception: a container outside of Kubernetes can be a node itself (kind, a SLURM node in Docker), so a pod or job inside
it counts.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.model.text import bounded

MAX_BYTES = 64 << 10
MAX_PATHS = 64
"""Maximum number of different paths of a process; cgroup v1 has about 14 hierarchies."""

MAX_NAME = 253
_MAX_NODE = 200
_MAX_SEGMENTS = 128

_UID = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_POD_SLICE = re.compile(rf"(?:.+-)?kubepods(?:-besteffort|-burstable)?-pod{_UID}\.slice", re.ASCII)
_POD_FOLDER = re.compile(rf"pod{_UID}", re.ASCII)
_POD_PARENTS = frozenset({"kubepods", "burstable", "besteffort", ".."})
_CONTAINER = re.compile(r"(?:(?:cri-containerd|crio|docker|libpod|nerdctl)-)?([0-9a-f]{64})(?:\.scope)?", re.ASCII)
_SLURM = re.compile(r"slurm(?:_(.+))?", re.ASCII)
_SLURM_USER = re.compile(r"uid_[0-9]{1,10}", re.ASCII)
_STEPD_SCOPE = re.compile(r"(?:(.+)_)?slurmstepd\.scope", re.ASCII)
_JOB = re.compile(r"job_([1-9][0-9]{0,9})", re.ASCII)
_STEP = re.compile(r"step_([0-9a-z+]{1,32})", re.ASCII)
_MACHINE_SCOPE = re.compile(r"machine-qemu-(?:[0-9]{1,10}-)?(.+)\.scope", re.DOTALL)
_MACHINE_FOLDER = re.compile(r"(?:qemu-[0-9]{1,10}-)?(.+)\.libvirt-qemu", re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})", re.ASCII)
_DELETED = " (deleted)"

# systemd delegates services and scopes, and never slices.
_AROUND_HOLDERS = re.compile(
    r"(?!user(?:-[0-9]+)?\.slice).+\.slice|kubepods|kubelet|besteffort|burstable"
    r"|slurm(?:_.+)?|uid_[0-9]{1,10}|(?:.+_)?slurmstepd\.scope"
    r"|docker|default|k8s\.io|libpod_parent|machine|container"
    r"|(?:(?:cri-containerd|crio|docker|libpod|nerdctl)-)?[0-9a-f]{64}(?:\.scope)?"
    r"|(?:containerd|crio|docker|kubelet|k3s|k3s-agent|rke2-agent|rke2-server)\.service",
    re.ASCII,
)


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Pod, job, virtual machine or container of a process. Each text is empty if the cgroup does not name it.

    Attributes:
        pod: UID of the pod.
        container: id of the container, of the pod if there is one.
        job: id of the SLURM job; `NODE/ID` if the cgroup names SLURM's node, as in a SLURM built for several slurmds.
        step: step of the job: a number, `batch`, `extern` or `interactive`.
        machine: name in libvirt's cgroup, which is cut and simplified: for display only.
    """

    pod: str = ""
    container: str = ""
    job: str = ""
    step: str = ""
    machine: str = ""


NOWHERE = Placement()
"""Placement of a process outside of all known forms."""


class AmbiguousCgroupError(Exception):
    """The hierarchies of a process name different pods, jobs or virtual machines; `args` are the names."""


def parse_cgroup(content: bytes) -> Placement:
    """Parse `/proc/PID/cgroup` of cgroup v1, v2 or both.

    Raises:
        AmbiguousCgroupError: if hierarchies name different holders.
    """
    paths = [
        line.split(b":", 2)[2].decode("utf-8", "replace")
        for line in content[:MAX_BYTES].split(b"\n")
        if line.count(b":") >= 2
    ]
    found = [parse_path(path) for path in list(dict.fromkeys(paths))[:MAX_PATHS]]
    pod, job, machine = (_only(getattr(one, field) for one in found) for field in ("pod", "job", "machine"))
    if sum(map(bool, (pod, job, machine))) > 1:
        raise AmbiguousCgroupError(*filter(None, (pod, job, machine)))
    if pod or job or machine:
        found = [one for one in found if one.pod or one.job or one.machine]
    containers = {one.container for one in found} - {""}
    steps = {one.step for one in found} - {""}
    return Placement(
        pod=pod,
        container=containers.pop() if len(containers) == 1 else "",
        job=job,
        step=steps.pop() if len(steps) == 1 else "",
        machine=machine,
    )


def parse_path(path: str) -> Placement:
    """Return the placement that one path names."""
    segments = path.removesuffix(_DELETED).replace(":", "/").split("/")[:_MAX_SEGMENTS]
    container = ""
    for place, segment in enumerate(segments):
        before = segments[place - 1] if place else ""
        rest = segments[place + 1 :]
        if pod := pod_of(segment, before):
            return Placement(pod=pod, container=_first_container(rest))
        if job := job_of(segment, segments[max(place - 2, 0) : place]):
            return Placement(job=job, step=_step_of(rest[0]) if rest else "")
        if machine := _machine_of(segment):
            return Placement(machine=machine)
        if segment not in ("", "..") and not leads_to_holders(segment):
            break
        container = container or _container_of(segment)
    # With a cgroup namespace, a path outside of it begins with "..": the pod around a container can be hidden.
    return NOWHERE if ".." in segments else Placement(container=container)


def leads_to_holders(segment: str) -> bool:
    """Return whether pods, jobs, machines or containers count below a cgroup of this name: only root creates it."""
    return _AROUND_HOLDERS.fullmatch(segment) is not None


def pod_of(segment: str, before: str) -> str:
    """Return the UID of a pod from its cgroup's name and the name of the parent, or an empty text."""
    match = _POD_SLICE.fullmatch(segment)
    if match is None and before in _POD_PARENTS:
        match = _POD_FOLDER.fullmatch(segment)
    return match[1].replace("_", "-") if match is not None else ""


def job_of(segment: str, before: Sequence[str]) -> str:
    """Return the id of a job from its cgroup's name and the names of the two around it, or an empty text.

    If they name SLURM's node, the id is `NODE/ID`: two SLURM clusters on this machine can have equal job ids.
    """
    match = _JOB.fullmatch(segment)
    if match is None or not before:
        return ""
    around = _STEPD_SCOPE.fullmatch(before[-1])
    if around is None and len(before) == 2 and _SLURM_USER.fullmatch(before[1]):
        around = _SLURM.fullmatch(before[0])
    if around is None:
        return ""
    node = bounded(around[1] or "", _MAX_NODE)
    return f"{node}/{match[1]}" if node else match[1]


def _step_of(segment: str) -> str:
    match = _STEP.fullmatch(segment)
    return match[1] if match is not None else ""


def _machine_of(segment: str) -> str:
    match = _MACHINE_SCOPE.fullmatch(_ESCAPE.sub(_unescaped, segment)) or _MACHINE_FOLDER.fullmatch(segment)
    if match is not None:
        return bounded(match[1], MAX_NAME)
    return ""


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


def _container_of(segment: str) -> str:
    match = _CONTAINER.fullmatch(segment)
    return match[1] if match is not None else ""


def _first_container(segments: Iterable[str]) -> str:
    return next(filter(None, map(_container_of, segments)), "")


def _only(names: Iterable[str]) -> str:
    """Return the only name that is not empty, or an empty text.

    Raises:
        AmbiguousCgroupError: if there are several.
    """
    different = sorted({*names} - {""})
    if len(different) > 1:
        raise AmbiguousCgroupError(*different)
    return different[0] if different else ""
