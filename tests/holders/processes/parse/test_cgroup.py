"""Cgroups of processes as container runtimes, kubelets, SLURM and libvirt name them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.holders.processes.parse.cgroup import (
    MAX_NAME,
    NOWHERE,
    AmbiguousCgroupError,
    Placement,
    parse_cgroup,
    parse_path,
)

POD = "3f2a9c1e-7b54-4d8e-9a10-5c6d7e8f9a0b"
SLICE = POD.replace("-", "_")
OTHER_POD = "00000000-1111-2222-3333-444444444444"
STATIC = "8f0c1f5b0e6f4f0e9d2b7a6c5d4e3f2a"
ID = "0123456789abcdef" * 4
KIND = "/kubelet.slice/kubelet-kubepods.slice"
NODE = "fedcba9876543210" * 4

PODS = [
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/crio-{ID}.scope/container",
    f"/kubepods.slice/kubepods-pod{SLICE}.slice/docker-{ID}.scope",
    f"/kubepods/burstable/pod{POD}/{ID}",
    f"/kubepods/pod{POD}/{ID}",
    f"/kubepods/pod{POD}/{ID}/user.slice/nested",
    # containerd with the systemd driver of the kubelet and its own driver
    f"/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
    # kind, with both cgroup drivers, and inside of Docker
    f"{KIND}/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    f"/docker/{NODE}/kubelet/kubepods/burstable/pod{POD}/{ID}",
    f"/system.slice/docker-{NODE}.scope{KIND}/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    # seen from another pod's cgroup namespace
    f"/../../kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    f"/../../pod{POD}/{ID}",
    f"/kubepods/pod{POD}/{ID} (deleted)",
    # a container that makes cgroups of its own below its cgroup
    f"/kubepods/pod{POD}/{ID}/kubepods/pod{OTHER_POD}/{NODE}",
    f"/kubepods/pod{POD}/{ID}/system.slice/slurmstepd.scope/job_7/step_0",
]

JOBS = [
    ("/slurm/uid_0/job_4/step_batch/task_0", "4", "batch"),
    ("/slurm_node-1/uid_1000/job_4294901760/step_0/task_3", "node-1/4294901760", "0"),
    ("/system.slice/slurmstepd.scope/job_4/step_0/user/task_0", "4", "0"),
    ("/system.slice/node-1_slurmstepd.scope/job_12/step_extern/user/task_special", "node-1/12", "extern"),
    ("/slurm/uid_0/job_4", "4", ""),
    (f"/docker/{NODE}/slurm/uid_0/job_4/step_interactive", "4", "interactive"),
    ("/system.slice/slurmstepd.scope/job_4/step_0/user/task_0/system.slice/slurmstepd.scope/job_5", "4", "0"),
]

CONTAINERS = [
    f"/docker/{ID}",
    f"/system.slice/docker-{ID}.scope",
    f"/machine.slice/libpod-{ID}.scope/container",
    f"/machine.slice/machine-libpod_pod_{NODE}.slice/libpod-{ID}.scope",
    f"/libpod_parent/libpod-{ID}",
    f"/system.slice/nerdctl-{ID}.scope",
    f"/default/{ID}",
]

MACHINES = [
    (r"/machine.slice/machine-qemu\x2d3\x2dtrain\x2d0.scope/libvirt/emulator", "train-0"),
    (r"/machine.slice/machine-qemu\x2d12\x2dml.scope", "ml"),
    ("/machine/qemu-3-train-0.libvirt-qemu/emulator", "train-0"),
    ("/machine/train.libvirt-qemu", "train"),
    (r"/machine.slice/machine-qemu\x2d3\x2d\x1b[2J.scope", "[2J"),
]

NOTHING = [
    "/",
    "/init.scope",
    "/user.slice/user-1000.slice/session-3.scope",
    "/system.slice/ssh.service",
    "/process_api/1695569144938db25096dd40cf15fb41",
    f"/system.slice/pod{POD}",  # not below a kubelet's cgroup
    f"/machine.slice/libpod-conmon-{ID}.scope",
    r"/machine.slice/machine-lxc\x2d3\x2dbox.scope",
    "/uid_0/job_4",
    "/user.slice/job_4/step_0",
    "/slurm/uid_0/job_0",
    "/slurm/uid_0/job_99999999999",
    "/slurm/uid_0/job_٤",
    f"/../cri-containerd-{ID}.scope",  # the pod around it is hidden
    f"/kubepods/podX/{ID[:-1]}",
]

DELEGATED = "/user.slice/user-1000.slice/user@1000.service"
FORGED = [
    f"kubepods/pod{POD}/{ID}",
    f"kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    "slurm/uid_1000/job_4/step_0",
    "system.slice/slurmstepd.scope/job_4/step_0",
    r"machine.slice/machine-qemu\x2d3\x2dtrain.scope",
    "machine/train.libvirt-qemu",
    f"docker/{ID}",
    f"user.slice/libpod-{ID}.scope",  # Podman without root looks like this too
]


@pytest.mark.parametrize("path", PODS)
def test_pod_and_its_container(path: str) -> None:
    assert parse_path(path) == Placement(pod=POD, container=ID)


def test_static_pod_has_the_hash_of_its_manifest() -> None:
    for path in (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/crio-{ID}.scope",
        f"/kubepods/burstable/pod{STATIC}/{ID}",
    ):
        assert parse_path(path) == Placement(pod=STATIC, container=ID)


def test_process_of_a_pod_outside_of_its_containers() -> None:
    path = f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-conmon-{ID}.scope"
    assert parse_path(path) == Placement(pod=POD)


@pytest.mark.parametrize(("path", "job", "step"), JOBS)
def test_job_and_its_step(path: str, job: str, step: str) -> None:
    assert parse_path(path) == Placement(job=job, step=step)


def test_node_of_a_job_is_bounded_and_clean() -> None:
    placement = parse_path(f"/system.slice/\x1b\u202e{'n' * 10_000}_slurmstepd.scope/job_4/step_0")
    node, _, job = placement.job.partition("/")
    assert (node[:2], len(placement.job) <= MAX_NAME, node.isprintable(), job) == ("?n", True, True, "4")


@pytest.mark.parametrize("path", CONTAINERS)
def test_container_outside_of_a_pod(path: str) -> None:
    assert parse_path(path) == Placement(container=ID)


@pytest.mark.parametrize(("path", "name"), MACHINES)
def test_virtual_machine(path: str, name: str) -> None:
    assert parse_path(path) == Placement(machine=name)


@pytest.mark.parametrize("path", NOTHING)
def test_other_cgroups_name_no_holder(path: str) -> None:
    assert parse_path(path) == NOWHERE


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize(
    "folder",
    [
        DELEGATED,
        f"/../..{DELEGATED}",
        "/user/alice/0",
        "/system.slice/notebook.service",
        "/lxc.payload.box",
        "/students",
    ],
)
def test_names_below_a_folder_that_users_can_write_do_not_count(folder: str, name: str) -> None:
    assert parse_path(f"{folder}/{name}") == NOWHERE


def test_names_that_a_container_nests_in_an_unknown_folder_do_not_count() -> None:
    assert parse_path(f"/docker/{ID}/mine/kubepods/pod{POD}/{NODE}") == Placement(container=ID)


def test_hierarchies_of_v1_and_hybrid_are_joined() -> None:
    v1 = (
        b"12:memory:/slurm_n1/uid_0/job_4/step_batch/task_0\n"
        b"9:cpuset:/slurm_n1/uid_0/job_4/step_batch\n"
        b"5:devices:/slurm_n1/uid_0/job_4/step_batch\n"
        b"2:freezer:/slurm_n1/uid_0/job_4/step_batch\n"
        b"1:name=systemd:/system.slice/slurmd.service\n"
        b"0::/system.slice/slurmd.service\n"
    )
    assert parse_cgroup(v1) == Placement(job="n1/4", step="batch")
    with pytest.raises(AmbiguousCgroupError):
        parse_cgroup(v1.replace(b"devices:/slurm_n1", b"devices:/slurm_n2"))
    hybrid = f"4:memory:/kubepods/pod{POD}/{ID}\n1:name=systemd:/docker/{NODE}\n0::/\n"
    assert parse_cgroup(hybrid.encode()) == Placement(pod=POD, container=ID)


@pytest.mark.parametrize(
    "other",
    [f"/kubepods/pod{OTHER_POD}/{ID}", "/slurm/uid_0/job_4", r"/machine.slice/machine-qemu\x2d3\x2da.scope"],
)
def test_hierarchies_with_different_holders_are_ambiguous(other: str) -> None:
    with pytest.raises(AmbiguousCgroupError) as caught:
        parse_cgroup(f"4:memory:/kubepods/pod{POD}/{ID}\n3:devices:{other}\n".encode())
    assert POD in caught.value.args


PARTS = st.sampled_from([*PODS, *CONTAINERS, *NOTHING, *(job[0] for job in JOBS), *(vm[0] for vm in MACHINES)])


@given(st.lists(st.tuples(PARTS, st.text(max_size=20), st.binary(max_size=20)), max_size=4))
def test_any_content_gives_bounded_names(lines: list[tuple[str, str, bytes]]) -> None:
    content = b"".join(
        f"{number}:{extra}:{path}{extra}".encode("utf-8", "replace") + junk + b"\n"
        for number, (path, extra, junk) in enumerate(lines)
    )
    with contextlib.suppress(AmbiguousCgroupError):
        found = parse_cgroup(content)
        for text in (found.pod, found.container, found.job, found.step, found.machine):
            assert len(text) <= MAX_NAME
            assert "\x1b" not in text
            assert text.isascii() or text == found.machine
        assert not (found.pod and found.job)


@given(st.uuids(), st.sampled_from(["", "-besteffort", "-burstable"]), st.sampled_from(["cri-containerd", "crio"]))
def test_pod_uid_survives_the_escaping_of_systemd(uid: object, quality: str, runtime: str) -> None:
    escaped = str(uid).replace("-", "_")
    path = f"/kubepods.slice/kubepods{quality}-pod{escaped}.slice/{runtime}-{ID}.scope"
    assert parse_path(path) == Placement(pod=str(uid), container=ID)
