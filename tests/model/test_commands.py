"""Permitted commands: those of the probe and of captures, and no others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.bench.fio import JOBS
from gpufleet.bench.perftest import TESTS
from gpufleet.model.commands import CommandGroup, command_group

READ = ("fio", *JOBS[0].arguments("/data/file", direct=True))


def test_commands_of_workloads_are_permitted() -> None:
    for job in JOBS:
        assert command_group(("fio", *job.arguments("/dev/nvme0n1", direct=True))) is CommandGroup.BENCH
    for test in TESTS:
        for peer in ("node-2.example", "fe80::1"):
            assert command_group((test.program, *test.arguments(peer))) is CommandGroup.BENCH


@pytest.mark.parametrize(
    "argv",
    [
        ("sh", "-c", "true"),
        ("nvidia-smi", "-pm", "1"),
        ("nvidia-smi", "--gpu-reset"),
        ("systemctl", "start", "ssh.service"),
        ("systemctl", "ssh.service", "show"),
        ("systemctl", "show", "-h.service"),
        ("systemctl", "show"),
        ("systemctl", "show", "docker.service", "--property=Id"),
        ("systemctl", "show", "--property=Id,Environment", "docker.service"),
        ("gpufleet", "snapshot"),
        ("docker", "run", "x"),
        tuple(part for part in READ if part != "--readonly"),
        tuple(part for part in READ if part != "--allow_file_create=0"),
        tuple(part.replace("--rw=read", "--rw=write") for part in READ),
        tuple(part.replace("--rw=read", "--rw=randrw") for part in READ),
        (*READ, "--rw=write"),
        (*READ, "--rw=randread"),
        (*READ, "--filename=/dev/sdb"),
        (*READ, "--exec_prerun=rm"),
        (*READ, "/etc/passwd"),
        tuple(part.replace("/data/file", "/data/file:/dev/sdb") for part in READ),
        ("ib_write_bw", "--output=x", "peer"),
        ("nvbandwidth", "--json", "--testcase", "a b"),
        ("stat", "-f", "/"),
    ],
)
def test_other_commands_are_refused(argv: tuple[str, ...]) -> None:
    assert command_group(argv) is None


@given(st.sampled_from(["write", "randwrite", "trim", "rw", "randrw", "readwrite", "trimwrite", "randtrim"]))
def test_writing_jobs_of_fio_are_refused(rw: str) -> None:
    assert command_group(tuple(part.replace("--rw=read", f"--rw={rw}") for part in READ)) is None
