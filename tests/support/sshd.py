"""Real sshd on loopback as a "guest", in its own folder, with its own host key, user and programs.

It runs without privileges: as the user of the tests, or as user 65534 if that is root. Its user comes from its own
passwd file (nss_wrapper), so that the accounts of this machine are neither needed nor changed.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import asyncssh
import pytest

from tests.support import peers
from tests.support.processes import free_port
from tests.support.waiting import wait_until

USER = "tenant"

_CONFIG = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
MaxSessions 32
MaxStartups 100
SetEnv PATH={folder}/bin:/usr/local/bin:/usr/bin:/bin FAKE_FOLDER={folder} {more}
"""


class Guest:
    """Guest with one sshd, used as a context; `stop` and `start` in between are a reboot."""

    def __init__(self, *, forced: Path | None = None, environment: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpufleet-guest-"))
        self.forced, self.environment = forced, environment
        (self.folder / "bin").mkdir()
        self.key_file = self.folder / "agent_key"
        self.own_key = asyncssh.generate_private_key("ssh-ed25519")
        self.own_key.write_private_key(self.key_file)
        self.authorize(self.own_key)
        self.new_host_key()
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def authorize(self, key: asyncssh.SSHKey) -> None:
        public = key.export_public_key().decode().strip()
        options = f'restrict,command="{self.forced}" ' if self.forced else ""
        (self.folder / "authorized_keys").write_text(f"{options}{public}\n")

    def new_host_key(self, kind: str = "ssh-ed25519") -> None:
        key = asyncssh.generate_private_key(kind)
        (self.folder / "host_key").unlink(missing_ok=True)
        key.write_private_key(self.folder / "host_key")
        (self.folder / "host_key").chmod(0o600)
        self.host_key = " ".join(key.export_public_key().decode().split()[:2])

    def program(self, name: str, text: str) -> None:
        """Install a program in the guest atomically, because it may be running."""
        path = self.folder / "bin" / f".{name}"
        path.write_text(text)
        path.chmod(0o755)
        path.rename(self.folder / "bin" / name)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        sshd, wrapper = peers.find("sshd"), peers.find("nss_wrapper")
        if sshd is None or wrapper is None:
            message = "sshd is missing: run `make test`, or `python tests/support/peers.py fetch`"
            if os.environ.get("GPUFLEET_ALLOW_SKIPS") == "1":
                pytest.skip(message)
            pytest.fail(message)
        as_root, uid = os.getuid() == 0, os.getuid() or 65534
        (self.folder / "passwd").write_text(f"{USER}:x:{uid}:{uid}::{self.folder}:/bin/sh\n")
        (self.folder / "group").write_text(f"{USER}:x:{uid}:\n")
        (self.folder / "config").write_text(_CONFIG.format(port=self.port, folder=self.folder, more=self.environment))
        if as_root:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, uid, uid)
        environment = {
            **os.environ,
            **peers.environment("sshd"),
            "LD_PRELOAD": str(wrapper),
            "NSS_WRAPPER_PASSWD": str(self.folder / "passwd"),
            "NSS_WRAPPER_GROUP": str(self.folder / "group"),
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sshd, "-D", "-e", "-f", self.folder / "config"],
                env=environment,
                stderr=log,
                start_new_session=True,
                user=uid if as_root else None,
                group=uid if as_root else None,
                extra_groups=[] if as_root else None,
            )
        wait_until(self._answers, what=f"sshd; log: {self.log()!r}")

    def stop(self) -> None:
        if self._process is not None:
            numbers = _tree(self._process.pid)
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            self._process.wait()
            # A process of a session has the listening socket, too, until it is gone.
            wait_until(lambda: not any(map(_has_files, numbers)), what="the end of sshd")
            self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def processor_seconds(self) -> float:
        """Return the processor time of the server and all its descendants."""
        assert self._process is not None
        ticks = 0
        for number in _tree(self._process.pid):
            with contextlib.suppress(OSError):
                ticks += sum(map(int, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def _has_files(number: int) -> bool:
    """Return whether a process has open files: a zombie has none."""
    try:
        return any(Path(f"/proc/{number}/fd").iterdir())
    except OSError:
        return False


def _tree(root: int) -> list[int]:
    """Return a process and all its descendants, the process first. Each login has its own session."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for one in found:
        found += [number for number, parent in parents.items() if parent == one]
    return found
