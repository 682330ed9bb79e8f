"""Records of a scan."""

import msgspec

from gpufleet.holders.processes.parse.cgroup import Placement
from gpufleet.holders.processes.parse.process import VirtualMachine
from gpufleet.ports.holder import DeviceName, HolderId

MAX_PROBLEMS = 16


class ProcessEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A process, where it belongs, and its devices.

    Attributes:
        placement: its pod, job, virtual machine or container.
        vm: virtual machine that it runs, or None.
        is_weak: whether only the process itself names the job or virtual machine.
        views: keys of the views on which the driver lists it.
        minors: N of each device node /dev/nvidiaN that it has open.
        instances: `N/gi/ci` of each MIG device whose capability files it has open.
        passed_through: devices that it has open through VFIO, and that are GPUs.
        grouped: GPUs of open IOMMU groups with several GPUs; it uses at least one of each group.
    """

    placement: Placement
    vm: VirtualMachine | None = None
    is_weak: bool = False
    views: tuple[str, ...] = ()
    minors: tuple[int, ...] = ()
    instances: tuple[str, ...] = ()
    passed_through: tuple[DeviceName, ...] = ()
    grouped: tuple[DeviceName, ...] = ()


class Scan(msgspec.Struct, kw_only=True):
    """Result of a scan.

    Attributes:
        processes: processes with devices.
        living: pods and jobs that have processes, or None if not all cgroups of the machine are visible.
        unattributed: keys of views with a process whose holder is not known.
        unattributed_devices: devices open through VFIO whose holder is not known.
        complete: whether all processes that the driver lists could be inspected.
        problems: what could not be read, each once.
    """

    processes: list[ProcessEvidence] = []
    living: frozenset[HolderId] | None = None
    unattributed: set[str] = set()
    unattributed_devices: set[DeviceName] = set()
    complete: bool = True
    problems: dict[str, None] = {}

    def note(self, problem: str) -> None:
        """Add a problem; further ones than `MAX_PROBLEMS` are left out."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems[problem] = None
