"""Pods and jobs that have processes, by cgroup trees of both versions."""

from pathlib import Path

import pytest

from gpufleet.holders.processes import cgroup_tree
from gpufleet.holders.processes.cgroup_tree import find_living
from gpufleet.model.holdings import HolderKind
from tests.fakes.machine import ID, JOB_CGROUP, POD, POD_CGROUP, FakeMachine

POD_HOLDER, JOB_HOLDER = (HolderKind.POD, POD), (HolderKind.JOB, "4")
OTHER = "00000000-1111-2222-3333-444444444444"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_pods_and_jobs_of_v2(machine: FakeMachine) -> None:
    machine.add_v2(POD_CGROUP, JOB_CGROUP, "/user.slice/user-0.slice", f"/kubepods/besteffort/pod{OTHER}/{ID}")
    assert find_living(str(machine.root)) == frozenset({POD_HOLDER, JOB_HOLDER, (HolderKind.POD, OTHER)})


def test_cgroup_without_processes_is_not_living(machine: FakeMachine) -> None:
    machine.add_v2(POD_CGROUP, populated=False)
    machine.add_v2(JOB_CGROUP)
    assert find_living(str(machine.root)) == frozenset({JOB_HOLDER})


def test_pods_and_jobs_of_v1(machine: FakeMachine) -> None:
    machine.add_v1("memory", "/slurm_n1/uid_0/job_4/step_0/task_0", 100)
    machine.add_v1("memory", "/slurm_n1/uid_0/job_5/step_0/task_0")
    machine.add_v1("devices", f"/kubepods/burstable/pod{POD}/{ID}", 101)
    machine.add_v1("memory", "/slurm_n2/uid_0/job_4/step_0/task_0", 102)
    jobs = {(HolderKind.JOB, f"{node}/4") for node in ("n1", "n2")}
    assert find_living(str(machine.root)) == frozenset({*jobs, POD_HOLDER})


def test_pods_of_a_nested_kubelet(machine: FakeMachine) -> None:
    machine.add_v2(f"/docker/{ID}/kubelet/kubepods/pod{POD}/{ID}")
    machine.add_v2(
        f"/system.slice/docker-{ID}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{OTHER}.slice"
    )
    assert find_living(str(machine.root)) == frozenset({POD_HOLDER, (HolderKind.POD, OTHER)})


def test_names_in_cgroups_of_users_do_not_count(machine: FakeMachine) -> None:
    delegated = "/user.slice/user-1000.slice/user@1000.service"
    machine.add_v2(f"{delegated}/kubepods/pod{OTHER}", f"/user.slice/kubepods/pod{OTHER}")
    machine.add_v2(POD_CGROUP, f"{POD_CGROUP}/kubepods/pod{OTHER}", f"/system.slice/x.service{JOB_CGROUP}")
    assert find_living(str(machine.root)) == frozenset({POD_HOLDER})


def test_pods_below_other_folders_of_root_are_living(machine: FakeMachine) -> None:
    machine.add_v2(f"/gpu.slice/gpu-kubepods.slice/gpu-kubepods-pod{POD.replace('-', '_')}.slice/crio-{ID}.scope")
    assert find_living(str(machine.root)) == frozenset({POD_HOLDER})


def test_tree_of_a_container_is_unknown(machine: FakeMachine) -> None:
    machine.add_v2(POD_CGROUP)
    (machine.root / "sys/fs/cgroup/cgroup.events").write_text("populated 1\n")
    assert find_living(str(machine.root)) is None


def test_hierarchy_of_a_container_is_unknown(machine: FakeMachine) -> None:
    machine.add_v1("memory", f"/kubepods/pod{POD}/{ID}", 100)
    (machine.root / "sys/fs/cgroup/memory/release_agent").unlink()
    assert find_living(str(machine.root)) is None


def test_machine_without_cgroups_and_too_many_cgroups_are_unknown(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_living(str(machine.root)) is None
    machine.add_v2(*(f"/kubepods/burstable/pod{number:08x}-1111-2222-3333-444444444444" for number in range(40)))
    living = find_living(str(machine.root))
    assert living is not None
    assert len(living) == 40
    monkeypatch.setattr(cgroup_tree, "MAX_FOLDERS", 30)
    assert find_living(str(machine.root)) is None
