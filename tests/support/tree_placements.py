"""Random placements whose processes and cgroups are trees on disk, read by the real process source."""

import asyncio
import hashlib
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gpufleet.fleet.attribution.holdings import Answer
from gpufleet.holders.processes.fetch import ProcessScanner
from gpufleet.holders.processes.source import ProcessHolders
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import Holder, HolderKind
from gpufleet.ports.holder import DeviceName
from tests.fakes.machine import FakeMachine
from tests.support.placements import GPUS, Node, Placed

AGENT, FIRST = 100, 1_000
"""Process id of the agent, and the first of a holder."""

EVERY_GPU = tuple(f"/dev/nvidia{minor}" for minor in range(GPUS))
HIERARCHIES = ("memory", "devices", "freezer", "systemd")


class TreeProcess(NamedTuple):
    """A process of the tree.

    Attributes:
        pid: its id.
        cgroup: path of its cgroup.
        views: devices on which the driver lists it.
        opens: files that it has open.
        command_line: its arguments.
    """

    pid: int
    cgroup: str
    views: Sequence[str] = ()
    opens: Sequence[str] = ()
    command_line: Sequence[str] = ()


class ProcessTrees:
    """/proc, /sys and the cgroups of a machine below a folder, and the process source that reads them.

    Args:
        root: the folder.
        is_v1: whether the cgroups are of version 1.
    """

    def __init__(self, root: Path, *, is_v1: bool = False) -> None:
        self._root, self._is_v1 = root, is_v1
        self._machine = FakeMachine(root)
        self._listed: dict[str, list[tuple[int, int | None]]] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._source = ProcessHolders(lambda: self._listed, root, make_scanner=self._make_scanner)

    def add_group(self, group: int, members: Sequence[str]) -> str:
        """Add an IOMMU group of PCI functions and mediated devices; return its VFIO file."""
        self._groups[str(group)] = tuple(members)
        return f"/dev/vfio/{group}"

    def show(
        self, processes: Iterable[TreeProcess], living: Iterable[str], *, sees_host: bool, sees_cgroups: bool
    ) -> None:
        """Write the trees again.

        Args:
            processes: those of holders and local users.
            living: paths of the cgroups that have processes.
            sees_host: whether the agent is in the host's PID namespace.
            sees_cgroups: whether the tree is that of the whole machine.
        """
        for folder in ("proc", "sys"):
            shutil.rmtree(self._root / folder, ignore_errors=True)
        self._machine = machine = FakeMachine(self._root)
        for group, members in self._groups.items():
            machine.add_group(int(group), *members)
            for member in members:
                self._add_function(member)
        machine.add(AGENT, name="gpufleet", cgroup="/system.slice/gpufleet-agent.service")
        machine.be(AGENT, nspid=str(AGENT) if sees_host else f"{AGENT} 7")
        # A monitoring tool opens every device, and has none.
        machine.add(AGENT + 1, name="exporter", cgroup="/system.slice/exporter.service", opens=EVERY_GPU)
        self._listed = {}
        for one in processes:
            machine.add(one.pid, cgroup=one.cgroup, opens=one.opens, command_line=one.command_line)
            if self._is_v1:
                lines = [f"{number}:{name}:{one.cgroup}\n" for number, name in enumerate(HIERARCHIES, 2)]
                machine.write(f"proc/{one.pid}/cgroup", "".join(lines))
            for view in one.views:
                self._listed.setdefault(view, []).append((one.pid, 10 * one.pid))
        self._show_cgroups(living, sees_cgroups=sees_cgroups)

    def answer(self) -> Answer:
        """Return what the process source reports now."""
        try:
            return asyncio.run(self._source.report())
        except HolderError as error:
            return error

    def _show_cgroups(self, living: Iterable[str], *, sees_cgroups: bool) -> None:
        mount = self._root / "sys/fs/cgroup"
        if self._is_v1:
            for name in HIERARCHIES:
                self._machine.add_v1(name, "init.scope", 1)
                for path in living:
                    self._machine.add_v1(name, path, FIRST)
                if not sees_cgroups:
                    (mount / name / "release_agent").unlink()
            return
        self._machine.add_v2("init.scope", *living)
        if not sees_cgroups:  # only a cgroup that is not the machine's root has events
            (mount / "cgroup.events").write_text("populated 1\n")

    def _add_function(self, member: str) -> None:
        if ":" in member:
            self._machine.add_function(member)
            return
        parent = f"0000:{int(member[:2]) + 16:02x}:00.0"
        self._machine.add_function(parent)
        link = self._root / "sys/bus/mdev/devices" / member
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../devices/pci0000:00/{parent}/{member}")

    def _make_scanner(self, root: str, skipped: frozenset[int]) -> ProcessScanner:
        return ProcessScanner(root, status=lambda path: self._machine.status(path), skipped=skipped)


class TreeNode(Node):
    """A node whose processes and cgroups are trees on disk.

    Args:
        seed, permitted: as of `Node`.
        root: folder of the trees.
    """

    def __init__(self, seed: int, root: Path, *, permitted: bool = False) -> None:
        super().__init__(seed, permitted=permitted)
        style = random.Random(f"cgroups {seed}")
        is_v1 = style.random() < 0.3
        self._form = style.choice(_FORMS[self.kind])
        self._trees = ProcessTrees(root, is_v1=is_v1)
        self._pids: dict[int, int] = {}  # identity of a placement to the id of its process
        self._next = FIRST
        self._vfio = self._add_groups()

    def _add_groups(self) -> dict[str, str]:
        """Add the IOMMU groups; return view to VFIO file."""
        if self.kind is not HolderKind.VM:
            return {}
        files: dict[tuple[DeviceName, ...], str] = {}
        for number, names in enumerate(dict.fromkeys(self.groups.values())):
            if names:
                files[names] = self._trees.add_group(number, [name.text for name in names])
        return {view: files[names] for view, names in self.groups.items() if names}

    def _observed(self) -> Answer:
        processes = [self._tree_process(one) for one in self.placed if one.works]
        for number, (view, path) in enumerate(self.forged.items()):
            processes.append(TreeProcess(FIRST - 1 - number, path, views=(view,)))
        living = [self._cgroup(one.holder) for one in self.placed if self.kind is not HolderKind.VM]
        self._trees.show(processes, living, sees_host=self.sees_processes, sees_cgroups=self.sees_cgroups)
        return self._trees.answer()

    def _tree_process(self, one: Placed) -> TreeProcess:
        pid = self._pids.get(id(one))
        if pid is None:
            self._next += 1
            pid = self._pids[id(one)] = self._next
        cgroup = self._cgroup(one.holder)
        if self.kind is HolderKind.VM:
            opens = dict.fromkeys(self._vfio[slot.view] for slot in one.slots)
            line = ("/usr/bin/qemu-system-x86_64", "-name", f"guest={one.holder.name}", "-uuid", one.holder.id)
            return TreeProcess(pid, cgroup, opens=tuple(opens), command_line=line)
        views = dict.fromkeys(slot.view for slot in one.slots if slot.view in self.index.leaves)
        return TreeProcess(pid, cgroup, views=tuple(views), opens=EVERY_GPU[:2])  # CUDA opens other devices too

    def _cgroup(self, holder: Holder) -> str:
        container = hashlib.sha256(holder.id.encode()).hexdigest()
        return self._form.format(id=holder.id, slice=holder.id.replace("-", "_"), container=container, name=holder.name)


_FORMS = {
    HolderKind.POD: (
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{container}.scope",
        "/kubepods.slice/kubepods-pod{slice}.slice/crio-{container}.scope",
        "/kubepods/besteffort/pod{id}/{container}",
    ),
    HolderKind.JOB: (
        "/system.slice/slurmstepd.scope/job_{id}/step_0/user/task_0",
        "/slurm/uid_1000/job_{id}/step_batch/task_0",
    ),
    HolderKind.VM: ("/machine.slice/machine-qemu-1-{name}.scope", "/machine/qemu-1-{name}.libvirt-qemu"),
}
"""Cgroups of holders: of the kubelet's drivers and several container runtimes, of SLURM, and of libvirt."""
