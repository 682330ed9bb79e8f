"""Which lists of processes travel: not every one, or they would outweigh everything else. Pure."""

import msgspec

from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS

TELL_SECONDS = 60.0
"""So often a list travels that names the same processes as the one before."""

FORGET_SECONDS = 3600.0
"""After so long a view that is not spoken of any more is forgotten."""

_Place = tuple[str, str, Lane]
_Who = frozenset[tuple[int, int | None]]


class ProcessLists:
    """Remembers which list of each view was told last."""

    def __init__(self) -> None:
        self._told: dict[_Place, tuple[_Who, int]] = {}  # who was there, and when

    def due(self, sample: Sample) -> Sample:
        """Return the sample, without its processes unless somebody came or went, or it is time to tell them again."""
        if sample.view is None:
            return sample
        place, at = (sample.view.key, sample.reader, sample.lane), sample.measured_at
        if sample.processes is None:
            self._told.pop(place, None)
            return sample
        who: _Who = frozenset((process.pid, process.start_time) for process in sample.processes)
        before, told_at = self._told.get(place, (None, 0))
        if who == before and 0 <= at - told_at < TELL_SECONDS * NANOS:
            return msgspec.structs.replace(sample, processes=None)
        if before is None:
            oldest = at - int(FORGET_SECONDS * NANOS)
            self._told = {one: last for one, last in self._told.items() if last[1] >= oldest}
        self._told[place] = (who, at)
        return sample
