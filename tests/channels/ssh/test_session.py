"""Shell sessions in a guest, over a real sshd: reuse, replacement, and hostile guests."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpufleet.channels.guest_shell import ShellFiles
from gpufleet.channels.guest_shell.shell import script
from gpufleet.channels.ssh.shell import SshShell
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.ports.channel import FetchPlan
from tests.channels.ssh.client import list_gpus, problem, shell_of
from tests.support.sshd import Guest
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

PLAN = FetchPlan(files=("/proc/loadavg",))

PRINT_SHELL_PID = "#!/bin/sh\ncut -d' ' -f4 /proc/$PPID/stat\n"
"""Prints the process id of the shell: the parent of timeout(1), which starts this script."""

HOSTILE = r"""#!/bin/sh
case $SSH_ORIGINAL_COMMAND in
*hello*) echo gpufleet-guest 1 forced session; exit ;;
esac
echo $$ >>"$FAKE_FOLDER/sessions"
answer() { printf '%s\nGPU 0\n\n%s 0\n' "$1" "$1"; printf '\n%s 0\n' "$1" >&2; }
while read -r mark command; do
    case $(cat "$FAKE_FOLDER/trick") in
    well) answer "$mark" ;;
    older) answer "${before:-$mark}" ;;
    late) [ -n "$before" ] && answer "$before"; answer "$mark" ;;
    twice) answer "$mark"; answer "$mark" ;;
    early) printf '%s\n\n%s 0\nGPU 0\n\n%s 0\n' "$mark" "$mark" "$mark" ;;
    closes) exit 0 ;;
    floods) exec cat /dev/zero ;;
    chatters) answer "$mark"; exec cat /dev/zero ;;
    mute) ;;
    mute_then_floods) read -r mark; exec cat /dev/zero ;;
    esac
    before=$mark
done
"""


@pytest.fixture
def guest() -> Iterator[Guest]:
    with Guest() as one:
        one.program("nvidia-smi", PRINT_SHELL_PID)
        yield one


def forced(guest: Guest, name: str, text: str) -> None:
    """Make this script the forced command of the key."""
    guest.program(name, text)
    guest.forced = guest.folder / "bin" / name
    guest.authorize(guest.own_key)


async def shell_pid(shell: SshShell) -> int:
    return int((await list_gpus(shell)).stdout)


async def first_answer(shell: SshShell, allowed: ChannelProblem, *, most: int = 10_000) -> bytes | None:
    """Query at most `most` times until there is an answer. Only `allowed` problems may occur before it."""
    for _ in range(most):
        try:
            return (await list_gpus(shell)).stdout
        except ChannelError as error:
            if error.problem is not allowed:
                raise
        await asyncio.sleep(0.01)
    return None


class TestSessions:
    @pytest.fixture(params=["sent", "forced"])
    async def shell(self, guest: Guest, request: pytest.FixtureRequest) -> AsyncIterator[SshShell]:
        if request.param == "forced":
            forced(guest, "gpufleet-guest", script())
        async with shell_of(guest) as one:
            yield one

    async def test_sequential_commands_share_one_shell(self, shell: SshShell) -> None:
        first = await shell_pid(shell)
        assert (await ShellFiles(shell).fetch(PLAN)).files
        assert await shell_pid(shell) == first
        assert str(await asyncio.to_thread(Path(f"/proc/{first}/cwd").readlink)) == "/", (
            "the shell keeps a folder of the tenant busy"
        )

    async def test_shell_ends_with_the_connection(self, shell: SshShell) -> None:
        first = await shell_pid(shell)
        await shell.close()
        await asyncio.to_thread(wait_until, lambda: not Path(f"/proc/{first}").exists(), what="the shell to end")
        assert await shell_pid(shell) != first

    async def test_two_concurrent_commands_keep_two_processes(self, guest: Guest, shell: SshShell) -> None:
        guest.program(
            "nvidia-smi", PRINT_SHELL_PID + 'echo >>"$FAKE_FOLDER/up"; until [ -e "$FAKE_FOLDER/go" ]; do :; done\n'
        )
        commands = [asyncio.create_task(shell_pid(shell)) for _ in range(3)]
        up = guest.folder / "up"
        await asyncio.to_thread(
            wait_until, lambda: up.exists() and len(up.read_text()) == 3, what="all commands to run"
        )
        (guest.folder / "go").touch()
        shells = set(await asyncio.gather(*commands))
        assert len(shells) == 3

        def left() -> int:
            return sum(Path(f"/proc/{one}").exists() for one in shells)

        await asyncio.to_thread(wait_until, lambda: left() == 2, what="the third shell to end")
        assert await shell_pid(shell) in shells

    async def test_shell_killed_between_commands_is_replaced(self, shell: SshShell) -> None:
        first = await shell_pid(shell)
        os.kill(first, 9)
        await asyncio.to_thread(
            wait_until, lambda: not any(one.is_open for one in shell._idle), what="the shell to be closed"
        )
        assert await shell_pid(shell) != first

    async def test_shell_killed_during_a_command_is_replaced(self, guest: Guest, shell: SshShell) -> None:
        guest.program("nvidia-smi", "#!/bin/sh\nkill -9 $(cut -d' ' -f4 /proc/$PPID/stat)\n")
        assert await problem(shell) is ChannelProblem.ENDED
        guest.program("nvidia-smi", PRINT_SHELL_PID)
        assert await shell_pid(shell)

    async def test_shell_with_a_hanging_command_is_not_reused(self, guest: Guest, shell: SshShell) -> None:
        guest.program("timeout", '#!/bin/sh\nshift 3; exec "$@"\n')  # a guest whose timeout(1) ends nothing
        first = await shell_pid(shell)
        guest.program("nvidia-smi", '#!/bin/sh\necho $$ >"$FAKE_FOLDER/started"; exec sleep 600\n')
        with pytest.raises(ChannelTimeoutError):
            await list_gpus(shell, timeout_seconds=1)
        assert (await ShellFiles(shell).fetch(PLAN)).files, "another shell answers"
        os.kill(int((guest.folder / "started").read_text()), 9)
        await asyncio.to_thread(
            wait_until, lambda: not Path(f"/proc/{first}").exists(), what="the shell to end with its command"
        )


class TestHostile:
    @pytest.fixture
    async def shell(self, guest: Guest) -> AsyncIterator[SshShell]:
        forced(guest, "hostile", HOSTILE)
        self.play(guest, "well")
        async with shell_of(guest) as one:
            yield one

    def play(self, guest: Guest, trick: str) -> None:
        fresh = guest.folder / ".trick"
        fresh.write_text(trick)
        fresh.rename(guest.folder / "trick")

    def runs(self, guest: Guest, number: int) -> bool:
        return Path(f"/proc/{(guest.folder / 'sessions').read_text().split()[number]}").exists()

    def sessions(self, guest: Guest) -> int:
        return len((guest.folder / "sessions").read_text().split())

    @pytest.mark.parametrize(
        ("trick", "expected"),
        [
            ("older", ChannelProblem.PROTOCOL),
            ("late", ChannelProblem.PROTOCOL),
            ("early", ChannelProblem.PROTOCOL),
            ("closes", ChannelProblem.ENDED),
            ("floods", ChannelProblem.PROTOCOL),
        ],
    )
    async def test_invalid_answer_replaces_the_shell(
        self, guest: Guest, shell: SshShell, trick: str, expected: ChannelProblem
    ) -> None:
        assert (await list_gpus(shell)).stdout == b"GPU 0\n"
        self.play(guest, trick)
        assert await problem(shell) is expected
        self.play(guest, "well")
        assert (await list_gpus(shell)).stdout == b"GPU 0\n"
        assert self.sessions(guest) == 2
        await asyncio.to_thread(wait_until, lambda: not self.runs(guest, 0), what="the shell to end")
        assert guest.log().count("Accepted publickey") == 1, "the connection is still used"

    async def test_duplicate_answer_is_not_taken_for_the_next(self, guest: Guest, shell: SshShell) -> None:
        self.play(guest, "twice")
        for _ in range(4):
            assert await first_answer(shell, ChannelProblem.PROTOCOL, most=1) in (b"GPU 0\n", None)
        self.play(guest, "well")
        assert await first_answer(shell, ChannelProblem.PROTOCOL) == b"GPU 0\n"
        assert self.sessions(guest) > 1

    @pytest.mark.parametrize("during_command", [True, False])
    async def test_endless_output_closes_the_shell(self, guest: Guest, shell: SshShell, during_command: bool) -> None:
        if during_command:
            self.play(guest, "mute_then_floods")
            with pytest.raises(ChannelTimeoutError):
                await list_gpus(shell, timeout_seconds=0.5)
        else:
            self.play(guest, "chatters")
            assert await first_answer(shell, ChannelProblem.PROTOCOL, most=1) in (b"GPU 0\n", None)
        await asyncio.to_thread(wait_until, lambda: not self.runs(guest, 0), what="the shell to end")

    async def test_late_answer_is_discarded(self, guest: Guest, shell: SshShell) -> None:
        self.play(guest, "mute")
        with pytest.raises(ChannelTimeoutError):
            await list_gpus(shell, timeout_seconds=0.5)
        self.play(guest, "well")
        # The mute shell ends when its stdin is closed.
        assert await first_answer(shell, ChannelProblem.TIMEOUT) == b"GPU 0\n"
        assert self.sessions(guest) == 2


async def test_guest_script_without_sessions_runs_each_command_alone(guest: Guest) -> None:
    text = script().replace('"${2:+ session}"', '""').replace("session) session ;;\n", "")
    assert len(text) < len(script()) - 30
    forced(guest, "gpufleet-guest", text)
    async with shell_of(guest) as shell:
        assert await shell_pid(shell) != await shell_pid(shell)
        assert (await ShellFiles(shell).fetch(PLAN)).files


async def test_path_with_blanks_is_read_without_a_session(guest: Guest) -> None:
    async with shell_of(guest) as shell:
        fetched = await ShellFiles(shell).fetch(FetchPlan(files=("/a b", "/proc/loadavg"), filesystems=("/",)))
    assert fetched.errors == {"/a b": "ENOENT"}
    assert (set(fetched.files), set(fetched.filesystems)) == ({"/proc/loadavg"}, {"/"})
