"""Processes of a real SLURM that uses no cgroups: the job is that of the step daemon above them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.holders.processes.fetch import ProcessScanner
from gpufleet.holders.processes.parse.cgroup import Placement
from gpufleet.holders.processes.records import ProcessEvidence
from tests.support import peers
from tests.support.libvirt import lacking
from tests.support.slurm import Node, slurm
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

GPU0 = "gpu/GPU-0"


def sleepers(job: int, folder: Path) -> Iterator[tuple[int, int]]:
    """Yield id and start time of the `sleep` processes of a job of the SLURM in a folder: others have equal job ids."""
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes()
            if f"SLURM_JOB_ID={job}".encode() not in environ.split(b"\0") or os.fsencode(folder) not in environ:
                continue
            name, _, fields = (entry / "stat").read_text().partition(") ")
        except OSError:
            continue
        if name.endswith("(sleep"):
            yield int(entry.name), int(fields.split()[19])


def test_process_of_a_job_without_cgroup_is_found(tmp_path: Path) -> None:
    program = peers.find("slurmctld")
    if program is None:
        lacking("slurmctld is missing: run `make test`")
    if os.getuid() != 0 or b"(kthreadd)" not in Path("/proc/2/stat").read_bytes():
        pytest.skip("slurmd does not run as root here, or this machine hides the host's processes")
    assert program is not None
    node = Node("n1", "gpu:h100:2", ("Name=gpu Type=h100 File={dev}/nvidia[0-1]",))
    with slurm(tmp_path, program, [node]) as running:
        job = running.submit("--gres=gpu:1")
        running.wait_for("RUNNING", job)
        wait_until(lambda: len(list(sleepers(job, tmp_path))) == 1, what="the process of the job")
        scan = ProcessScanner().scan({GPU0: list(sleepers(job, tmp_path))})
    assert scan.processes == [ProcessEvidence(placement=Placement(job=str(job), step="batch"), views=(GPU0,))]
    assert (scan.unattributed, scan.problems) == (set(), {})
