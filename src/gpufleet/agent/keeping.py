"""What the agent remembers of events over a restart: one small file in its state folder."""

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from gpufleet.agent.xids import XidCounts
from gpufleet.model.event import Event

log = logging.getLogger(__name__)

MAX_BYTES = 8 << 20


class Remembered(msgspec.Struct, kw_only=True):
    """What is in the file.

    Attributes:
        boot: id of the boot that `log_seq`, `xids` and `session` belong to.
        log_seq: number of the newest record of the kernel's log whose event has been told, or -1.
        xids: what was counted in that boot.
        driver, session: version and session of the driver when it was read last.
        events: the newest, the oldest first.
    """

    boot: str
    log_seq: int = -1
    xids: XidCounts
    driver: str = ""
    session: int = 0
    events: tuple[Event, ...] = ()


class Keeper:
    """Loads and saves it. Blocking."""

    def __init__(self, path: Path) -> None:
        """Take the file's path; its folder is made when it is first saved."""
        self._path = path
        self._failing = False

    def load(self) -> Remembered | None:
        """Return what was saved, or None where there is nothing, or nothing that can be read."""
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=Remembered)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read, events are counted anew: %s", self._path, error)
            return None

    def save(self, remembered: Remembered) -> None:
        """Put it in place of what was there. A disk that refuses is told of once; then memory alone remembers."""
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(remembered))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            if not self._failing:
                log.warning("%s cannot be written, a restart would tell events again: %s", self._path, error)
            self._failing = True
            with contextlib.suppress(OSError):
                fresh.unlink()
        else:
            self._failing = False
