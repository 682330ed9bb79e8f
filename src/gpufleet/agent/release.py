"""Letting go of the devices because an operator asks: two files in the agent's state folder.

`release.json` is the operator's word: while it is there, the agent holds no device. `released.json` is the agent's
answer: it is there once every device is closed. Both are only believed of root or the agent's own user.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpufleet.model.absence import Absent, Reason

log = logging.getLogger(__name__)

WORDS = "released by operator"
REQUEST, ANSWER = "release.json", "released.json"
MAX_BYTES = 4096


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator asked.

    Attributes:
        since: nanoseconds since 1970 when it was asked.
        until: when it ends by itself, or None.
    """

    since: int
    until: int | None = None


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's answer: `pid` holds no device since `at` (nanoseconds since 1970), for the release of these times."""

    pid: int
    at: int
    since: int
    until: int | None = None


class ReleaseFolder:
    """The agent's side. Blocking, but only on small local files."""

    def __init__(self, folder: Path, now_ns: Callable[[], int]) -> None:
        """Take the folder of the two files, and the wall clock."""
        self._request, self._answer = folder / REQUEST, folder / ANSWER
        self._now_ns = now_ns
        self._refused = False

    def current(self) -> Release | None:
        """Return the release in force, or None. One that is over is removed."""
        release = self._read()
        if release is not None and release.until is not None and self._now_ns() >= release.until:
            with contextlib.suppress(OSError):
                self._request.unlink()
            return None
        return release

    def answer(self, release: Release) -> None:
        """Say that every device is closed."""
        put(self._answer, Released(pid=os.getpid(), at=self._now_ns(), since=release.since, until=release.until))

    def answered(self) -> Release | None:
        """Return the release that an agent, maybe an earlier one, last answered; None if its answer was taken back."""
        answer = read_answer(self._answer.parent)
        return None if answer is None else Release(since=answer.since, until=answer.until)

    def retract(self) -> None:
        """Take the answer back: devices are held, or are about to be."""
        with contextlib.suppress(OSError):
            self._answer.unlink()

    def _read(self) -> Release | None:
        try:
            descriptor = os.open(self._request, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()):
                if not self._refused:
                    log.warning("%s is not of root or of this agent's user: it is passed over", self._request)
                self._refused = True
                return None
            self._refused = False
            try:
                return msgspec.json.decode(file.read(MAX_BYTES), type=Release)
            except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
                return Release(since=about.st_mtime_ns)  # somebody asked, in whatever words: letting go harms nobody


def put(path: Path, content: Release | Released) -> None:
    """Write a file as a whole, for the agent's user and root to read; raises OSError."""
    fresh = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(content))
    fresh.replace(path)


def read_answer(folder: Path) -> Released | None:
    """Return the agent's answer, or None while there is none."""
    try:
        return msgspec.json.decode((folder / ANSWER).read_bytes()[:MAX_BYTES], type=Released)
    except (OSError, msgspec.MsgspecError):
        return None


def withheld() -> Absent:
    """Return why nothing is read of a device that was let go."""
    return Absent(Reason.NOT_COLLECTED, WORDS)
