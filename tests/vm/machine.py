"""Virtual machine under QEMU, emulated (TCG), without privileges or the network of this machine.

It boots in seconds and offers the channels of a tenant's guest: SSH, the QEMU guest agent, and vsock through the
hypervisor's socket. It runs dropbear, qemu-ga, the simulated host engine (vsock port 5555), a metrics page (vsock port
9400) and a stand-in nvidia-smi.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import asyncssh

from gpufleet.channels.guest_shell.shell import script
from tests.support import peers
from tests.support.guest_smi import GuestSmi
from tests.support.processes import free_port
from tests.support.waiting import wait_until
from tests.vm import image

ENGINE_PORT, PAGE_PORT = 5555, 9400
BOOT_SECONDS = 60
"""Limit of a boot, before `PATIENCE`. A boot takes 3 s, and a minute if other tests use both processors.

With `PATIENCE` it is below the timeout of the tests: a machine that does not boot fails with its console.
"""

MEMORY = "384M"
SHARE = "usr/local/share"
PAGE = Path(__file__).parents[1] / "data" / "exposition" / "dcgm-exporter-l40s-vm.txt"


class VirtualMachine:
    """Virtual machine as a context manager. `stop` and `start` in between are a reboot.

    Attributes:
        name: host name.
        gpus: number of GPUs of its host engine and nvidia-smi.
        folder: working folder on this host.
        vsock: Unix socket of the hypervisor for its vsock ports (`CONNECT port`).
        agent: Unix socket of its QEMU guest agent.
        ssh_port: port of its SSH on 127.0.0.1.
        host_key: SSH host key, as `kind base64`.
        key_file: private key that logs in as root.
        files: name to mode and content of the files of the next boot.
        disk: image of a disk of the next boot, or None.
    """

    def __init__(self, name: str = "guest-a", *, cid: int = 42, gpus: int = 2) -> None:
        """Prepare the machine without booting it.

        Args:
            name: host name.
            cid: vsock id.
            gpus: number of GPUs of its host engine.
        """
        self.folder: Path = Path(tempfile.mkdtemp(prefix="gpufleet-vm-"))
        self.vsock, self.agent = self.folder / "vsock", self.folder / "agent"
        self.ssh_port: int = free_port()
        self.key_file = self.folder / "key"
        self._cid = cid
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(self.key_file)
        login = asyncssh.read_private_key(self.key_file).export_public_key()
        self.files: dict[str, tuple[int, bytes]] = {
            "etc/passwd": (0o644, b"root:x:0:0:root:/root:/bin/sh\n"),
            "etc/group": (0o644, b"root:x:0:\n"),
            "etc/shells": (0o644, b"/bin/sh\n"),
            "etc/cid": (0o644, str(cid).encode()),
            "etc/page": (0o644, PAGE.read_bytes()),
            "root/.ssh/authorized_keys": (0o600, login),
            "usr/local/libexec/gpufleet-guest": (0o755, script().encode()),
        }
        self.disk: Path | None = None
        self.become(name, gpus=gpus)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._control: socket.socket | None = None

    def become(self, name: str, *, gpus: int) -> None:
        """Boot next as another virtual machine at the same addresses, with the same login key."""
        self.name, self.gpus = name, gpus
        self.files["etc/hostname"] = (0o644, name.encode())
        self.files["etc/gpus"] = (0o644, str(gpus).encode())
        shutil.rmtree(self.folder / "smi", ignore_errors=True)
        GuestSmi(self, number=self._cid, gpus=gpus)
        for path in (self.folder / "smi").iterdir():
            self.files[f"{SHARE}/smi/{path.name}"] = (0o644, path.read_bytes())
        key = asyncssh.generate_private_key("ssh-ed25519")
        self.files["etc/ssh_host_key"] = (0o600, key.export_private_key("openssh"))
        self.host_key = " ".join(key.export_public_key().decode().split()[:2])

    def program(self, name: str, text: str) -> None:
        """Install a program for the next boot."""
        self.files[f"usr/local/bin/{name}"] = (0o755, text.replace("$FAKE_FOLDER", f"/{SHARE}").encode())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the machine, and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        """Return whether it was started and not stopped."""
        return bool(self._processes)

    def start(self) -> None:
        """Boot the machine, and wait until its services listen."""
        kernel, qemu = peers.find("vmlinuz"), peers.find("qemu-system-x86_64")
        assert kernel is not None
        assert qemu is not None
        for left in ("vsock", "agent", "control", "qmp", "vhost", "console"):
            (self.folder / left).unlink(missing_ok=True)
        initrd = self.folder / "initrd"
        initrd.write_bytes(image.base().read_bytes() + image.own(self.files))
        self._run([sys.executable, "-m", "tests.vm.vhost", str(self.folder / "vhost"), str(self.vsock), str(self._cid)])
        wait_until((self.folder / "vhost").exists, what=f"the vsock device; log: {self.log()!r}")
        self._run([str(qemu), *self._arguments(kernel, initrd)], environment(qemu))
        try:
            wait_until(self._is_up, seconds=BOOT_SECONDS, what=f"{self.name} to boot")
        except AssertionError as error:
            raise AssertionError(f"{error}; log:\n{self.log()}") from None
        self._control = _connect(self.folder / "control")

    def stop(self) -> None:
        """Kill the machine."""
        if self._control is not None:
            self._control.close()
            self._control = None
        while self._processes:
            process = self._processes.pop()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, command: str) -> tuple[int, str]:
        """Run a shell command in the guest as root. Return its exit code and output."""
        assert self._control is not None
        self._control.settimeout(60)
        self._control.sendall(command.encode() + b"\n")
        with self._control.makefile("rb") as answer:
            code, size = answer.readline().split()
            return int(code), answer.read(int(size)).decode()

    def freeze(self) -> None:
        """Pause the processors. The guest stops answering, its connections stay open."""
        self._monitor("stop")

    def thaw(self) -> None:
        """Resume the processors."""
        self._monitor("cont")

    def log(self) -> str:
        """Return the end of the logs of machine and console."""
        parts = (self.folder / name for name in ("console", "log"))
        return "".join(part.read_text(errors="replace") for part in parts if part.exists())[-4000:]

    def _is_up(self) -> bool:
        assert all(process.poll() is None for process in self._processes), f"{self.name} ended:\n{self.log()}"
        console = self.folder / "console"
        return console.exists() and b"READY" in console.read_bytes()

    def _run(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        with (self.folder / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command, cwd=image.ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _monitor(self, command: str) -> dict[str, Any]:
        with _connect(self.folder / "qmp") as monitor, monitor.makefile("rw") as lines:
            json.loads(lines.readline())
            answer: dict[str, Any] = {}
            for one in ("qmp_capabilities", command):
                lines.write(json.dumps({"execute": one}) + "\n")
                lines.flush()
                while "return" not in (answer := json.loads(lines.readline())):
                    assert "error" not in answer, answer
        return answer

    def _arguments(self, kernel: Path, initrd: Path) -> list[str]:
        def channel(name: str, id_: str) -> list[str]:
            path = f"socket,id={id_},path={self.folder / id_},server=on,wait=off"
            return ["-chardev", path, "-device", f"virtserialport,chardev={id_},name={name}"]

        disk = [] if self.disk is None else ["-drive", f"file={self.disk},format=raw,if=none,id=disk"]
        disk += ["-device", "virtio-blk-pci,drive=disk"] if disk else []
        share = Path(str(peers.find("qemu-system-x86_64"))).parents[1] / "share"
        return [
            *("-L", str(share / "qemu"), "-L", str(share / "seabios")),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-machine", "q35,accel=tcg,memory-backend=memory", "-cpu", "max", "-smp", "1", "-m", MEMORY),
            *("-object", f"memory-backend-memfd,id=memory,size={MEMORY},share=on"),
            *("-kernel", str(kernel), "-initrd", str(initrd), "-append", "console=ttyS0 quiet panic=-1"),
            *("-chardev", f"file,id=console,path={self.folder / 'console'}", "-serial", "chardev:console"),
            *("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.ssh_port}-10.0.2.15:22"),
            *("-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"),
            *("-device", "virtio-serial-pci"),
            *channel("org.qemu.guest_agent.0", "agent"),
            *channel("gpufleet.test.0", "control"),
            *("-chardev", f"socket,id=qmp,path={self.folder / 'qmp'},server=on,wait=off"),
            *("-mon", "chardev=qmp,mode=control"),
            *("-chardev", f"socket,id=vhost,path={self.folder / 'vhost'}"),
            *("-device", "vhost-user-vsock-pci,chardev=vhost"),
            *disk,
        ]


def environment(qemu: Path) -> dict[str, str]:
    """Return the environment variables for an unpacked QEMU to find its libraries and modules."""
    libraries = qemu.parents[1] / "lib" / "x86_64-linux-gnu"
    found = peers.environment("qemu-system-x86_64")
    if found:
        found["LD_LIBRARY_PATH"] += f":{libraries / 'pulseaudio'}"
        found["QEMU_MODULE_DIR"] = str(libraries / "qemu")
    return {**os.environ, **found}


def _connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    sock.connect(str(path))
    return sock
