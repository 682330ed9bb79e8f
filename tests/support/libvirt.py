"""A real libvirtd in a folder of its own, without rights: as the user of the tests or, where that is root, as nobody.

Its session's socket is the one that also writes; what is asked of it is the same. Nothing of this machine's own
libvirt is used or changed.
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

NOBODY = 65534
_AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.getuid() == 0 else ()


def lacking(message: str) -> NoReturn:
    """Skip the test where that is allowed, else fail it."""
    if os.environ.get("GPUFLEET_ALLOW_SKIPS") == "1":
        pytest.skip(message)
    pytest.fail(message)


class Libvirt:
    """One daemon. Use as a context; `stop` and `start` in between are a restart.

    Attributes:
        folder: of everything it writes; what is put there can be read by it.
        socket: where it answers.
        is_whole: whether it has all its files, without which it starts no machine.
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
            lacking("libvirtd is not here: run `make test`, or `python tests/support/peers.py fetch libvirtd`")
        config = self.folder / "libvirtd.conf"
        config.write_text(
            f'listen_tls = 0\nauth_unix_rw = "none"\nauth_unix_ro = "none"\nunix_sock_dir = "{self.folder / "run"}"\n'
        )
        own = self.folder / ".config" / "libvirt"
        own.mkdir(parents=True, exist_ok=True)
        (own / "qemu.conf").write_text('stdio_handler = "file"\n')  # else it wants a virtlogd
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
        wait_until(self._answers, what=f"libvirtd, which says {self.log()!r}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def put(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file that it can read."""
        file = self.folder / name
        fresh = self.folder / f".{name}"
        fresh.write_text(text)
        fresh.chmod(mode)
        self.own(fresh)
        return fresh.replace(file)

    def own(self, *paths: Path) -> None:
        if os.getuid() == 0:
            for path in paths:
                os.chown(path, NOBODY, NOBODY)

    def virsh(self, *words: str) -> str:
        """Say something to it as an operator does; return what is answered."""
        daemon = peers.find("libvirtd")
        assert daemon is not None
        done = subprocess.run(
            [
                *_AS_NOBODY,
                daemon.parents[1] / "bin" / "virsh",
                "-q",
                "-c",
                f"qemu+unix:///session?socket={self.socket}",
                *words,
            ],
            env=self._environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"virsh {words}: {done.stderr}\n{self.log()[-2000:]}"
        return done.stdout

    def _prefix(self) -> list[str]:
        """Return what the daemon is started with: its own files lie over this machine's /usr/share, for it alone."""
        daemon = peers.find("libvirtd")
        assert daemon is not None
        data = daemon.parents[1] / "share"
        if data == Path("/usr/share"):
            self.is_whole = True
            return [*_AS_NOBODY]
        mount = f"mount -t overlay overlay -o lowerdir={data}:/usr/share /usr/share"
        rights = [] if os.getuid() == 0 else ["--map-current-user", "--keep-caps"]
        prefix = ["unshare", "--mount", *rights, "sh", "-c", f'{mount} && exec "$@"', "sh", *_AS_NOBODY]
        tried = subprocess.run([*prefix, "test", "-d", "/usr/share/libvirt"], capture_output=True, check=False)
        self.is_whole = tried.returncode == 0
        return prefix if self.is_whole else [*_AS_NOBODY]

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
