"""Boot image of a guest: two concatenated archives that the kernel unpacks into memory (cpio, `newc`).

The first archive contains packages and modules and is built once. The second contains the files of this guest.
"""

import hashlib
import importlib.util
import marshal
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.support import peers

ROOT = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).parent / "guest"
MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "failover"),
    *("net_failover", "virtio_net", "virtio_console", "virtio-rng", "vsock", "vmw_vsock_virtio_transport_common"),
    *("vmw_vsock_virtio_transport", "vsock_loopback"),
)
"""Kernel modules in their load order."""

UNUSED = (
    *("usr/share", "usr/lib/systemd", "lib/systemd", "lib/udev", "etc", "usr/lib/python3.11/test"),
    *("usr/lib/python3.11/lib2to3", "usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/unittest"),
    *("usr/lib/python3.11/ensurepip", "usr/lib/python3.11/idlelib", "usr/lib/python3.11/sqlite3"),
    *("usr/lib/python3.11/xml", "usr/lib/python3.11/xmlrpc", "usr/lib/python3.11/multiprocessing"),
    *("usr/lib/python3.11/turtle.py", "usr/lib/python3.11/tkinter", "usr/lib/python3.11/distutils"),
    *("usr/lib/x86_64-linux-gnu/gconv", "usr/lib/x86_64-linux-gnu/gio", "usr/lib/x86_64-linux-gnu/engines-3"),
    *("usr/lib/x86_64-linux-gnu/ossl-modules", "usr/lib/x86_64-linux-gnu/libcrypto.so.3"),
    *("usr/lib/x86_64-linux-gnu/libssl.so.3", "lib/x86_64-linux-gnu/libmvec.so.1"),
    *(
        f"usr/lib/python3.11/lib-dynload/{name}.cpython-311-x86_64-linux-gnu.so"
        for name in ("_ssl", "_hashlib", "_codecs_jp", "_codecs_cn", "_codecs_hk", "_codecs_kr", "_codecs_tw")
    ),
)
"""Parts of the packages that are left out. Loading OpenSSL in `asyncio` would take a second in the guest."""

CODE = ("gpufleet/__init__.py", "gpufleet/_version.py")
PACKAGES = (
    "model",
    "fleet",
    "ports",
    "codecs/dcgm_wire",
    "channels/stream",
    "readers/dcgm",
    "simulate/dcgm",
    "config",
    "runtime.py",
)
SITE = "usr/lib/python3/dist-packages"
_UNCHECKED = (1).to_bytes(4, "little") + bytes(8)
"""Header of a compiled module that is not checked against its source (PEP 552)."""

SAME_PYTHON = sys.version_info[:2] == (3, 11)
"""Whether compiled modules of this Python run in the guest's Python."""


class Entry:
    """File, folder or link of an archive."""

    def __init__(self, name: str, mode: int, content: bytes = b"") -> None:
        self.name, self.mode, self.content = name, mode, content


def archive(entries: Iterable[Entry]) -> bytes:
    """Return an archive. Folders must precede their content."""
    found = bytearray()
    for number, entry in enumerate((*entries, Entry("TRAILER!!!", 0)), start=1):
        name = entry.name.encode() + b"\0"
        numbers = (number, entry.mode, 0, 0, 1, 0, len(entry.content), 0, 0, 0, 0, len(name), 0)
        found += b"070701" + b"".join(b"%08X" % one for one in numbers) + name
        found += bytes(-len(found) % 4) + entry.content
        found += bytes(-len(found) % 4)
    return bytes(found)


def base() -> Path:
    """Return the archive of packages and modules. Build it if it is missing."""
    kernel, shell = peers.find("vmlinuz"), peers.find("dropbear")
    assert kernel is not None
    assert shell is not None
    packages = shell.parents[2]
    versions = sorted(path.name for path in (packages / "usr/share/doc").iterdir())
    key = repr((kernel.name, versions, MODULES, UNUSED, Path(__file__).read_bytes()))
    made = peers.CACHE / "vm" / f"base-{hashlib.sha256(key.encode()).hexdigest()[:16]}.cpio"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        partial = made.with_suffix(f".{os.getpid()}")
        partial.write_bytes(archive((*_packages(packages), *_modules(kernel))))
        partial.rename(made)
    return made


def _packages(folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(tuple(f"{one}/" for one in UNUSED)) or name in UNUSED:
            continue
        if path.suffix == ".py" and not path.is_symlink() and SAME_PYTHON:
            yield from _compiled(name, path.read_bytes())
        else:
            yield _entry(path, name)


def _compiled(name: str, source: bytes) -> Iterator[Entry]:
    """Yield a compiled module instead of its source: compiling in the guest would take most of the boot time."""
    try:
        code = compile(source, f"/{name}", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # test data of the compiler
        return
    content = importlib.util.MAGIC_NUMBER + _UNCHECKED + marshal.dumps(code)
    yield Entry(f"{name}c", stat.S_IFREG | 0o644, content)


def _modules(kernel: Path) -> Iterator[Entry]:
    yield Entry("modules", stat.S_IFDIR | 0o755)
    for module in MODULES:
        (path,) = (kernel.parents[1] / "lib/modules").rglob(f"{module}.ko")
        yield _entry(path, f"modules/{module}.ko")
    yield Entry("modules/order", stat.S_IFREG | 0o644, "".join(f"{one}\n" for one in MODULES).encode())


def own(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """Return the archive of one guest: gpufleet, the guest's programs, and files as name to mode and content."""
    return archive((*_code(), *_programs(), *_files(files)))


def _programs() -> Iterator[Entry]:
    yield Entry("opt", stat.S_IFDIR | 0o755)
    yield Entry("init", stat.S_IFREG | 0o755, (GUEST / "init").read_bytes())
    yield from _files({"etc/services": (0o755, (GUEST / "services").read_bytes())})
    for program in GUEST.glob("*.py"):
        yield Entry(f"opt/{program.name}", stat.S_IFREG | 0o644, program.read_bytes())


def _code() -> Iterator[Entry]:
    source = ROOT / "src"
    paths = [source / name for name in CODE if (source / name).exists()]
    for package in PACKAGES:
        path = source / "gpufleet" / package
        paths += [path] if path.is_file() else path.rglob("*.py")
        paths += [above / "__init__.py" for above in (path, *path.parents) if above.is_relative_to(source / "gpufleet")]
    files = {path.relative_to(source).as_posix(): path for path in paths if path.exists()}
    msgspec = importlib.util.find_spec("msgspec")
    if SAME_PYTHON and msgspec is not None and msgspec.origin is not None:
        folder = Path(msgspec.origin).parent
        files |= {f"msgspec/{path.name}": path for path in folder.iterdir() if path.suffix in (".py", ".so")}
    yield from _files({f"{SITE}/{name}": (0o644, path.read_bytes()) for name, path in files.items()})


def _files(files: Mapping[str, tuple[int, bytes]]) -> Iterator[Entry]:
    folders = {parent.as_posix() for name in files for parent in Path(name).parents} - {"."}
    for folder in sorted(folders):
        yield Entry(folder, stat.S_IFDIR | (0o700 if folder.startswith("root") else 0o755))
    for name, (mode, content) in sorted(files.items()):
        if SAME_PYTHON and name.startswith("usr/lib/python3") and name.endswith(".py"):
            yield from _compiled(name, content)
        else:
            yield Entry(name, stat.S_IFREG | mode, content)


def _entry(path: Path, name: str) -> Entry:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Entry(name, status.st_mode, str(path.readlink()).encode())
    return Entry(name, status.st_mode, path.read_bytes() if stat.S_ISREG(status.st_mode) else b"")
