"""Users and command lines of processes on this machine, from /proc. Only for observations of this machine."""

import pwd
from pathlib import Path

from gpufleet.holders.processes.parse.process import parse_stat
from gpufleet.model.snapshot import Snapshot
from gpufleet.top.observation import ProcessKey, ProcessOwner

MAX_COMMAND = 4096


class ProcessOwners:
    """Lookup of processes. Each is read until its command is known; those that are gone are dropped.

    A process that is starting has an empty command line.
    """

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._known: dict[ProcessKey, ProcessOwner | None] = {}

    def of(self, snapshot: Snapshot) -> dict[ProcessKey, ProcessOwner]:
        """Return the owners of the processes on the devices of a snapshot of this machine.

        A process without a start time is left out: its id can belong to another process.
        """
        keys = {
            (process.pid, process.start_time)
            for device in snapshot.devices
            for process in device.processes or ()
            if process.start_time is not None
        }
        self._known = {
            key: known if (known := self._known.get(key)) and known.command else self._read(*key) for key in keys
        }
        return {key: owner for key, owner in self._known.items() if owner is not None}

    def _read(self, pid: int, start_time: int) -> ProcessOwner | None:
        """Return the owner of a process; None if the kernel has no process with this id and start time."""
        folder = self._root / str(pid)
        try:
            stat = parse_stat((folder / "stat").read_bytes())
            if stat is None or stat.start_time != start_time:
                return None
            uid = folder.stat().st_uid
            with (folder / "cmdline").open("rb") as file:
                command = file.read(MAX_COMMAND)
        except OSError:
            return None
        return ProcessOwner(_user_name(uid), command.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace"))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
