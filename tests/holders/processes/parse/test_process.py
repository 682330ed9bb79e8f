"""Files of a process: identity, QEMU's command line, SLURM's title and environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.holders.processes.parse.process import (
    MAX_NAME,
    JobStep,
    ProcessStat,
    VirtualMachine,
    is_path_only,
    namespaces_of,
    parse_environment,
    parse_stat,
    parse_step_title,
    parse_virtual_machine,
    user_of,
)

UID = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"

LIBVIRT = [
    "/usr/bin/qemu-system-x86_64",
    *("-name", "guest=train-0,debug-threads=on", "-S"),
    *("-object", '{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/var/lib/libvirt/x/master-key.aes"}'),
    *("-machine", "pc-q35-7.2,usb=off,dump-guest-core=off", "-accel", "kvm", "-uuid", UID, "-no-user-config"),
    *("-device", '{"driver":"vfio-pci","host":"0000:3b:00.0","id":"hostdev0","bus":"pci.6","addr":"0x0"}'),
]
PROXMOX = [
    "/usr/bin/kvm",
    *("-id", "100", "-name", "vm,,a,debug-threads=on", "-no-shutdown"),
    *("-smbios", f"type=1,uuid={UID}", "-smbios", "type=2,serial=x"),
]


def joined(arguments: list[str]) -> bytes:
    return "\0".join(arguments).encode() + b"\0"


def test_stat_has_name_parent_and_start_time() -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    stat = f"4242 (a) b) (c) S {fields}".encode()
    assert parse_stat(stat) == ProcessStat(b"a) b) (c", 4, 22)
    assert parse_stat(b"") is None
    assert parse_stat(b"1 (x) S 0") is None


@pytest.mark.parametrize(("arguments", "name"), [(LIBVIRT, "train-0"), (PROXMOX, "vm,a")])
def test_virtual_machine_of_a_command_line(arguments: list[str], name: str) -> None:
    assert parse_virtual_machine(joined(arguments)) == VirtualMachine(UID, name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["/usr/bin/python3", *LIBVIRT[1:]],
        ["qemu-system-x86_64", "-uuid", "none"],
        ["qemu-system-x86_64", "-uuid"],
        ["qemu-system-x86_64", "-smbios", f"type=2,uuid={UID}"],
        [""],
    ],
)
def test_other_command_lines_have_no_virtual_machine(arguments: list[str]) -> None:
    assert parse_virtual_machine(joined(arguments)) is None


def test_name_of_a_virtual_machine_is_bounded() -> None:
    found = parse_virtual_machine(joined(["qemu-kvm", "-uuid", UID, "-name", "\x1b[2J" + "x" * 10_000]))
    assert found is not None
    assert len(found.name) == MAX_NAME
    assert "\x1b" not in found.name


@pytest.mark.parametrize(
    ("title", "step"),
    [
        (b"slurmstepd: [4.batch]\0", JobStep("4", "batch")),
        (b"slurmstepd: [123.0]", JobStep("123", "0")),
        (b"slurmstepd: [12+1.0]", None),  # the component's own id is not in the title
        (b"slurmd: [4.batch]", None),
        (b"", None),
    ],
)
def test_step_of_a_slurmstepd(title: bytes, step: JobStep | None) -> None:
    assert parse_step_title(title) == step


@pytest.mark.parametrize(
    ("environment", "step"),
    [
        (b"PATH=/bin\0SLURM_JOB_ID=4\0SLURM_STEP_ID=0\0", JobStep("4", "0")),
        (b"SLURM_JOB_ID=4\0SLURM_STEP_ID=4294967291\0", JobStep("4", "")),
        (b"SLURM_JOB_ID=4", JobStep("4", "")),
        (b"SLURM_JOB_ID=4\x1b\0", None),
        (b"SLURM_JOB_ID=\0", None),
        (b"XSLURM_JOB_ID=4\0", None),
        (b"", None),
    ],
)
def test_job_of_an_environment(environment: bytes, step: JobStep | None) -> None:
    assert parse_environment(environment) == step


def test_status_has_user_and_namespaces() -> None:
    status = b"Name:\tx\nUid:\t1000\t0\t0\t0\nNSpid:\t4242\t17\nThreads:\t1\n"
    assert (user_of(status), namespaces_of(status)) == (1000, 2)
    assert (user_of(b""), namespaces_of(b"")) == (None, 1)


def test_descriptor_without_access_to_its_file() -> None:
    assert not is_path_only(b"pos:\t0\nflags:\t02100002\nmnt_id:\t25\n")
    assert is_path_only(b"pos:\t0\nflags:\t012000000\nmnt_id:\t25\n")
    assert is_path_only(b"")


@given(st.binary(max_size=300))
def test_any_content_is_parsed(content: bytes) -> None:
    for parse in (parse_stat, parse_virtual_machine, parse_step_title, parse_environment, user_of, is_path_only):
        parse(content)
    assert namespaces_of(content) >= 0
