"""Real libvirtd in its own folder, without privileges: as the user of the tests, or as user 65534 if that is root.

The socket of its session is the writable one; the requests are the same. The libvirt of this machine is not used.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn, Self

import pytest

from tests.support import peers
from tests.support.waiting import wait_until

UNPRIVILEGED_UID = 65534
_AS_UNPRIVILEGED = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.getuid() == 0 else ()


def lacking(message: str) -> NoReturn:
    """Skip the test if skips are allowed, else fail it."""
    if os.environ.get("GPUFLEET_ALLOW_SKIPS") == "1":
        pytest.skip(message)
    pytest.fail(message)


class Libvirt:
    """Daemon used as a context; `stop` and `start` in between are a restart.

    Attributes:
        folder: folder of all its files; files placed there are readable for it.
        socket: its socket.
        is_whole: whether it has all its files, which it needs to start machines.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpufleet-libvirt-", dir="/tmp"))
        self.socket = self.folder / "run" / "libvirt-sock"
        self.is_whole = False
        self._process: subprocess.Popen[bytes] | None = None

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
        daemon = peers.find("libvirtd")
        if daemon is None:
            lacking("libvirtd is missing: run `make test`, or `python tests/support/peers.py fetch libvirtd`")
        config = self.folder / "libvirtd.conf"
        config.write_text(
            f'listen_tls = 0\nauth_unix_rw = "none"\nauth_unix_ro = "none"\nunix_sock_dir = "{self.folder / "run"}"\n'
        )
        own = self.folder / ".config" / "libvirt"
        own.mkdir(parents=True, exist_ok=True)
        (own / "qemu.conf").write_text('stdio_handler = "file"\n')  # else it needs virtlogd
        self.own(self.folder, config, own.parent, own)
        self.socket.unlink(missing_ok=True)
        assert daemon is not None
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix(), daemon, "-f", config],
                env=self._environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, what=f"libvirtd; log: {self.log()!r}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def put(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file that the daemon can read."""
        file = self.folder / name
        fresh = self.folder / f".{name}"
        fresh.write_text(text)
        fresh.chmod(mode)
        self.own(fresh)
        return fresh.replace(file)

    def own(self, *paths: Path) -> None:
        if os.getuid() == 0:
            for path in paths:
                os.chown(path, UNPRIVILEGED_UID, UNPRIVILEGED_UID)

    def virsh(self, *arguments: str) -> str:
        """Run a virsh command and return its output."""
        daemon = peers.find("libvirtd")
        assert daemon is not None
        done = subprocess.run(
            [
                *_AS_UNPRIVILEGED,
                daemon.parents[1] / "bin" / "virsh",
                "-q",
                "-c",
                f"qemu+unix:///session?socket={self.socket}",
                *arguments,
            ],
            env=self._environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"virsh {arguments}: {done.stderr}\n{self.log()[-2000:]}"
        return done.stdout

    def _prefix(self) -> list[str]:
        """Return the command prefix of the daemon: its own files are mounted over /usr/share, for it alone."""
        daemon = peers.find("libvirtd")
        assert daemon is not None
        data = daemon.parents[1] / "share"
        if data == Path("/usr/share"):
            self.is_whole = True
            return [*_AS_UNPRIVILEGED]
        mount = f"mount -t overlay overlay -o lowerdir={data}:/usr/share /usr/share"
        rights = [] if os.getuid() == 0 else ["--map-current-user", "--keep-caps"]
        prefix = ["unshare", "--mount", *rights, "sh", "-c", f'{mount} && exec "$@"', "sh", *_AS_UNPRIVILEGED]
        tried = subprocess.run([*prefix, "test", "-d", "/usr/share/libvirt"], capture_output=True, check=False)
        self.is_whole = tried.returncode == 0
        return prefix if self.is_whole else [*_AS_UNPRIVILEGED]

    def _environment(self) -> dict[str, str]:
        found = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            **peers.environment("libvirtd"),
        }
        daemon = peers.find("libvirtd")
        if daemon is not None and found.get("LD_LIBRARY_PATH"):
            found["LIBVIRT_DRIVER_DIR"] = str(next(daemon.parents[1].glob("lib/*/libvirt/connection-driver")))
        return found

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return self.socket.exists()
