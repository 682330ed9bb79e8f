"""A file that says when this hub could hear, so that the time it was down is nobody's silence."""

import contextlib
import logging
from pathlib import Path

import msgspec

from gpufleet.hub.liveness.past import Past

LOG = logging.getLogger(__name__)

MAX_BYTES = 16384


class Mark:
    """The file. Blocking; one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = ""

    def load(self) -> Past | None:
        """Return when hubs could hear; None where nothing says so that can be read."""
        try:
            with self._path.open("rb") as file:
                past = msgspec.json.decode(file.read(MAX_BYTES), type=Past)
            return past if past.spans else Past.until(past.alive_at)  # as older hubs wrote it
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            LOG.warning("%s cannot be read, its hub may seem to have been up for longer: %s", self._path, error)
            return None

    def save(self, past: Past) -> None:
        """Write it. A disk that refuses is told once: a restart then takes more silence for the senders'."""
        half = self._path.with_suffix(".new")
        try:
            half.write_bytes(msgspec.json.encode(past))
            half.replace(self._path)
            self._told = ""
        except OSError as error:
            with contextlib.suppress(OSError):
                half.unlink(missing_ok=True)
            if str(error) != self._told:
                LOG.warning("%s cannot be written: %s", self._path, error)
            self._told = str(error)
