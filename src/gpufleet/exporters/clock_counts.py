"""How many samples of a window showed each reason for slow clocks: what dcgm-exporter counts."""

import datetime as dt
from collections import deque

from gpufleet.dialects.dcgm_exporter import WINDOW_MS
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import ViewKind

MASK = "gpu_clock_event_reasons_mask"
WINDOW = dt.timedelta(milliseconds=WINDOW_MS)

MOST_SAMPLES = 1024
"""Of one GPU: more than the shortest lane of a second brings in a window."""


class ClockCounts:
    """Remembers the masks of one window. A GPU whose mask is not known any more is forgotten with its last sample."""

    def __init__(self) -> None:
        self._masks: dict[str, deque[tuple[dt.datetime, int]]] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Take in a snapshot; a sample that was there before counts once."""
        for device in snapshot.devices:
            reading = device.readings.get(MASK)
            if device.kind is not ViewKind.GPU or device.uuid is None or reading is None:
                continue
            if reading.measured_at is None or not isinstance(reading.value, int):
                continue
            masks = self._masks.setdefault(device.uuid, deque(maxlen=MOST_SAMPLES))
            if not masks or masks[-1][0] < reading.measured_at:
                masks.append((reading.measured_at, reading.value))
        for uuid, masks in list(self._masks.items()):
            while masks and snapshot.measured_at - masks[0][0] > WINDOW:
                masks.popleft()
            if not masks:
                del self._masks[uuid]

    def of(self, uuid: str) -> dict[str, int]:
        """Return reason to the samples that showed it; reasons that none showed are left out, as there."""
        masks = self._masks.get(uuid, ())
        counts = {name: sum(bool(mask & bit) for _, mask in masks) for name, bit in CLOCK_EVENT_REASONS}
        return {name: count for name, count in counts.items() if count}
