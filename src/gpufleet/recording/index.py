"""Sparse index of a recording: a bounded number of places, whatever the number of frames. Pure."""

from bisect import bisect_right

from gpufleet.recording.format import MAX_ENTRIES, FrameHeader, IndexEntry, StoredIndex


class FrameIndex:
    """Places of the first frame and of every n-th frame after it; n doubles whenever the index is full.

    Attributes:
        frames: number of frames.
        first_at, latest_at: first time and latest time of a frame, nanoseconds since 1970; 0 without frames.
    """

    def __init__(self, stored: StoredIndex | None = None) -> None:
        self.frames = self.first_at = self.latest_at = 0
        self._entries: list[IndexEntry] = []
        if stored is not None:
            self.frames, self.first_at, self.latest_at = stored.frames, stored.first_at, stored.latest_at
            self._entries = list(stored.entries)
        self._step = 1
        while self._step * len(self._entries) < self.frames:
            self._step *= 2

    def add(self, header: FrameHeader, offset: int) -> None:
        """Add the next frame of the file."""
        if not self.frames:
            self.first_at = self.latest_at = header.at
        self.latest_at = max(self.latest_at, header.at)
        if self.frames % self._step == 0:
            if len(self._entries) == MAX_ENTRIES:
                del self._entries[1::2]
                self._step *= 2
            if self.frames % self._step == 0:
                self._entries.append(IndexEntry(self.latest_at, header.number, offset))
        self.frames += 1

    def before(self, at: int) -> IndexEntry | None:
        """Return the newest entry with no frame later than `at` up to it; the first entry if there is none.

        None without frames.
        """
        if not self._entries:
            return None
        return self._entries[max(0, bisect_right(self._entries, at, key=lambda entry: entry.latest) - 1)]

    def stored(self) -> StoredIndex:
        """Return the index in the form of the file."""
        return StoredIndex(self.frames, self.first_at, self.latest_at, tuple(self._entries))
