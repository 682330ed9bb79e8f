"""Shells that are kept in a guest, over a real sshd: which is asked again, and which never."""

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
from tests.channels.ssh.asking import list_gpus, problem, shell_of
from tests.support.sshd import Guest
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

PLAN = FetchPlan(files=("/proc/loadavg",))

WHOSE = "#!/bin/sh\ncut -d' ' -f4 /proc/$PPID/stat\n"
"""Tells who started timeout(1), which started this: the shell that was asked."""

HOSTILE = r"""#!/bin/sh
case $SSH_ORIGINAL_COMMAND in
*hello*) echo gpufleet-guest 1 forced session; exit ;;
esac
echo $$ >>"$FAKE_FOLDER/sessions"
answer() { printf '%s\nGPU 0\n\n%s 0\n' "$1" "$1"; printf '\n%s 0\n' "$1" >&2; }
while read -r mark words; do
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
        one.program("nvidia-smi", WHOSE)
        yield one


def forced(guest: Guest, name: str, text: str) -> None:
    """Let a key run this alone."""
    guest.program(name, text)
    guest.forced = guest.folder / "bin" / name
    guest.authorize(guest.own_key)


async def whose(shell: SshShell) -> int:
    return int((await list_gpus(shell)).stdout)


async def first_answer(shell: SshShell, meanwhile: ChannelProblem, *, most: int = 10_000) -> bytes | None:
    """Ask until it answers, so many times; only this may go wrong until then."""
    for _ in range(most):
        try:
            return (await list_gpus(shell)).stdout
        except ChannelError as error:
            if error.problem is not meanwhile:
                raise
        await asyncio.sleep(0.01)
    return None


class TestKept:
    @pytest.fixture(params=["sent", "forced"])
    async def shell(self, guest: Guest, request: pytest.FixtureRequest) -> AsyncIterator[SshShell]:
        if request.param == "forced":
            forced(guest, "gpufleet-guest", script())
        async with shell_of(guest) as one:
            yield one

    async def test_one_is_asked_everything_in_turn(self, shell: SshShell) -> None:
        first = await whose(shell)
        assert (await ShellFiles(shell).fetch(PLAN)).files
        assert await whose(shell) == first
        assert str(await asyncio.to_thread(Path(f"/proc/{first}/cwd").readlink)) == "/", (
            "no folder of the tenant's is held"
        )

    async def test_it_ends_with_the_connection(self, shell: SshShell) -> None:
        first = await whose(shell)
        await shell.close()
        await asyncio.to_thread(wait_until, lambda: not Path(f"/proc/{first}").exists(), what="its end")
        assert await whose(shell) != first

    async def test_two_concurrent_commands_keep_two_processes(self, guest: Guest, shell: SshShell) -> None:
        guest.program("nvidia-smi", WHOSE + 'echo >>"$FAKE_FOLDER/up"; until [ -e "$FAKE_FOLDER/go" ]; do :; done\n')
        asked = [asyncio.create_task(whose(shell)) for _ in range(3)]
        up = guest.folder / "up"
        await asyncio.to_thread(wait_until, lambda: up.exists() and len(up.read_text()) == 3, what="all to run")
        (guest.folder / "go").touch()
        shells = set(await asyncio.gather(*asked))
        assert len(shells) == 3

        def left() -> int:
            return sum(Path(f"/proc/{one}").exists() for one in shells)

        await asyncio.to_thread(wait_until, lambda: left() == 2, what="the third to end")
        assert await whose(shell) in shells

    async def test_one_that_was_ended_in_between_is_replaced(self, shell: SshShell) -> None:
        first = await whose(shell)
        os.kill(first, 9)
        await asyncio.to_thread(wait_until, lambda: not any(one.is_open for one in shell._idle), what="word of its end")
        assert await whose(shell) != first

    async def test_one_that_ends_while_it_is_asked_is_told_and_replaced(self, guest: Guest, shell: SshShell) -> None:
        guest.program("nvidia-smi", "#!/bin/sh\nkill -9 $(cut -d' ' -f4 /proc/$PPID/stat)\n")
        assert await problem(shell) is ChannelProblem.ENDED
        guest.program("nvidia-smi", WHOSE)
        assert await whose(shell)

    async def test_one_whose_command_hangs_is_never_asked_again(self, guest: Guest, shell: SshShell) -> None:
        guest.program("timeout", '#!/bin/sh\nshift 3; exec "$@"\n')  # a guest that ends nothing by itself
        first = await whose(shell)
        guest.program("nvidia-smi", '#!/bin/sh\necho $$ >"$FAKE_FOLDER/started"; exec sleep 600\n')
        with pytest.raises(ChannelTimeoutError):
            await list_gpus(shell, timeout_seconds=1)
        assert (await ShellFiles(shell).fetch(PLAN)).files, "another one answers"
        os.kill(int((guest.folder / "started").read_text()), 9)
        await asyncio.to_thread(wait_until, lambda: not Path(f"/proc/{first}").exists(), what="it to end with that")


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
        ("trick", "told"),
        [
            ("older", ChannelProblem.PROTOCOL),
            ("late", ChannelProblem.PROTOCOL),
            ("early", ChannelProblem.PROTOCOL),
            ("closes", ChannelProblem.ENDED),
            ("floods", ChannelProblem.PROTOCOL),
        ],
    )
    async def test_what_is_no_answer_is_told_and_the_shell_replaced(
        self, guest: Guest, shell: SshShell, trick: str, told: ChannelProblem
    ) -> None:
        assert (await list_gpus(shell)).stdout == b"GPU 0\n"
        self.play(guest, trick)
        assert await problem(shell) is told
        self.play(guest, "well")
        assert (await list_gpus(shell)).stdout == b"GPU 0\n"
        assert self.sessions(guest) == 2
        await asyncio.to_thread(wait_until, lambda: not self.runs(guest, 0), what="the shell's end")
        assert guest.log().count("Accepted publickey") == 1, "the connection serves on"

    async def test_a_second_answer_is_no_answer_to_the_next_question(self, guest: Guest, shell: SshShell) -> None:
        self.play(guest, "twice")
        for _ in range(4):
            assert await first_answer(shell, ChannelProblem.PROTOCOL, most=1) in (b"GPU 0\n", None)
        self.play(guest, "well")
        assert await first_answer(shell, ChannelProblem.PROTOCOL) == b"GPU 0\n"
        assert self.sessions(guest) > 1

    @pytest.mark.parametrize("while_it_is_awaited", [True, False])
    async def test_one_that_talks_on_is_cut_off(self, guest: Guest, shell: SshShell, while_it_is_awaited: bool) -> None:
        if while_it_is_awaited:
            self.play(guest, "mute_then_floods")
            with pytest.raises(ChannelTimeoutError):
                await list_gpus(shell, timeout_seconds=0.5)
        else:
            self.play(guest, "chatters")
            assert await first_answer(shell, ChannelProblem.PROTOCOL, most=1) in (b"GPU 0\n", None)
        await asyncio.to_thread(wait_until, lambda: not self.runs(guest, 0), what="the shell's end")

    async def test_an_answer_that_comes_too_late_is_thrown_away(self, guest: Guest, shell: SshShell) -> None:
        self.play(guest, "mute")
        with pytest.raises(ChannelTimeoutError):
            await list_gpus(shell, timeout_seconds=0.5)
        self.play(guest, "well")
        # The one that was mute ends as soon as it hears that nothing more is asked.
        assert await first_answer(shell, ChannelProblem.TIMEOUT) == b"GPU 0\n"
        assert self.sessions(guest) == 2


async def test_a_guest_with_an_older_script_is_asked_one_by_one(guest: Guest) -> None:
    text = script().replace('"${2:+ session}"', '""').replace("session) session ;;\n", "")
    assert len(text) < len(script()) - 30
    forced(guest, "gpufleet-guest", text)
    async with shell_of(guest) as shell:
        assert await whose(shell) != await whose(shell)
        assert (await ShellFiles(shell).fetch(PLAN)).files


async def test_words_with_blanks_are_asked_by_themselves(guest: Guest) -> None:
    async with shell_of(guest) as shell:
        fetched = await ShellFiles(shell).fetch(FetchPlan(files=("/a b", "/proc/loadavg"), filesystems=("/",)))
    assert fetched.errors == {"/a b": "ENOENT"}
    assert (set(fetched.files), set(fetched.filesystems)) == ({"/proc/loadavg"}, {"/"})
