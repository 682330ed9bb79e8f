"""Real SLURM in its own folder: a controller and several nodes of this machine, with device files of their own."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support import peers
from tests.support.processes import free_port
from tests.support.waiting import wait_until

MAJOR = 195
"""Major number of the NVIDIA driver's device files."""

_SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
PluginDir={plugins}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=sched_interval=1,bf_interval=1
MessageTimeout=5
KillWait=1
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu,shard
Epilog={folder}/epilog
{nodes}
PartitionName=batch Nodes={names} Default=YES MaxTime=INFINITE
"""


class Node(NamedTuple):
    """A node.

    Attributes:
        name: SLURM's name.
        gres: its `Gres=` in slurm.conf.
        files: its lines of gres.conf without `NodeName=`; `{dev}` is the folder of the device files.
    """

    name: str
    gres: str
    files: tuple[str, ...]


class Slurm:
    """A running SLURM. Its commands run in `environment`."""

    def __init__(self, folder: Path, environment: dict[str, str], nodes: Sequence[Node]) -> None:
        self.folder = folder
        self.environment = environment
        self.nodes = tuple(nodes)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *argv: str) -> str:
        """Run a command of SLURM; return what it printed."""
        done = subprocess.run(argv, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def submit(self, *options: str, script: str = "sleep 1000") -> int:
        """Submit a job; return its id."""
        output = str(self.folder / "job-%A-%a.out")
        printed = self.run("sbatch", "--parsable", "-o", output, *options, "--wrap", script)
        return int(printed.partition(";")[0])

    def states(self) -> dict[str, str]:
        """Return job id to state of all jobs that are not over."""
        lines = self.run("squeue", "-h", "-o", "%A %T").splitlines()
        return dict(line.split() for line in lines)

    def wait_for(self, state: str, *jobs: int) -> None:
        """Wait until jobs are in a state."""
        wait_until(
            lambda: all(self.states().get(str(job)) == state for job in jobs), what=f"{jobs} to be {state}", seconds=30
        )

    def start_controller(self) -> None:
        """Start the controller and wait until it answers."""
        self._start("slurmctld", "-D")
        wait_until(lambda: self._answers("scontrol", "ping"), what="slurmctld", seconds=30)

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        self._start("slurmd", "-D", "-N", name, "-d", str(self.folder / "sbin/slurmstepd"))

    def stop_controller(self) -> None:
        """Kill the controller."""
        _kill(self._running.pop("slurmctld"))

    def stop(self) -> None:
        """Kill all daemons and the processes of all jobs."""
        for process in self._running.values():
            _kill(process)
        self._running.clear()
        for pid in self._job_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _start(self, program: str, *options: str) -> None:
        key = program if program == "slurmctld" else options[2]
        with (self.folder / f"{key}.out").open("wb") as out:
            self._running[key] = subprocess.Popen(
                [self.folder / "sbin" / program, "-f", self.folder / "slurm.conf", *options],
                env=self.environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _answers(self, *argv: str) -> bool:
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False)
        return done.returncode == 0 and "is UP" in done.stdout

    def _job_processes(self) -> Iterator[int]:
        """Return the processes whose environment names this SLURM: step daemons and jobs."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name)


@contextlib.contextmanager
def slurm(folder: Path, program: Path, nodes: Sequence[Node], *, devices: int = 9) -> Iterator[Slurm]:
    """Run a controller and nodes until the block ends; yield when all nodes are idle.

    Args:
        folder: folder of all files.
        program: the unpacked slurmctld.
        nodes: the nodes.
        devices: number of device files in `folder/dev`.
    """
    root = program.parents[2]
    plugins = next(root.glob("usr/lib/*/slurm-wlm"))
    for name in ("state", "sbin", "dev", *(node.name for node in nodes)):
        (folder / name).mkdir(parents=True)
    for daemon in ("slurmctld", "slurmd", "slurmstepd"):  # under their Debian names they ignore GRES
        (folder / "sbin" / daemon).symlink_to(root / "usr/sbin" / f"{daemon}-wlm")
    for number in range(devices):
        _device(folder / "dev" / f"nvidia{number}", number)
    host = socket.gethostname().partition(".")[0]
    lines = [
        f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=16 Gres={node.gres}"
        for node in nodes
    ]
    user = "root" if os.getuid() == 0 else os.environ.get("USER", "root")
    (folder / "slurm.conf").write_text(
        _SLURM_CONF.format(
            host=host,
            user=user,
            port=free_port(),
            folder=folder,
            plugins=plugins,
            nodes="\n".join(lines),
            names=",".join(node.name for node in nodes),
        )
    )
    files = [f"NodeName={node.name} {line.format(dev=folder / 'dev')}" for node in nodes for line in node.files]
    (folder / "gres.conf").write_text("\n".join(["AutoDetect=off", *files, ""]))
    epilog = folder / "epilog"
    epilog.write_text(f"#!/bin/sh\nwhile test -e {folder}/completing; do sleep 0.1; done\n")
    epilog.chmod(0o755)
    libraries = peers.environment("slurmctld")["LD_LIBRARY_PATH"]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{libraries}:{plugins}",
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": f"{root / 'usr/bin'}:{folder / 'sbin'}:{os.environ['PATH']}",
    }
    running = Slurm(folder, environment, nodes)
    try:
        running.start_controller()
        for node in nodes:
            running.start_node(node.name)
        wait_until(
            lambda: running.run("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * len(nodes),
            what="idle nodes",
            seconds=30,
        )
        yield running
    finally:
        running.stop()


def _device(path: Path, number: int) -> None:
    """Create a device file without a driver behind it, or a plain file without permission for that."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, number))
    except PermissionError:
        path.touch()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
