"""Location of a process: its cgroup, the virtual machine that it runs, or the SLURM job above it. Blocks."""

from typing import NamedTuple

from gpufleet.holders.processes.files import STATUS_BYTES, ProcessFiles
from gpufleet.holders.processes.parse.cgroup import MAX_BYTES, NOWHERE, Placement, parse_cgroup
from gpufleet.holders.processes.parse.process import (
    MAX_COMMAND_LINE,
    MAX_ENVIRONMENT,
    JobStep,
    ProcessStat,
    VirtualMachine,
    parse_environment,
    parse_step_title,
    parse_virtual_machine,
    user_of,
)

MAX_ANCESTORS = 32
_STEPD = b"slurmstepd"


class Located(NamedTuple):
    """Pod, job, virtual machine or container of a process.

    Attributes:
        placement: its pod, job, virtual machine or container.
        vm: virtual machine that it runs, or None.
        is_weak: whether only the process itself names the job or virtual machine.
    """

    placement: Placement
    vm: VirtualMachine | None = None
    is_weak: bool = False

    @property
    def has_holder(self) -> bool:
        """Return whether the machine, not only the process, names a holder with an identity."""
        named = self.vm is not None or self.placement.pod or self.placement.job or self.placement.container
        return bool(named) and not self.is_weak


_Key = tuple[int, int, Placement, bool]


class PlacementFinder:
    """Locates processes. Command lines and environments are read once per process."""

    def __init__(self, files: ProcessFiles) -> None:
        self._files = files
        self._known: dict[_Key, Located] = {}
        self._used: set[_Key] = set()

    def locate(self, pid: int, identity: ProcessStat, *, runs_vm: bool) -> Located | None:
        """Return where a process belongs, or None if its cgroup cannot be read.

        Args:
            pid, identity: the process.
            runs_vm: whether it has a passed-through device open.

        Raises:
            AmbiguousCgroupError: if its cgroups name several holders.
        """
        content = self._files.read(pid, "cgroup", MAX_BYTES)
        if not content:
            return None
        placement = parse_cgroup(content)
        runs_vm = runs_vm or bool(placement.machine)
        if placement != NOWHERE and not runs_vm:
            return Located(placement)
        key = (pid, identity.start_time, placement, runs_vm)
        self._used.add(key)
        if key not in self._known:
            self._known[key] = self._complete(pid, identity, Located(placement), runs_vm=runs_vm)
        return self._known[key]

    def drop_unused(self) -> None:
        """Drop the processes that were not located since the previous call."""
        self._known = {key: located for key, located in self._known.items() if key in self._used}
        self._used.clear()

    def _complete(self, pid: int, identity: ProcessStat, located: Located, *, runs_vm: bool) -> Located:
        vm = parse_virtual_machine(self._files.read(pid, "cmdline", MAX_COMMAND_LINE)) if runs_vm else None
        if vm is not None or located.placement != NOWHERE:
            # Outside of libvirt's cgroups, a user can write any UUID into the command line of its own process.
            is_weak = located.placement == NOWHERE and user_of(self._files.read(pid, "status", STATUS_BYTES)) != 0
            return located._replace(vm=vm, is_weak=is_weak)
        if step := self._step_above(identity):
            return Located(Placement(job=step.job, step=step.step))
        if step := parse_environment(self._files.read(pid, "environ", MAX_ENVIRONMENT)):
            return Located(Placement(job=step.job, step=step.step), is_weak=True)
        return located

    def _step_above(self, identity: ProcessStat) -> JobStep | None:
        """Return the step of the slurmstepd above a process. It runs as root, as no process of a step does."""
        for _ in range(MAX_ANCESTORS):
            pid = identity.parent
            parent = self._files.stat(pid) if pid > 1 else None
            if parent is None:
                return None
            if parent.name == _STEPD and user_of(self._files.read(pid, "status", STATUS_BYTES)) == 0:
                return parse_step_title(self._files.read(pid, "cmdline", MAX_COMMAND_LINE))
            identity = parent
        return None
