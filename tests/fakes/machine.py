"""Trees of /proc, /sys and cgroups on disk, and the device numbers that their links stand for."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from gpufleet.holders.processes.fetch import ProcessScanner

POD = "3f2a9c1e-7b54-4d8e-9a10-5c6d7e8f9a0b"
SLICE = POD.replace("-", "_")
ID = "0123456789abcdef" * 4
POD_CGROUP = f"/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope"
JOB_CGROUP = "/system.slice/slurmstepd.scope/job_4/step_0/user/task_0"
VFIO_MAJOR = 511
PATH_ONLY = 0o10000000


class FakeMachine:
    """A machine's /proc, /sys and /dev below a folder.

    Attributes:
        root: the folder.
        devices: path of a device file to its device number.
    """

    def __init__(self, root: Path, *, host: bool = True) -> None:
        self.root = root
        self.devices = {
            **{f"/dev/nvidia{number}": (195, number) for number in range(8)},
            "/dev/nvidiactl": (195, 255),
            "/dev/nvidia-modeset": (195, 254),
            "/dev/nvidia-uvm": (510, 0),
            "/dev/null": (1, 3),
        }
        self.add(1, name="systemd", cgroup="/init.scope")
        if host:
            self.add(2, name="kthreadd", cgroup="/")

    def add(
        self,
        pid: int,
        *,
        name: str = "python3",
        cgroup: str = "/user.slice/user-0.slice/session-1.scope",
        parent: int = 1,
        start_time: int | None = None,
        opens: Sequence[str] = (),
        flags: int = 0o2100002,
        command_line: Sequence[str] = (),
        environment: bytes = b"",
        uid: int = 0,
    ) -> None:
        """Add a process, by default one that started at 10 ticks per process id."""
        folder = self.root / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        started = 10 * pid if start_time is None else start_time
        zeros = " ".join("0" for _ in range(17))
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {zeros} {started} 0 0\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\n")
        lines = cgroup if cgroup.startswith("0::") else f"0::{cgroup}\n"
        (folder / "cgroup").write_text(lines)
        (folder / "cmdline").write_bytes("\0".join([*command_line, ""]).encode())
        (folder / "environ").write_bytes(environment)
        for number, target in enumerate(opens, start=3):
            (folder / "fd" / str(number)).symlink_to(target)
            (folder / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t{flags:#o}\n".replace("0o", "0"))

    def be(self, pid: int, *, nspid: str | None = None) -> None:
        """Make a process the agent."""
        self.write(f"proc/{pid}/status", f"Name:\tgpufleet\nNSpid:\t{nspid or pid}\n")
        (self.root / "proc" / "self").symlink_to(str(pid))

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def add_function(self, address: str, *, vendor: str = "0x10de", kind: str = "0x030200") -> Path:
        folder = self.root / "sys/bus/pci/devices" / address
        self.write(f"sys/bus/pci/devices/{address}/vendor", f"{vendor}\n")
        self.write(f"sys/bus/pci/devices/{address}/class", f"{kind}\n")
        return folder

    def add_group(self, group: int, *members: str) -> None:
        """Add an IOMMU group with its VFIO file."""
        for member in members:
            (self.root / f"sys/kernel/iommu_groups/{group}/devices/{member}").mkdir(parents=True)
        self.write(f"sys/class/vfio/{group}/dev", f"{VFIO_MAJOR}:{group}\n")
        self.devices[f"/dev/vfio/{group}"] = (VFIO_MAJOR, group)

    def status(self, path: str) -> os.stat_result:
        """Return the status of an open file by the path that its link shows."""
        target = Path(path).readlink()
        if str(target) not in self.devices:
            raise FileNotFoundError(path)
        major, minor = self.devices[str(target)]
        return os.stat_result([stat.S_IFCHR | 0o666, *[0] * 9], {"st_rdev": os.makedev(major, minor)})

    def scanner(self, skipped: frozenset[int] = frozenset()) -> ProcessScanner:
        return ProcessScanner(str(self.root), status=self.status, skipped=skipped)

    # Cgroups

    def add_v2(self, *paths: str, populated: bool = True) -> None:
        """Add cgroups of v2 with all around them."""
        mount = self.root / "sys/fs/cgroup"
        mount.mkdir(parents=True, exist_ok=True)
        (mount / "cgroup.controllers").write_text("cpu memory\n")
        for path in paths:
            folder = mount / path.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            while folder != mount:
                (folder / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
                folder = folder.parent

    def add_v1(self, hierarchy: str, path: str, *pids: int) -> None:
        """Add a cgroup of v1 with processes."""
        mount = self.root / "sys/fs/cgroup" / hierarchy
        folder = mount / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (mount / "release_agent").write_text("")
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
