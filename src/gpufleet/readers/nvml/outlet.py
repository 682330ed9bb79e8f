"""In the child process: where records leave for the parent."""

import os
import threading

from gpufleet.readers.nvml.protocol import Record, encode_frame


class Outlet:
    """Writes records to a pipe, whoever has them; several in one go while they are held."""

    def __init__(self, descriptor: int) -> None:
        """Take the pipe; nothing is held."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._held = False

    def put(self, record: Record) -> None:
        """Write a record, at once unless records are held. The parent's end ends the process."""
        frame = encode_frame(record)
        with self._lock:
            self._waiting += frame
            if not self._held:
                self._write()

    def hold(self) -> None:
        """Keep what is put from now on, until it is asked for: a pass is one write, and wakes the parent once."""
        with self._lock:
            self._held = True

    def flush(self) -> None:
        """Write what was kept so far."""
        with self._lock:
            self._write()

    def release(self) -> None:
        """Write what was kept, and keep no more."""
        with self._lock:
            self._held = False
            self._write()

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting)]
        except BrokenPipeError:
            os._exit(0)
