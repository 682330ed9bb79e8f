"""Runs a command under the restrictions of a unit file, without systemd.

    python tests/support/confined.py UNIT [--state FOLDER] -- COMMAND...

Applied settings: SystemCallFilter= (sets as systemd-analyze lists them), RestrictAddressFamilies=,
MemoryDenyWriteExecute=, CapabilityBoundingSet= and NoNewPrivileges=. With --state (needs root) also
ProtectSystem=strict with PrivateTmp=, where the folder stays writable. Not applied: the user, devices, resources,
/proc options.
"""

import ctypes
import ctypes.util
import errno
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import peers
from tests.support.units import unit_value, unit_values

ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # seccomp.h of libseccomp
GREATER, EQUAL, MASKED = 6, 4, 7
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_VSOCK": 40}
LAST_FAMILY = 64
PROT_WRITE, PROT_EXEC = 2, 4
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

libc = ctypes.CDLL(None, use_errno=True)


class Comparison(ctypes.Structure):
    """Comparison of one argument of a system call (struct scmp_arg_cmp)."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class Filter:
    """Seccomp filter. Several can be loaded; the strictest action counts."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL(ctypes.util.find_library("seccomp") or "libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))

    def add(self, action: int, call: str, *comparisons: Comparison) -> None:
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return  # not on this architecture
        array = (Comparison * len(comparisons))(*comparisons)
        code = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), number, len(comparisons), array
        )
        assert code == 0, f"rule for {call}: {os.strerror(-code)}"

    def load(self) -> None:
        code = self._library.seccomp_load(self._context)
        assert code == 0, f"seccomp_load: {os.strerror(-code)}"


def expand(names: list[str]) -> set[str]:
    """Return the system calls of names and sets, as this machine's systemd defines them."""
    program = peers.find("systemd-analyze")
    assert program is not None
    calls: set[str] = set()
    for name in names:
        if not name.startswith("@"):
            calls.add(name)
            continue
        environment = {**os.environ, **peers.environment("systemd-analyze")}
        listed = subprocess.run(
            [program, "syscall-filter", name], env=environment, capture_output=True, text=True, check=True
        ).stdout
        parts = [line.strip() for line in listed.splitlines()[1:]]
        calls |= expand([part for part in parts if part and not part.startswith("#")])
    return calls


def system_calls(unit: Path) -> Filter | None:
    """Return the filter of SystemCallFilter=, an allow list."""
    values = unit_values(unit, "Service", "SystemCallFilter")
    if not values:
        return None
    allowed: set[str] = set()
    for value in values:
        if value.startswith("~"):
            allowed -= expand(value[1:].split())
        else:
            allowed |= expand(value.split())
    refusal = getattr(errno, unit_value(unit, "Service", "SystemCallErrorNumber"))
    made = Filter(ERRNO | refusal)
    for call in sorted(allowed):
        made.add(ALLOW, call)
    return made


def address_families(unit: Path) -> Filter | None:
    """Return the filter of RestrictAddressFamilies=, an allow list."""
    value = unit_value(unit, "Service", "RestrictAddressFamilies")
    if not value:
        return None
    allowed = {FAMILIES[name] for name in value.split()}
    made = Filter(ALLOW)
    for family in set(range(LAST_FAMILY)) - allowed:
        made.add(ERRNO | errno.EAFNOSUPPORT, "socket", Comparison(0, EQUAL, family))
    made.add(ERRNO | errno.EAFNOSUPPORT, "socket", Comparison(0, GREATER, LAST_FAMILY - 1))
    return made


def write_or_execute(unit: Path) -> Filter | None:
    """Return the filter of MemoryDenyWriteExecute=."""
    if unit_value(unit, "Service", "MemoryDenyWriteExecute") != "yes":
        return None
    made = Filter(ALLOW)
    both = PROT_WRITE | PROT_EXEC
    made.add(ERRNO | errno.EPERM, "mmap", Comparison(2, MASKED, both, both))
    for call in ("mprotect", "pkey_mprotect"):
        made.add(ERRNO | errno.EPERM, call, Comparison(2, MASKED, PROT_EXEC, PROT_EXEC))
    return made


def protect_files(unit: Path, state: Path) -> None:
    """Make everything read-only except /dev, /proc, /sys, the state and the folders of PrivateTmp=."""
    assert unit_value(unit, "Service", "ProtectSystem") == "strict"
    writable = [str(state), *(["/tmp", "/var/tmp"] if unit_value(unit, "Service", "PrivateTmp") == "yes" else [])]
    _call("unshare", CLONE_NEWNS)
    _mount("/", MS_REC | MS_PRIVATE)
    for folder in writable:
        _mount(folder, MS_BIND)
    _mount("/", MS_BIND | MS_REMOUNT | MS_RDONLY)


def drop_privileges(unit: Path) -> None:
    """Empty the bounding set and disable privileges from files."""
    assert "CapabilityBoundingSet=\n" in unit.read_text()
    assert unit_value(unit, "Service", "NoNewPrivileges") == "yes"
    if os.geteuid() == 0:
        capability = 0
        while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
            capability += 1
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _mount(where: str, flags: int) -> None:
    _call("mount", where.encode(), where.encode(), None, ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main(arguments: list[str]) -> None:
    """Confine this process, then execute the command."""
    options, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    unit = Path(options[0])
    filters = [made for made in (write_or_execute(unit), address_families(unit), system_calls(unit)) if made]
    if options[1:2] == ["--state"]:
        protect_files(unit, Path(options[2]))
    drop_privileges(unit)
    for made in filters:
        made.load()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
