"""Guest script in every shell that a guest may have, and parsing of its answers."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.channels.guest_shell import ShellFiles
from gpufleet.channels.guest_shell.files import parse_errno, parse_frames
from gpufleet.channels.guest_shell.shell import NAME, ShellReply, is_plain, script, sent_script
from gpufleet.model.errors import ChannelError, ChannelProblem, WireError
from gpufleet.ports.channel import ExecResult, FetchPlan, FetchResult, Files, FilesystemStat
from tests.channels.contract import FilesContract, FilesFactory


class LocalShell:
    """Runs the script locally in a given shell."""

    def __init__(self, *shell: str | Path, environment: dict[str, str] | None = None) -> None:
        self.shell, self.environment = shell, environment

    async def execute(self, arguments: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            *self.shell,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_seconds)
        assert process.returncode is not None
        return ExecResult(exit_code=process.returncode, stdout=out, stderr=err)


class SessionShell(LocalShell):
    """Runs the script as a session that has executed another command before."""

    async def execute(self, arguments: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        assert all(map(is_plain, arguments))
        process = await asyncio.create_subprocess_exec(
            *self.shell,
            "session",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
            limit=4 << 20,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        done: ExecResult | None = None
        for question in (("run", "5", "id"), tuple(arguments)):
            answer = ShellReply(question, max_output_bytes=max_output_bytes)
            process.stdin.write(answer.line)
            waiting = {True: process.stderr, False: process.stdout}
            async with asyncio.timeout(timeout_seconds):
                for error in (True, False):  # one stream after the other, neither beyond its end
                    while not (piece := await waiting[error].readuntil(b"\n")).startswith(answer.line[:17]):
                        done = answer.take(piece, error=error)
                    done = answer.take(piece, error=error)
        assert done is not None
        process.stdin.close()
        assert await process.wait() == 0
        return done


class Below:
    """Maps a folder to `/`, as the script has no option for another root."""

    def __init__(self, files: Files, root: Path) -> None:
        self.files, self.root = files, str(root)

    async def fetch(self, plan: FetchPlan) -> FetchResult:
        below = {
            field: tuple(self.root + path for path in getattr(plan, field)) for field in plan.__struct_fields__[:3]
        }
        got = await self.files.fetch(msgspec.structs.replace(plan, **below))
        return FetchResult(
            files={self._above(path): content for path, content in got.files.items()},
            links={self._above(path): text for path, text in got.links.items()},
            filesystems={self._above(path): one for path, one in got.filesystems.items()},
            errors={self._above(path): name for path, name in got.errors.items()},
        )

    def _above(self, path: str) -> str:
        assert path.startswith(self.root)
        return path.removeprefix(self.root) or "/"


def make(*shell: str | Path, environment: dict[str, str] | None = None) -> FilesFactory:
    return lambda root: Below(ShellFiles(LocalShell(*shell, "-c", script(), NAME, environment=environment)), root)


class TestSh(FilesContract):
    @pytest.fixture
    def make_files(self) -> FilesFactory:
        return make("sh")


class TestBash(FilesContract):
    @pytest.fixture
    def make_files(self) -> FilesFactory:
        return make("bash")


class TestSession(FilesContract):
    """Files read through a session that has run another command before."""

    @pytest.fixture
    def make_files(self) -> FilesFactory:
        return lambda root: Below(ShellFiles(SessionShell("sh", "-c", script(), NAME)), root)


@pytest.fixture(scope="module")
def busybox(tmp_path_factory: pytest.TempPathFactory, peer: Callable[[str], Path]) -> Path:
    """Folder with the tools of a guest that has only busybox."""
    tools = tmp_path_factory.mktemp("bin")
    for tool in ("sh", "head", "readlink", "stat", "timeout"):
        (tools / tool).symlink_to(peer("busybox"))
    return tools


@pytest.mark.system
class TestBusybox(FilesContract):
    """Guest with only busybox."""

    @pytest.fixture
    def make_files(self, busybox: Path) -> FilesFactory:
        return make(busybox / "sh", environment={"PATH": str(busybox)})


def contents(*patterns: str) -> dict[str, bytes]:
    """Return the content of the files that match the patterns."""
    return {path: Path(path).read_bytes() for pattern in patterns for path in map(str, Path("/").glob(pattern[1:]))}


class KernelContract:
    """Files of the kernel are read together. Subclasses define a fixture `shell`."""

    of_a_folder = "EISDIR"

    async def test_kernel_files_are_unchanged(self, shell: LocalShell) -> None:
        names = ("type", "ifindex", "address", "statistics/no_such_counter")
        plan = FetchPlan(
            files=("/proc/sys/kernel/osrelease", *(f"/sys/class/net/*/{name}" for name in names), "/proc/[0-9]*/stat"),
            filesystems=("/proc", "/"),
        )
        fetched = await ShellFiles(shell).fetch(plan)
        assert fetched.errors == {}
        assert fetched.files["/proc/1/stat"].startswith(b"1 (")
        named = {path: text for path, text in fetched.files.items() if not path.endswith("/stat")}
        assert named == contents("/proc/sys/kernel/osrelease", *(f"/sys/class/net/*/{name}" for name in names))
        assert fetched.filesystems["/"].size_bytes == os.statvfs("/").f_blocks * os.statvfs("/").f_frsize

    async def test_unreadable_file_does_not_affect_others(self, shell: LocalShell) -> None:
        fetched = await ShellFiles(shell).fetch(
            FetchPlan(files=("/sys/class/net", "/sys/none", "/proc/loadavg", "/sys/class/net/lo/type"))
        )
        assert fetched.errors == {"/sys/class/net": self.of_a_folder, "/sys/none": "ENOENT"}
        assert set(fetched.files) == {"/proc/loadavg", "/sys/class/net/lo/type"}

    async def test_file_over_the_limit_is_an_error(self, shell: LocalShell) -> None:
        plan = FetchPlan(files=("/proc/stat", "/proc/loadavg"), max_file_bytes=100)
        fetched = await ShellFiles(shell).fetch(plan)
        assert (list(fetched.files), fetched.errors) == (["/proc/loadavg"], {"/proc/stat": "EFBIG"})

    async def test_more_files_than_one_command_takes(self, shell: LocalShell) -> None:
        few = [part.replace("-lt 1000", "-lt 7") if isinstance(part, str) else part for part in shell.shell]
        assert few != list(shell.shell)
        shell.shell = tuple(few)
        paths = tuple(f"/sys/class/net/lo/{'./' * number}type" for number in range(40))
        links = tuple(f"/proc/{'./' * number}self" for number in range(20))
        fetched = await ShellFiles(shell).fetch(
            FetchPlan(files=("/sys/class/net/lo/statistics/*", *paths), links=links)
        )
        assert set(fetched.files) == {*paths, *contents("/sys/class/net/lo/statistics/*")}
        assert set(fetched.links) == set(links)
        assert all(text.isdigit() for text in fetched.links.values())
        assert fetched.errors == {}


class TestKernelSh(KernelContract):
    @pytest.fixture
    def shell(self) -> LocalShell:
        return LocalShell("sh", "-c", script(), NAME)


class TestKernelBash(KernelContract):
    @pytest.fixture
    def shell(self) -> LocalShell:
        return LocalShell("bash", "-c", script(), NAME)


class TestKernelSent(KernelContract):
    """The script as it is sent with a command."""

    @pytest.fixture
    def shell(self) -> LocalShell:
        return LocalShell("sh", "-c", sent_script(), NAME)


class TestKernelSession(KernelContract):
    @pytest.fixture
    def shell(self) -> LocalShell:
        return SessionShell("sh", "-c", script(), NAME)


@pytest.mark.system
class TestKernelBusybox(KernelContract):
    of_a_folder = "EIO"  # its `head` gives no reason

    @pytest.fixture
    def shell(self, busybox: Path) -> LocalShell:
        return SessionShell(busybox / "sh", "-c", script(), NAME, environment={"PATH": str(busybox)})


async def test_failed_read_has_the_kernels_error_name() -> None:
    files = ShellFiles(LocalShell("sh", "-c", script(), NAME))
    fetched = await files.fetch(FetchPlan(files=("/proc/self/mem", "/sys/class/net/lo/speed", "/sys/class/net/lo/mtu")))
    assert fetched.errors == {"/proc/self/mem": "EIO", "/sys/class/net/lo/speed": "EINVAL"}
    assert fetched.files == contents("/sys/class/net/lo/mtu")


@pytest.mark.parametrize("program", ["head", "readlink"])
async def test_missing_program_in_the_guest_is_an_error(tmp_path: Path, program: str) -> None:
    for tool in {"head", "readlink"} - {program}:
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    text = script().replace("PATH=$PATH:/usr/local/sbin:", "PATH=$PATH:/none/").replace(":/usr/bin:/sbin:/bin\n", "\n")
    files = ShellFiles(LocalShell("/bin/sh", "-c", text, NAME, environment={"PATH": str(tmp_path)}))
    if program == "head":
        with pytest.raises(ChannelError, match="not found"):
            await files.fetch(FetchPlan(files=("/sys/class/net/*/type",)))
    else:
        fetched = await files.fetch(FetchPlan(links=("/proc/self",)))
        assert fetched.errors == {"/proc/self": "EIO"}


class TestForced:
    """Script as the forced command of a key: SSH_ORIGINAL_COMMAND is answered only if it is allowed."""

    async def execute(self, tmp_path: Path, command: str, shell_path: str | Path = "sh") -> ExecResult:
        (tmp_path / "gpufleet-guest").write_text(script())
        (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "smi $*"\n')
        (tmp_path / "nvidia-smi").chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SSH_ORIGINAL_COMMAND": command}
        shell = LocalShell(shell_path, tmp_path / "gpufleet-guest", environment=environment)
        return await shell.execute((), timeout_seconds=20, max_output_bytes=1 << 20)

    @pytest.mark.parametrize(
        "command",
        [
            "",
            "id",
            "sh -c id",
            "gpufleet-guest",
            "gpufleet-guest id",
            "gpufleet-guest run 5 id",
            "gpufleet-guest run 5 nvidia-smi -pm 1",
            "gpufleet-guest run 5 nvidia-smi --gpu-reset",
            "gpufleet-guest run 5 nvidia-smi -q -f /etc/passwd",
            "gpufleet-guest run $(id) nvidia-smi -L",
            "gpufleet-guest run 5;id nvidia-smi -L",
            "gpufleet-guest run 5 gpufleet agent",
            "gpufleet-guest run 5 gpufleet snapshot --format json --config /x",
            "gpufleet-guest files zz 100 f:/proc/stat",
            "gpufleet-guest files ab 1+id f:/proc/stat",
        ],
    )
    async def test_other_commands_are_refused(self, tmp_path: Path, command: str) -> None:
        done = await self.execute(tmp_path, command)
        assert (done.exit_code, done.stdout) == (126, b"")
        assert b"not permitted" in done.stderr

    @pytest.mark.parametrize(
        "path",
        [
            "/etc/passwd",
            "/etc/shadow",
            "/proc/1/environ",
            "/proc/*/environ",
            "/proc/[0-9]*/cmdline",
            "/proc/kcore",
            "/root/.ssh/id_ed25519",
            "/sys/class/net/../../../etc/passwd",
            "/sys/class/net/*/../../../../etc/passwd",
            "/proc/stat/../../etc/passwd",
            "/etc/systemd/system/../../passwd.service",
            "relative",
        ],
    )
    async def test_other_files_are_refused(self, tmp_path: Path, path: str) -> None:
        done = await self.execute(tmp_path, f"gpufleet-guest files ab 100 f:{path} l:{path}")
        assert done.stdout.count(b"Permission denied") == 2
        assert b"root:" not in done.stdout

    # dash and busybox expand these to `..`, bash does not.
    @pytest.mark.parametrize("component", [".?", ".*", ".[.]", "..*", "?."])
    @pytest.mark.parametrize("shell", ["sh", "bash", pytest.param("busybox", marks=pytest.mark.system)])
    async def test_pattern_does_not_leave_its_folder(
        self, tmp_path: Path, component: str, shell: str, request: pytest.FixtureRequest
    ) -> None:
        program = request.getfixturevalue("busybox") / "sh" if shell == "busybox" else shell
        path = f"/sys/class/net/{component}/{component}/{component}/etc/passwd"
        parent = f"/sys/class/net/{component}"
        done = await self.execute(tmp_path, f"gpufleet-guest files ab 100000 f:{path} l:{path} l:{parent}", program)
        assert done.exit_code == 0
        assert b"root:" not in done.stdout
        fetched = parse_frames(done.stdout, "ab", 100_000)
        assert (fetched.files, fetched.links) == ({}, {})

    async def test_only_the_presence_of_configurations_is_reported(self, tmp_path: Path) -> None:
        unit, specification = tmp_path / "system" / "docker.service", tmp_path / "cdi" / "nvidia.json"
        for path in (unit, specification):
            path.parent.mkdir()
            path.write_text("Environment=TOKEN=secret")
        below = script().replace("/etc/systemd/system/", f"{unit.parent}/").replace("/etc/cdi/", f"{tmp_path}/cdi/")
        command = f"gpufleet-guest files ab 100000 f:{unit} f:{tmp_path}/cdi/*.json"
        environment = {"PATH": os.environ["PATH"], "SSH_ORIGINAL_COMMAND": command}
        shell = LocalShell("sh", "-c", below, NAME, environment=environment)
        done = await shell.execute((), timeout_seconds=20, max_output_bytes=1 << 20)
        found = parse_frames(done.stdout, "ab", 100_000)
        assert found.files == {str(unit): b"", str(specification): b""}

    @pytest.mark.parametrize("name", ["resource0", "resource2_wc", "rom"])
    async def test_ports_of_devices_are_not_read(self, tmp_path: Path, name: str) -> None:
        path = f"/sys/bus/pci/devices/0000:00:01.0/{name}"
        done = await self.execute(tmp_path, f"gpufleet-guest files ab 1 f:{path} f:/sys/bus/pci/devices/*/r*[0m]")
        fetched = parse_frames(done.stdout, "ab", 1)
        assert fetched.errors[path] == "EACCES"
        assert fetched.files == {}

    async def test_allowed_commands_are_answered(self, tmp_path: Path) -> None:
        assert (await self.execute(tmp_path, "gpufleet-guest hello")).stdout == b"gpufleet-guest 1 forced\n"
        done = await self.execute(
            tmp_path, "gpufleet-guest run 5 nvidia-smi --query-gpu=uuid,name --format=csv,noheader"
        )
        assert done.stdout == b"smi --query-gpu=uuid,name --format=csv,noheader\n"
        done = await self.execute(
            tmp_path, "gpufleet-guest files ab 100000 f:/proc/loadavg f:/sys/class/net/*/type s:/"
        )
        fetched = parse_frames(done.stdout, "ab", 100_000)
        assert {"/proc/loadavg", "/sys/class/net/lo/type"} <= set(fetched.files)
        assert list(fetched.filesystems) == ["/"]


class TestAnswers:
    """Parsing of arbitrary output of a guest."""

    @given(st.binary(max_size=300))
    def test_any_bytes_are_frames_or_a_named_error(self, printed: bytes) -> None:
        with pytest.raises(WireError):
            parse_frames(printed, "n", 100)

    @given(st.lists(st.binary(max_size=40), max_size=6))
    def test_any_bytes_between_frames_are_records_or_a_named_error(self, pieces: list[bytes]) -> None:
        printed = b"".join(b"\nn " + piece for piece in pieces) + b"\nn end .\n"
        try:
            fetched = parse_frames(printed, "n", 20)
        except WireError:
            return
        assert all(len(content) <= 20 for content in fetched.files.values())

    @given(st.dictionaries(st.from_regex(r"/[a-z]{1,8}", fullmatch=True), st.binary(max_size=200), max_size=5))
    def test_contents_round_trip(self, contents: dict[str, bytes]) -> None:
        nonce = "0123456789abcdef"
        printed = b"".join(f"\n{nonce} f {path}\n".encode() + content for path, content in contents.items())
        fetched = parse_frames(printed + f"\n{nonce} end .\n".encode(), nonce, 1 << 20)
        assert fetched.files == contents

    @pytest.mark.parametrize("free", ["18446744073709551615", "-1"])  # busybox, GNU coreutils
    def test_sizes_are_unsigned_numbers_of_64_bits(self, free: str) -> None:
        """CephFS reports 2^64-1 free files."""
        printed = f"\nn s /data\n4096 1000 500 400 123456 {free}\n\nn end .\n".encode()
        fetched = parse_frames(printed, "n", 100)
        assert fetched.filesystems["/data"] == FilesystemStat(
            size_bytes=4_096_000,
            free_bytes=2_048_000,
            available_bytes=1_638_400,
            files=123_456,
            files_free=2**64 - 1,
        )
        assert fetched.errors == {}

    @pytest.mark.parametrize(
        "sizes", ["", "4096 1000", "4096 1000 500 400 9 x", "4096 -1 500 400 9 9", f"4096 1000 500 400 9 {2**64}"]
    )
    def test_malformed_sizes_are_no_missing_path(self, sizes: str) -> None:
        fetched = parse_frames(f"\nn s /data\n{sizes}\n\nn end .\n".encode(), "n", 100)
        assert (fetched.filesystems, fetched.errors) == ({}, {"/data": "EPROTO"})

    def test_error_of_sizes_is_that_of_the_guest(self) -> None:
        printed = b"\nn s /data\n\nn e /data\nstat: /data: Permission denied\n\nn end .\n"
        assert parse_frames(printed, "n", 100).errors == {"/data": "EACCES"}

    async def test_truncated_answer_is_refused(self) -> None:
        class Cut:
            async def execute(
                self, arguments: Sequence[str], *, timeout_seconds: float, max_output_bytes: int
            ) -> ExecResult:
                return ExecResult(exit_code=0, stdout=f"\n{arguments[1]} f /proc/stat\ncpu 1".encode(), stderr=b"")

        with pytest.raises(ChannelError) as caught:
            await ShellFiles(Cut()).fetch(FetchPlan(files=("/proc/stat",)))
        assert caught.value.problem is ChannelProblem.PROTOCOL

    def test_error_messages_map_to_errno_names(self) -> None:
        assert parse_errno(b"cat: /x: No such file or directory\n") == "ENOENT"
        assert parse_errno(b"sh: can't open '/x': Permission denied") == "EACCES"
        assert parse_errno(b"head: error reading '/s': Invalid argument") == "EINVAL"
        assert parse_errno(b"whatever") == "EIO"
