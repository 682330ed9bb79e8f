"""Commands of the guest script under a restricted key: those of the probe and of captures, and no others."""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpufleet.bench import fio, gpu_copies, perftest
from gpufleet.channels.guest_shell import ShellExec
from gpufleet.channels.guest_shell.shell import MEASURED, NAME, is_plain, script, sent_script, title_of
from gpufleet.model.commands import PERMITTED, CommandGroup, command_group
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import ExecResult
from gpufleet.probe.machine import VERSIONS
from gpufleet.probe.systemd import MANAGER_PROPERTIES, UNIT_PROPERTIES, UNITS

PROBES = (
    ("systemctl", "show", f"--property={','.join(MANAGER_PROPERTIES)}"),
    (
        "systemctl",
        "show",
        f"--property={','.join(UNIT_PROPERTIES)}",
        *(unit for units in UNITS.values() for unit in units),
    ),
    *VERSIONS.values(),
)


def workloads(path: Path | str) -> tuple[tuple[str, ...], ...]:
    """Return every command of the workloads of a capture."""
    return (
        ("stat", "-L", "-c", "%F", "--", str(path)),
        ("stat", "-f", "-c", "%t", "--", str(path)),
        ("fio", "--version"),
        *(("fio", *job.arguments(str(path), direct=direct)) for job in fio.JOBS for direct in (True, False)),
        *((test.program, "--version") for test in perftest.TESTS),
        *((test.program, *test.arguments(peer)) for test in perftest.TESTS for peer in ("node-2", "fe80::1")),
        *((test.program, *test.arguments("x")[:-1]) for test in perftest.TESTS),
        *(("nvbandwidth", *gpu_copies.nvbandwidth_arguments(name)) for name in gpu_copies.TESTCASES),
        ("bandwidthTest", "--csv"),
    )


class RestrictedKey:
    """Runs the script as a forced command in a guest whose programs print their arguments.

    Attributes:
        shell: shell of the guest.
        options: arguments of the forced command.
        programs: folder of the programs.
    """

    def __init__(self, folder: Path, shell: str, *options: str, text: str = "") -> None:
        self.shell, self.options, self.programs = shell, options, folder
        self.text = text or script()
        for name in (*PERMITTED, "id"):
            (folder / name).write_text(f'#!/bin/sh\nprintf "{name}"\nfor one in "$@"; do printf "|%s" "$one"; done\n')
            (folder / name).chmod(0o755)

    def request(self, line: str) -> tuple[int, str]:
        """Return exit code and output of a request."""
        done = subprocess.run(
            [self.shell, "-c", self.text, NAME, *self.options],
            env={"PATH": f"{self.programs}:/usr/bin:/bin", "SSH_ORIGINAL_COMMAND": line},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        return done.returncode, done.stdout

    def run(self, request: str, argv: tuple[str, ...]) -> tuple[int, str]:
        """Return exit code and output of a command."""
        return self.request(f"{NAME} {request} 5 {' '.join(argv)}")


@pytest.fixture(params=["sh", "bash"])
def probing(request: pytest.FixtureRequest, tmp_path: Path) -> RestrictedKey:
    return RestrictedKey(tmp_path, request.param)


@pytest.fixture(params=["sh", "bash", "sent"])
def measuring(request: pytest.FixtureRequest, tmp_path: Path) -> RestrictedKey:
    if request.param == "sent":
        return RestrictedKey(tmp_path, "sh", "bench", text=sent_script())
    return RestrictedKey(tmp_path, request.param, "bench")


def test_commands_of_the_probe_run_with_their_arguments(probing: RestrictedKey) -> None:
    for argv in PROBES:
        assert probing.run("probe", argv) == (0, "|".join(argv))


def test_commands_of_workloads_run_with_their_arguments(measuring: RestrictedKey, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    for argv in (*workloads(tmp_path / "data"), *PROBES):
        name = "probe" if argv in PROBES else "bench"
        assert measuring.run(name, argv) == (0, "|".join(argv))


def test_workloads_need_the_key_option(probing: RestrictedKey, tmp_path: Path) -> None:
    for argv in workloads(tmp_path):
        assert probing.run("bench", argv) == (126, "")


@pytest.mark.parametrize(
    "line",
    [
        "probe 5 id",
        "probe 5 systemctl start ssh.service",
        "probe 5 systemctl show -h.service",
        "probe 5 systemctl show --property=Id --root=/",
        "probe 5 systemctl show $(id)",
        "probe 5 systemctl show",
        "probe 5 systemctl show ssh.service",
        "probe 5 systemctl show --property=Environment docker.service",
        "probe 5 systemctl show --property=Id,ExecStart docker.service",
        f"probe 5 {' '.join(PROBES[1])} --property=Environment",
        "probe 5 docker run x",
        "probe 5 docker --version --config=/x",
        "probe 5 fio --version",
        "probe 99999 docker --version",
        "probe x docker --version",
        "probe 0 docker --version",
        "probe 05 docker --version",
        "files ab 09 f:/etc/machine-id",
        "files ab 9999999999 f:/etc/machine-id",
        "probe 5",
        "probe",
        "bench",
        "bench 5 id",
        "bench 5 stat -f -c %F -- /",
        "bench 5 fio job.ini",
        "bench 5 ib_write_bw -F --report_gbits -n 5000 -s 65536 --output=x",
        "bench 5 ib_write_bw -F --report_gbits -n 5000 -s 65536 a b",
        "bench 5 ib_write_lat -F -n 9999999 -s 2 peer",
        "bench 5 nvbandwidth --json --testcase all",
        "bench 5 nvbandwidth",
        "bench 5 bandwidthTest --csv --memory=pageable",
        "run 5 docker --version",
        "run 5 id",
    ],
)
def test_other_requests_are_refused(measuring: RestrictedKey, line: str) -> None:
    assert measuring.request(f"{NAME} {line}") == (126, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" --readonly", ""),
        (" --allow_file_create=0", ""),
        ("--rw=read", "--rw=write"),
        ("--rw=read", "--rw=randrw"),
        ("--runtime=3", "--runtime=9999"),
        ("--io_size=1024m", "--io_size=1024g"),
        ("--thread", "--thread --rw=write"),
        ("--thread", "--exec_prerun=id"),
        ("--direct=1", "--direct=2"),
        ("/data", "/data:/dev/sdb"),
        ("/data", "/missing"),
        ("/data", "/pipe"),
        ("/data", "/data$(id)"),
    ],
)
def test_changed_job_of_fio_is_refused(measuring: RestrictedKey, tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "data").write_bytes(b"x")
    subprocess.run(["mkfifo", tmp_path / "pipe"], check=True)
    line = " ".join(("fio", *fio.JOBS[0].arguments(str(tmp_path / "data"), direct=True)))
    assert measuring.request(f"{NAME} bench 5 {line}")[0] == 0
    assert measuring.request(f"{NAME} bench 5 {line.replace(old, new)}") == (126, "")


@pytest.mark.parametrize("path", ["/proc/version", "/sys/kernel/uevent_seqnum", "LINK"])
@pytest.mark.parametrize("shell", ["sh", "bash", pytest.param("busybox", marks=pytest.mark.system)])
def test_files_of_the_kernel_are_no_target_of_fio(
    tmp_path: Path, path: str, shell: str, peer: Callable[[str], Path]
) -> None:
    if shell == "busybox":
        (tmp_path / "sh").symlink_to(peer("busybox"))
    key = RestrictedKey(tmp_path, str(tmp_path / "sh") if shell == "busybox" else shell, "bench")
    (tmp_path / "stat").unlink()
    (tmp_path / "link").symlink_to("/sys/kernel/uevent_seqnum")
    (tmp_path / "data").write_bytes(b"x")
    for target, code in ((tmp_path / "data", 0), (path.replace("LINK", f"{tmp_path}/link"), 126)):
        assert key.run("bench", ("fio", *fio.JOBS[0].arguments(str(target), direct=True)))[0] == code


def test_sent_script_fits_in_a_command_of_dropbear() -> None:
    assert len(shlex.join(("sh", "-c", sent_script(), NAME, "session"))) < 9000


def test_every_argument_survives_the_split_at_blanks() -> None:
    # Arguments that do not are left out of a request, and the command would be another one.
    assert all(is_plain(argument) for argv in (*PROBES, *workloads("/data")) for argument in argv)


class RecordingShell:
    """Guest's shell that records requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ...]] = []

    async def execute(self, arguments: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        self.requests.append(tuple(arguments))
        return ExecResult(exit_code=0, stdout=b"", stderr=b"")


async def test_name_of_a_request_is_the_group_of_its_command() -> None:
    shell = RecordingShell()
    for argv in (("nvidia-smi",), *PROBES, *workloads("/data")):
        await ShellExec(shell, MEASURED).run(argv, timeout_seconds=5, max_output_bytes=100)
        group = command_group(argv)
        assert shell.requests[-1] == (group, "3", *argv)
        assert title_of(shell.requests[-1]) == " ".join(argv[:2])


async def test_workloads_are_not_sent_by_regular_readings() -> None:
    shell = RecordingShell()
    for argv in workloads("/data"):
        assert command_group(argv) is CommandGroup.BENCH
        with pytest.raises(ChannelError) as caught:
            await ShellExec(shell).run(argv, timeout_seconds=5, max_output_bytes=100)
        assert caught.value.problem is ChannelProblem.NOT_PERMITTED
    assert shell.requests == []
