"""The script in every shell that a guest may have, and its answers however they come."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.channels.guest_shell import ShellFiles
from gpufleet.channels.guest_shell.frames import errno_of, parse_frames
from gpufleet.channels.guest_shell.words import NAME, script
from gpufleet.model.channel import ChannelProblem
from gpufleet.model.errors import ChannelError, WireError
from gpufleet.ports import ExecResult, Fetched, FetchPlan, Files
from tests.channels.contract import FilesContract, FilesFactory


class LocalShell:
    """Runs the script here, in a shell of one's choice."""

    def __init__(self, *shell: str | Path, environment: dict[str, str] | None = None) -> None:
        self.shell, self.environment = shell, environment

    async def ask(self, words: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            *self.shell,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_seconds)
        assert process.returncode is not None
        return ExecResult(exit_code=process.returncode, stdout=out, stderr=err)


class Below:
    """Shows a folder as `/`: the script itself knows no other root than the guest's."""

    def __init__(self, files: Files, root: Path) -> None:
        self.files, self.root = files, str(root)

    async def fetch(self, plan: FetchPlan) -> Fetched:
        below = {
            field: tuple(self.root + path for path in getattr(plan, field)) for field in plan.__struct_fields__[:3]
        }
        got = await self.files.fetch(msgspec.structs.replace(plan, **below))
        return Fetched(
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


@pytest.mark.system
class TestBusybox(FilesContract):
    """With nothing but busybox in the guest."""

    @pytest.fixture
    def make_files(self, tmp_path_factory: pytest.TempPathFactory, peer: Callable[[str], Path]) -> FilesFactory:
        busybox = peer("busybox")
        tools = tmp_path_factory.mktemp("bin")
        for tool in ("sh", "head", "readlink", "stat", "timeout"):
            (tools / tool).symlink_to(busybox)
        return make(tools / "sh", environment={"PATH": str(tools)})


async def test_the_kernels_own_files_come_as_the_kernel_has_them() -> None:
    files = ShellFiles(LocalShell("sh", "-c", script(), NAME))
    asked = FetchPlan(
        files=("/proc/sys/kernel/osrelease", "/sys/class/net/*/type", "/proc/[0-9]*/stat", "/proc/self/mem"),
        filesystems=("/proc", "/"),
    )
    fetched = await files.fetch(asked)
    assert fetched.files["/proc/sys/kernel/osrelease"].decode().strip() == os.uname().release
    assert fetched.files["/sys/class/net/lo/type"] == b"772\n"
    assert fetched.files["/proc/1/stat"].startswith(b"1 (")
    assert fetched.errors == {"/proc/self/mem": "EIO"}
    assert fetched.filesystems["/"].size_bytes == os.statvfs("/").f_blocks * os.statvfs("/").f_frsize


class TestForced:
    """As a key's forced command: words come as SSH_ORIGINAL_COMMAND, and only what is allowed is answered."""

    async def ask(self, tmp_path: Path, command: str) -> ExecResult:
        (tmp_path / "gpufleet-guest").write_text(script())
        (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "smi $*"\n')
        (tmp_path / "nvidia-smi").chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SSH_ORIGINAL_COMMAND": command}
        shell = LocalShell("sh", tmp_path / "gpufleet-guest", environment=environment)
        return await shell.ask((), timeout_seconds=20, max_output_bytes=1 << 20)

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
    async def test_everything_else_is_refused(self, tmp_path: Path, command: str) -> None:
        done = await self.ask(tmp_path, command)
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
    async def test_no_other_file_is_read(self, tmp_path: Path, path: str) -> None:
        done = await self.ask(tmp_path, f"gpufleet-guest files ab 100 f:{path} l:{path}")
        assert done.stdout.count(b"Permission denied") == 2
        assert b"root:" not in done.stdout

    async def test_what_is_allowed_is_answered(self, tmp_path: Path) -> None:
        assert (await self.ask(tmp_path, "gpufleet-guest hello")).stdout == b"gpufleet-guest 1 forced\n"
        done = await self.ask(tmp_path, "gpufleet-guest run 5 nvidia-smi --query-gpu=uuid,name --format=csv,noheader")
        assert done.stdout == b"smi --query-gpu=uuid,name --format=csv,noheader\n"
        done = await self.ask(tmp_path, "gpufleet-guest files ab 100000 f:/proc/loadavg f:/sys/class/net/*/type s:/")
        fetched = parse_frames(done.stdout, "ab", 100_000)
        assert {"/proc/loadavg", "/sys/class/net/lo/type"} <= set(fetched.files)
        assert list(fetched.filesystems) == ["/"]


class TestAnswers:
    """A guest can print what it likes."""

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
    def test_contents_come_back_whole(self, contents: dict[str, bytes]) -> None:
        nonce = "0123456789abcdef"
        printed = b"".join(f"\n{nonce} f {path}\n".encode() + content for path, content in contents.items())
        fetched = parse_frames(printed + f"\n{nonce} end .\n".encode(), nonce, 1 << 20)
        assert fetched.files == contents

    async def test_a_cut_answer_is_not_taken_for_a_whole_one(self) -> None:
        class Cut:
            async def ask(self, words: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
                return ExecResult(exit_code=0, stdout=f"\n{words[1]} f /proc/stat\ncpu 1".encode(), stderr=b"")

        with pytest.raises(ChannelError) as caught:
            await ShellFiles(Cut()).fetch(FetchPlan(files=("/proc/stat",)))
        assert caught.value.problem is ChannelProblem.PROTOCOL

    def test_words_of_errors_are_known_by_their_names(self) -> None:
        assert errno_of(b"cat: /x: No such file or directory\n") == "ENOENT"
        assert errno_of(b"sh: can't open '/x': Permission denied") == "EACCES"
        assert errno_of(b"head: error reading '/s': Invalid argument") == "EINVAL"
        assert errno_of(b"whatever") == "EIO"
