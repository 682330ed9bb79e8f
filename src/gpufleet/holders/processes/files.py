"""Files of processes in /proc. Blocks."""

import os

from gpufleet.holders.processes.parse.process import ProcessStat, parse_stat

STAT_BYTES = 4_096
STATUS_BYTES = 16_384
_PIECE_BYTES = 1 << 16


class ProcessFiles:
    """Bounded reads of the files of processes.

    Attributes:
        proc: the folder /proc.
        current: process whose file is being read, or 0. A read of its memory can block while the process hangs.
    """

    def __init__(self, root: str) -> None:
        """Take the folder that stands for `/`, without a slash at its end."""
        self.proc = f"{root}/proc"
        self.current = 0

    def read(self, pid: int | str, name: str, most: int) -> bytes:
        """Return the beginning of a file; empty if it cannot be read."""
        self.current = pid if isinstance(pid, int) else 0
        try:
            descriptor = os.open(f"{self.proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            pieces: list[bytes] = []
            while most > 0 and (piece := os.read(descriptor, min(most, _PIECE_BYTES))):
                pieces.append(piece)
                most -= len(piece)
            return b"".join(pieces)
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    def stat(self, pid: int) -> ProcessStat | None:
        """Return the identity of a process, or None if it does not exist."""
        return parse_stat(self.read(pid, "stat", STAT_BYTES))
