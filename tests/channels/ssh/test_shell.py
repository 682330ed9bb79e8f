"""Guest shell over a real sshd: commands, host keys, forced commands and hostile guests."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from gpufleet.channels.guest_shell import ShellExec, ShellFiles
from gpufleet.channels.guest_shell.shell import script
from gpufleet.channels.ssh.shell import SshShell
from gpufleet.channels.ssh.target import ConfiguredHostKey, FirstUseHostKey, SshTarget, is_host_key
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.ports.channel import ExecResult, FetchPlan
from tests.channels.ssh.client import list_gpus, problem, shell_of, target
from tests.support.sshd import USER, Guest
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def guest() -> Iterator[Guest]:
    with Guest() as one:
        one.program("nvidia-smi", '#!/bin/sh\necho "smi $*"\n')
        yield one


class TestCommands:
    async def test_all_commands_share_one_connection(self, guest: Guest) -> None:
        async with shell_of(guest) as shell:
            for _ in range(3):
                assert (await list_gpus(shell)).stdout == b"smi -L\n"
            fetched = await ShellFiles(shell).fetch(FetchPlan(files=("/proc/loadavg",), filesystems=("/",)))
            assert set(fetched.files) == {"/proc/loadavg"}
        assert guest.log().count("Accepted publickey") == 1

    async def test_output_and_exit_code_are_returned(self, guest: Guest) -> None:
        guest.program("nvidia-smi", "#!/bin/sh\necho out; echo err >&2; exit 9\n")
        async with shell_of(guest) as shell:
            assert await list_gpus(shell) == ExecResult(exit_code=9, stdout=b"out\n", stderr=b"err\n")

    async def test_missing_program_exits_with_127(self, guest: Guest) -> None:
        async with shell_of(guest) as shell:
            done = await ShellExec(shell).run(
                ("gpufleet", "snapshot", "--format", "json"), timeout_seconds=20, max_output_bytes=1000
            )
            assert done.exit_code == 127

    @pytest.mark.parametrize("command", ["id", "nvidia-smi -pm 1", "nvidia-smi -L;id", "gpufleet up"])
    async def test_only_fixed_commands_are_sent(self, guest: Guest, command: str) -> None:
        async with shell_of(guest) as shell:
            with pytest.raises(ChannelError) as caught:
                await ShellExec(shell).run(command.split(), timeout_seconds=20, max_output_bytes=1000)
        assert caught.value.problem is ChannelProblem.NOT_PERMITTED

    @pytest.mark.parametrize(("number", "code"), [(6, 134), (11, 139)])
    async def test_signal_is_an_exit_code_above_128(self, guest: Guest, number: int, code: int) -> None:
        guest.program("timeout", '#!/bin/sh\nshift 3; exec "$@"\n')
        guest.program("nvidia-smi", f"#!/bin/sh\nkill -{number} $$\n")
        async with shell_of(guest) as shell:
            assert (await list_gpus(shell)).exit_code == code

    async def test_rebooted_guest_is_dialled_again(self, guest: Guest) -> None:
        async with shell_of(guest) as shell:
            await list_gpus(shell)
            guest.stop()
            assert await problem(shell) in (ChannelProblem.ENDED, ChannelProblem.NO_LISTENER)
            assert await problem(shell) is ChannelProblem.NO_LISTENER
            guest.start()
            assert (await list_gpus(shell)).exit_code == 0


class TestForcedCommand:
    @pytest.fixture
    def restricted(self, tmp_path: Path) -> Iterator[Guest]:
        with Guest() as one:
            one.program("gpufleet-guest", script())
            one.program("nvidia-smi", '#!/bin/sh\necho "smi $*"\n')
            one.forced = one.folder / "bin" / "gpufleet-guest"
            one.authorize(one.own_key)
            yield one

    async def test_forced_script_answers_allowed_requests(self, restricted: Guest) -> None:
        async with shell_of(restricted) as shell:
            assert (await list_gpus(shell)).stdout == b"smi -L\n"
            plan = FetchPlan(files=("/proc/stat", "/sys/class/net/*/type", "/etc/passwd"), filesystems=("/", "/a b"))
            fetched = await ShellFiles(shell).fetch(plan)
            assert {"/proc/stat", "/sys/class/net/lo/type"} <= set(fetched.files)
            assert fetched.errors == {"/etc/passwd": "EACCES", "/a b": "EINVAL"}
            assert list(fetched.filesystems) == ["/"]

    async def test_other_forced_command_is_not_enabled(self, guest: Guest) -> None:
        guest.program("other", "#!/bin/sh\necho welcome\n")
        guest.forced = guest.folder / "bin" / "other"
        guest.authorize(guest.own_key)
        async with shell_of(guest) as shell:
            assert await problem(shell) is ChannelProblem.NOT_ENABLED


class TestIdentity:
    async def test_first_host_key_is_pinned_and_no_other_accepted(self, guest: Guest, tmp_path: Path) -> None:
        pin = FirstUseHostKey(tmp_path / "pins" / "vm")
        async with shell_of(guest, pin) as shell:
            await list_gpus(shell)
        assert pin.key() == guest.host_key
        guest.stop()
        kept = guest.host_key
        guest.new_host_key()
        guest.start()
        async with shell_of(guest, FirstUseHostKey(tmp_path / "pins" / "vm")) as shell:
            for _ in range(2):
                assert await problem(shell) is ChannelProblem.IDENTITY_MISMATCH
        assert pin.key() == kept
        assert guest.log().count("Accepted publickey") == 1, "no login at a guest with another host key"

    async def test_host_key_of_another_type_is_a_mismatch(self, guest: Guest) -> None:
        pinned = guest.host_key
        guest.stop()
        guest.new_host_key("ssh-rsa")
        guest.start()
        async with shell_of(guest, ConfiguredHostKey(pinned)) as shell:
            assert await problem(shell) is ChannelProblem.IDENTITY_MISMATCH

    async def test_rebooted_guest_with_its_host_key_is_accepted(self, guest: Guest, tmp_path: Path) -> None:
        pin = FirstUseHostKey(tmp_path / "vm")
        async with shell_of(guest, pin) as shell:
            await list_gpus(shell)
            guest.stop()
            guest.start()
            await shell.close()
            assert (await list_gpus(shell)).exit_code == 0

    async def test_failed_login_pins_no_host_key(self, guest: Guest, tmp_path: Path) -> None:
        guest.authorize(asyncssh.generate_private_key("ssh-ed25519"))
        pin = FirstUseHostKey(tmp_path / "vm")
        async with shell_of(guest, pin) as shell:
            assert await problem(shell) is ChannelProblem.AUTHENTICATION
        assert pin.key() is None

    async def test_unreadable_pin_accepts_no_host_key(self, guest: Guest, tmp_path: Path) -> None:
        (tmp_path / "vm").write_text("rubbish")
        async with shell_of(guest, FirstUseHostKey(tmp_path / "vm")) as shell:
            assert await problem(shell) is ChannelProblem.IDENTITY_MISMATCH

    def test_is_host_key_rejects_other_text(self, guest: Guest) -> None:
        assert is_host_key(guest.host_key)
        for text in ("", "ssh-ed25519", "ssh-ed25519 A B", "ssh-ed25519 AAAA\nssh-rsa BBBB", "pin-first"):
            assert not is_host_key(text)


class TestHostileGuests:
    async def test_endless_output_is_an_error(self, guest: Guest) -> None:
        guest.program("nvidia-smi", "#!/bin/sh\nexec cat /dev/zero\n")
        async with shell_of(guest) as shell:
            assert await problem(shell, max_output_bytes=1 << 20) is ChannelProblem.TOO_LARGE
            fetched = await ShellFiles(shell).fetch(FetchPlan(files=("/proc/loadavg",)))
            assert fetched.files, "the connection is still used"

    async def test_hanging_command_is_not_repeated_and_blocks_no_other(self, guest: Guest) -> None:
        guest.program("timeout", '#!/bin/sh\nshift 3; exec "$@"\n')  # a guest whose timeout(1) ends nothing
        guest.program("nvidia-smi", "#!/bin/sh\necho $$ >>$FAKE_FOLDER/started; exec sleep 600\n")
        async with shell_of(guest) as shell:
            for _ in range(3):
                with pytest.raises(ChannelTimeoutError):
                    await list_gpus(shell, timeout_seconds=1)
            fetched = await ShellFiles(shell).fetch(FetchPlan(files=("/proc/loadavg",)))
            assert fetched.files
            started = (guest.folder / "started").read_text().split()
            assert len(started) == 1
            os.kill(int(started[0]), 9)
            guest.program("nvidia-smi", "#!/bin/sh\necho well\n")
            while True:  # until the guest has reported the end
                try:
                    assert (await list_gpus(shell, timeout_seconds=5)).stdout == b"well\n"
                    break
                except ChannelTimeoutError:
                    await asyncio.sleep(0.01)

    @pytest.mark.parametrize("number", [15, 9])
    async def test_command_ended_by_the_guests_timeout_is_a_timeout(self, guest: Guest, number: int) -> None:
        """With busybox the command ends by the signal: its timeout(1) has no exit code of its own."""
        guest.program("timeout", '#!/bin/sh\nshift 3; exec "$@"\n')
        guest.program("nvidia-smi", f"#!/bin/sh\nkill -{number} $$\n")
        async with shell_of(guest) as shell:
            with pytest.raises(ChannelTimeoutError):
                await list_gpus(shell)

    async def test_guest_ends_commands_at_the_timeout(self, guest: Guest) -> None:
        guest.program("nvidia-smi", "#!/bin/sh\necho $$ >$FAKE_FOLDER/started; exec sleep 600\n")
        async with shell_of(guest) as shell:
            with pytest.raises(ChannelTimeoutError):
                await list_gpus(shell, timeout_seconds=3)
        number = (guest.folder / "started").read_text().strip()
        wait_until(lambda: not Path(f"/proc/{number}").exists(), what="the command to end")

    @pytest.mark.parametrize(
        "greeting",
        [
            b"",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"SSH-2.0-x\r\n\xff\xff\xff\xff" + bytes(9000),
            b"\x1b]0;x\x07" * 9000,
        ],
    )
    async def test_server_without_ssh_is_an_error_within_the_timeout(self, guest: Guest, greeting: bytes) -> None:
        """NAT in front of a stopped guest accepts connections and sends nothing."""

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(greeting)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            shell = SshShell(target(guest, port=port, seconds=0.5), ConfiguredHostKey(guest.host_key))
            with pytest.raises(ChannelError) as caught:
                await list_gpus(shell)
            await shell.close()
        assert caught.value.problem in (ChannelProblem.TIMEOUT, ChannelProblem.PROTOCOL, ChannelProblem.ENDED)
        assert "\x1b" not in str(caught.value)

    async def test_missing_key_file_differs_from_no_listener(self, guest: Guest) -> None:
        guest.stop()
        async with shell_of(guest) as shell:
            assert await problem(shell) is ChannelProblem.NO_LISTENER
        missing = SshTarget(host="127.0.0.1", port=guest.port, user=USER, key_file=guest.folder / "no")
        with pytest.raises(ChannelError) as caught:
            await SshShell(missing, ConfiguredHostKey(guest.host_key)).open()
        assert caught.value.problem is ChannelProblem.NOT_PERMITTED
