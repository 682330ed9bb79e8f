"""Scans of a machine's processes: which are inspected, where they belong, and which devices they have open."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.holders.processes import descriptors
from gpufleet.holders.processes.descriptors import YOUNG_SCANS
from gpufleet.holders.processes.fetch import (
    DESCRIPTORS_DENIED,
    OUTSIDE_NAMESPACE,
    UNVERIFIED,
    ProcessScanner,
)
from gpufleet.holders.processes.parse.cgroup import NOWHERE, Placement
from gpufleet.holders.processes.parse.process import VirtualMachine
from gpufleet.holders.processes.records import ProcessEvidence
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.ports.holder import DeviceName, Naming
from tests.fakes.machine import ID, JOB_CGROUP, PATH_ONLY, POD, POD_CGROUP, FakeMachine

GPU0, GPU1 = "gpu/GPU-0", "gpu/GPU-1"
UID = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"
VGPU = "c2177883-f1bb-47f0-914d-32a22e3a8804"
IN_POD, IN_JOB = Placement(pod=POD, container=ID), Placement(job="4", step="0")
QEMU = ("/usr/bin/qemu-system-x86_64", "-name", "guest=train-0", "-uuid", UID)
MACHINE = r"/machine.slice/machine-qemu\x2d3\x2dtrain\x2d0.scope/libvirt/emulator"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    machine = FakeMachine(tmp_path)
    machine.add(50, name="gpufleet")
    machine.be(50)
    return machine


def test_listed_process_has_its_views_and_placement(machine: FakeMachine) -> None:
    machine.add(100, cgroup=POD_CGROUP)
    machine.add(101, cgroup=JOB_CGROUP)
    scan = machine.scanner().scan({GPU0: [(100, 1000)], GPU1: [(100, 1000), (101, 1010)]})
    assert scan.processes == [
        ProcessEvidence(placement=IN_POD, views=(GPU0, GPU1)),
        ProcessEvidence(placement=IN_JOB, views=(GPU1,)),
    ]
    assert (scan.complete, scan.unattributed, scan.problems) == (True, set(), {})


def test_listed_process_outside_of_holders_leaves_its_view_unattributed(machine: FakeMachine) -> None:
    machine.add(100)
    scan = machine.scanner().scan({GPU0: [(100, 1000)]})
    assert ([one.placement for one in scan.processes], scan.unattributed) == ([NOWHERE], {GPU0})


def test_local_user_cannot_take_the_name_of_a_pod_job_or_machine(machine: FakeMachine) -> None:
    own = "/user.slice/user-1000.slice/user@1000.service/"  # systemd gives this folder to the user
    for pid, name in enumerate((f"kubepods/pod{POD}", "slurmstepd.scope/job_4/step_0", "machine-qemu-1-x.scope"), 100):
        machine.add(pid, cgroup=own + name, uid=1000, command_line=QEMU)
    scan = machine.scanner().scan({GPU0: [(100, 1000), (101, 1010)], GPU1: [(102, 1020)]})
    assert {(one.placement, one.vm) for one in scan.processes} == {(NOWHERE, None)}
    assert scan.unattributed == {GPU0, GPU1}


def test_process_id_of_another_process_is_not_attributed(machine: FakeMachine) -> None:
    machine.add(100, cgroup=POD_CGROUP, start_time=77)
    for start_time in (1000, None):
        scan = machine.scanner().scan({GPU0: [(100, start_time)]})
        assert (scan.processes, scan.unattributed, scan.complete) == ([], {GPU0}, False)
        assert UNVERIFIED in scan.problems


def test_listed_process_that_ended_is_left_out(machine: FakeMachine) -> None:
    scan = machine.scanner().scan({GPU0: [(100, 1000)]})
    assert (scan.processes, scan.unattributed, scan.complete) == ([], set(), True)


@pytest.mark.parametrize("nested", [False, True])
def test_other_pid_namespace_makes_listed_processes_unknown(tmp_path: Path, nested: bool) -> None:
    machine = FakeMachine(tmp_path, host=nested)
    machine.add(50, name="gpufleet")
    machine.be(50, nspid="50\t7" if nested else None)
    machine.add(100, cgroup=POD_CGROUP)
    scan = machine.scanner().scan({GPU0: [(100, 1000)], GPU1: []})
    assert (scan.processes, scan.unattributed, scan.complete) == ([], {GPU0}, False)
    assert list(scan.problems) == [OUTSIDE_NAMESPACE]


def test_own_processes_are_left_out(machine: FakeMachine) -> None:
    machine.add(51, parent=50, opens=["/dev/nvidia0"])
    machine.add(52, parent=50)
    assert machine.scanner().scan({GPU0: [(52, 520), (50, 500)]}).processes == []


def test_mps_server_is_not_a_holder(machine: FakeMachine) -> None:
    machine.add(100, name="nvidia-cuda-mps", cgroup=POD_CGROUP)
    scan = machine.scanner().scan({GPU0: [(100, 1000)]})
    assert (scan.processes, scan.unattributed) == ([], {GPU0})


def test_open_device_nodes_name_their_minor(machine: FakeMachine) -> None:
    opens = ["/dev/null", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidia-modeset"]
    machine.add(100, cgroup=POD_CGROUP, opens=[*opens, "socket:[1234]", "/tmp/nvidia2", "/dev/nvidia3"])
    assert machine.scanner().scan({}).processes == [ProcessEvidence(placement=IN_POD, minors=(1, 3))]


def test_device_node_counts_by_its_number_not_its_path(machine: FakeMachine) -> None:
    machine.devices |= {"/nvidia0 (deleted)": (195, 0), "/dev/nvidia5": (1, 3)}
    machine.add(100, cgroup=POD_CGROUP, opens=["/nvidia0 (deleted)", "/dev/nvidia5"])
    assert machine.scanner().scan({}).processes == [ProcessEvidence(placement=IN_POD, minors=(0,))]


def test_open_capability_files_name_their_mig_devices(machine: FakeMachine) -> None:
    caps = {f"/dev/nvidia-caps/nvidia-cap{minor}": (235, minor) for minor in (1, 3, 4, 13, 14)}
    machine.devices |= {**caps, "/dev/nvidia-caps-imex-channels/channel4": (234, 4)}
    table = "config 1\ngpu0/gi1/access 3\ngpu0/gi1/ci0/access 4\ngpu1/gi2/access 13\ngpu1/gi2/ci0/access 14\n"
    machine.write("proc/driver/nvidia-caps/mig-minors", table)
    machine.write("proc/devices", "Character devices:\n195 nvidia\n234 nvidia-caps-imex-channels\n235 nvidia-caps\n")
    machine.add(100, cgroup=POD_CGROUP, opens=["/dev/nvidia0", *list(caps)[:3]])
    machine.add(101, cgroup=JOB_CGROUP, opens=["/dev/nvidia-caps/nvidia-cap13"])  # a GPU instance alone is no access
    machine.add(102, cgroup=JOB_CGROUP, opens=["/dev/nvidia-caps-imex-channels/channel4"])
    scanner = machine.scanner()
    assert scanner.scan({}).processes == [ProcessEvidence(placement=IN_POD, minors=(0,), instances=("0/1/0",))]
    machine.write("proc/driver/nvidia-caps/mig-minors", table.replace("gi1", "gi5"))  # the driver was loaded again
    (found,) = scanner.scan({}).processes
    assert found.instances == ("0/5/0",)
    machine.write("proc/devices", "Character devices:\n195 nvidia\n235 other\n")
    (found,) = scanner.scan({}).processes
    assert (found.minors, found.instances) == ((0,), ())


def test_descriptor_without_access_to_the_device_does_not_count(machine: FakeMachine) -> None:
    machine.add(100, cgroup=POD_CGROUP, opens=["/dev/nvidia0"], flags=PATH_ONLY)
    assert machine.scanner().scan({}).processes == []


def test_open_files_of_listed_processes_do_not_count(machine: FakeMachine) -> None:
    """CUDA opens every device that it may use, also those that it does not use."""
    machine.add(100, cgroup=POD_CGROUP, opens=["/dev/nvidia0", "/dev/nvidia1"])
    scan = machine.scanner().scan({GPU0: [(100, 1000)]})
    assert scan.processes == [ProcessEvidence(placement=IN_POD, views=(GPU0,))]


def test_holder_with_open_device_is_seen_in_every_scan(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add(100, cgroup=POD_CGROUP, opens=["/dev/nvidia0"])
    scanner = machine.scanner()
    assert len(scanner.scan({}).processes) == 1
    monkeypatch.setattr(descriptors, "BUDGET_SECONDS", -1.0)  # no time for other processes
    machine.add(101, cgroup=JOB_CGROUP, opens=["/dev/nvidia1"])
    assert [one.placement for one in scanner.scan({}).processes] == [IN_POD]
    monkeypatch.undo()
    assert {one.placement for one in scanner.scan({}).processes} == {IN_POD, IN_JOB}
    (machine.root / "proc/100/fd/3").unlink()
    assert [one.placement for one in scanner.scan({}).processes] == [IN_JOB]


def test_every_process_has_its_turn(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the clock is one processed process: a scan has time for a few."""
    steps = iter(range(1_000_000))
    monkeypatch.setattr("time.thread_time", lambda: next(steps))
    monkeypatch.setattr(descriptors, "BUDGET_SECONDS", 8.0)
    for pid in range(100, 120):
        machine.add(pid)
    scanner = machine.scanner()
    scanner.scan({})
    for pid in range(120, 140):
        machine.add(pid)
    for _ in range(40):
        scanner.scan({})
    (machine.root / "proc/120/fd/3").symlink_to("/dev/nvidia0")  # opened long after its start
    (machine.root / "proc/120/fdinfo/3").write_text("flags:\t02100002\n")
    assert any(scanner.scan({}).processes for _ in range(40))
    assert all(scans >= YOUNG_SCANS for scans in scanner._descriptors._scans.values())


def test_unreadable_descriptors_are_reported(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add(100, cgroup=POD_CGROUP, opens=["/dev/nvidia0"])
    real = os.listdir

    def deny(path: str) -> list[str]:
        if path.endswith("/100/fd"):
            raise PermissionError(errno.EACCES, "denied")
        return real(path)

    monkeypatch.setattr("os.listdir", deny)
    scanner = machine.scanner()
    for _ in range(2 * YOUNG_SCANS):
        scan = scanner.scan({})
        assert (scan.processes, list(scan.problems), scan.complete) == ([], [DESCRIPTORS_DENIED], True)


def test_skipped_process_is_not_read(machine: FakeMachine) -> None:
    machine.add(100, cgroup=POD_CGROUP, opens=["/dev/nvidia0"])
    scanner = machine.scanner(frozenset({100, 999}))
    scan = scanner.scan({GPU0: [(100, 1000)]})
    assert (scan.processes, scan.unattributed, scan.complete) == ([], {GPU0}, False)
    assert scanner.skipped == {100}


# Virtual machines


def test_qemu_with_a_group_of_a_gpu_is_its_virtual_machine(machine: FakeMachine) -> None:
    machine.add_function("0000:3b:00.0")
    machine.add_function("0000:3b:00.1", kind="0x040300")
    machine.add_function("0000:5e:00.0", vendor="0x15b3", kind="0x020000")
    machine.add_group(42, "0000:3b:00.0", "0000:3b:00.1")
    machine.add_group(43, "0000:5e:00.0")
    opens = ["/dev/vfio/vfio", "/dev/vfio/42", "/dev/vfio/43"]
    machine.add(100, name="qemu-system-x86", cgroup=MACHINE, command_line=QEMU, opens=opens)
    (found,) = machine.scanner().scan({}).processes
    assert found.vm == VirtualMachine(UID, "train-0")
    assert found.passed_through == (DeviceName(Naming.PCI, "0000:3b:00.0", "0000:3b:00.0"),)


def test_group_of_several_gpus_does_not_show_which_is_used(machine: FakeMachine) -> None:
    gpus = ("0000:3b:00.0", "0000:5e:00.0")
    for address in gpus:
        machine.add_function(address)
    machine.add_group(42, *gpus)
    machine.add(100, cgroup=MACHINE, command_line=QEMU, opens=["/dev/vfio/42"])
    scan = machine.scanner().scan({})
    names = {DeviceName(Naming.PCI, address, address) for address in gpus}
    assert [(one.passed_through, set(one.grouped)) for one in scan.processes] == [((), names)]
    assert scan.unattributed_devices == names


@pytest.mark.parametrize(("uid", "cgroup", "is_weak"), [(1000, "/user.slice", True), (0, "/qemu.slice/7.scope", False)])
def test_machine_that_a_user_started_names_itself(machine: FakeMachine, uid: int, cgroup: str, is_weak: bool) -> None:
    machine.add_function("0000:3b:00.0")
    machine.add_group(42, "0000:3b:00.0")
    machine.add(100, cgroup=cgroup, command_line=QEMU, opens=["/dev/vfio/42"], uid=uid)
    scan = machine.scanner().scan({})
    (found,) = scan.processes
    assert (found.vm, found.is_weak) == (VirtualMachine(UID, "train-0"), is_weak)
    assert scan.unattributed_devices == (set(found.passed_through) if is_weak else set())


def test_group_of_a_mediated_device_is_that_device(machine: FakeMachine) -> None:
    machine.add_function("0000:3b:00.0")
    machine.add_group(44, VGPU)
    (machine.root / "sys/bus/mdev/devices").mkdir(parents=True)
    (machine.root / f"sys/bus/mdev/devices/{VGPU}").symlink_to(f"../../../devices/pci0000:3a/0000:3b:00.0/{VGPU}")
    machine.add(100, cgroup=MACHINE, command_line=QEMU, opens=["/dev/vfio/44"])
    (found,) = machine.scanner().scan({}).processes
    assert found.passed_through == (DeviceName(Naming.MDEV, VGPU, VGPU),)


def test_file_of_a_single_device_is_that_device(machine: FakeMachine) -> None:
    machine.add_function("0000:3b:00.0")
    folder = machine.root / "sys/devices/pci0000:3a/0000:3b:00.0/vfio-dev/vfio0"
    folder.mkdir(parents=True)
    (folder / "dev").write_text("510:0\n")
    (machine.root / "sys/class/vfio-dev").mkdir(parents=True)
    (machine.root / "sys/class/vfio-dev/vfio0").symlink_to("../../devices/pci0000:3a/0000:3b:00.0/vfio-dev/vfio0")
    machine.devices["/dev/vfio/devices/vfio0"] = (510, 0)
    machine.add(100, cgroup=MACHINE, command_line=QEMU, opens=["/dev/vfio/devices/vfio0"])
    (found,) = machine.scanner().scan({}).processes
    assert found.passed_through == (DeviceName(Naming.PCI, "0000:3b:00.0", "0000:3b:00.0"),)


def test_file_with_the_path_of_a_group_is_not_the_group(machine: FakeMachine) -> None:
    machine.add_function("0000:3b:00.0")
    machine.add_group(42, "0000:3b:00.0")
    machine.devices["/dev/vfio/42"] = (1, 3)
    machine.add(100, cgroup=POD_CGROUP, opens=["/dev/vfio/42"])
    assert machine.scanner().scan({}).processes == []


def test_virtual_machine_without_uuid_is_reported(machine: FakeMachine) -> None:
    machine.add_function("0000:3b:00.0")
    machine.add_group(42, "0000:3b:00.0")
    machine.add(100, cgroup=MACHINE, command_line=["qemu-kvm"], opens=["/dev/vfio/42"])
    scan = machine.scanner().scan({})
    assert [one.vm for one in scan.processes] == [None]
    assert len(scan.problems) == 1


# SLURM without cgroups


def test_job_is_that_of_the_slurmstepd_above(machine: FakeMachine) -> None:
    machine.add(80, name="slurmstepd", command_line=["slurmstepd: [4.batch]"])
    machine.add(90, name="slurm_script", parent=80)
    machine.add(100, parent=90, environment=b"SLURM_JOB_ID=7\0")
    scan = machine.scanner().scan({GPU0: [(100, 1000)]})
    assert scan.processes == [ProcessEvidence(placement=Placement(job="4", step="batch"), views=(GPU0,))]
    assert scan.unattributed == set()


def test_slurmstepd_of_a_user_is_not_believed(machine: FakeMachine) -> None:
    machine.add(80, name="slurmstepd", command_line=["slurmstepd: [4.batch]"], uid=1000)
    machine.add(100, parent=80)
    scan = machine.scanner().scan({GPU0: [(100, 1000)]})
    assert ([one.placement for one in scan.processes], scan.unattributed) == ([NOWHERE], {GPU0})


def test_job_of_the_environment_is_weak_evidence(machine: FakeMachine) -> None:
    machine.add(100, environment=b"SLURM_JOB_ID=7\0SLURM_STEP_ID=0\0")
    machine.add(101, cgroup=POD_CGROUP, environment=b"SLURM_JOB_ID=7\0")
    scan = machine.scanner().scan({GPU0: [(100, 1000)], GPU1: [(101, 1010)]})
    assert scan.processes == [
        ProcessEvidence(placement=Placement(job="7", step="0"), is_weak=True, views=(GPU0,)),
        ProcessEvidence(placement=IN_POD, views=(GPU1,)),
    ]
    assert scan.unattributed == {GPU0}


def test_ambiguous_cgroups_are_reported_with_both_names(machine: FakeMachine) -> None:
    machine.add(100, cgroup=f"0::{POD_CGROUP}\n3:devices:/slurm/uid_0/job_4/step_0\n")
    scan = machine.scanner().scan({GPU0: [(100, 1000)]})
    assert (scan.processes, scan.unattributed) == ([], {GPU0})
    (problem,) = scan.problems
    assert POD in problem


def test_machine_without_proc_is_not_enabled(tmp_path: Path) -> None:
    for root in (tmp_path / "none", tmp_path):
        (tmp_path / "proc").mkdir(exist_ok=True)
        with pytest.raises(HolderError) as caught:
            ProcessScanner(str(root)).scan({})
        assert caught.value.absence is Reason.NOT_ENABLED


# Real processes


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Create a cgroup with the name of a container's in a pod."""
    for mount in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids")):
        if (mount / "cgroup.procs").exists():
            top = mount / f"gpufleet-test-{os.getpid()}-kubepods.slice"
            folder = top / f"kubepods-pod{POD.replace('-', '_')}.slice" / f"cri-containerd-{ID}.scope"
            try:
                folder.mkdir(parents=True)
            except OSError:
                continue
            yield folder
            for one in (folder, folder.parent, top):
                one.rmdir()
            return
    pytest.skip("this machine permits no new cgroup")


def test_real_process_is_found_by_its_cgroup(cgroup: Path) -> None:
    if b"(kthreadd)" not in (Path("/proc/2/stat").read_bytes() if Path("/proc/2").exists() else b""):
        pytest.skip("this machine hides processes of the host")
    middle = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(  # the process is a grandchild: children of the agent are its own
        [sys.executable, "-c", middle], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        (pid,) = map(int, Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split())
        try:
            (cgroup / "cgroup.procs").write_text(f"{pid}\n")
            start_time = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
            scan = ProcessScanner().scan({GPU0: [(pid, start_time)]})
        finally:
            parent.stdin.write(b"\n")
            parent.stdin.close()
            parent.wait(10)
    assert scan.processes == [ProcessEvidence(placement=IN_POD, views=(GPU0,))]
