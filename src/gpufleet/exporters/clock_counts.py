"""Counts of samples per clock event reason over a time window, as in dcgm-exporter."""

import datetime as dt
from collections import deque

from gpufleet.dialects.dcgm_exporter import WINDOW_MS
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import ViewKind

MASK = "gpu_clock_event_reasons_mask"
WINDOW = dt.timedelta(milliseconds=WINDOW_MS)

MAX_SAMPLES = 1024
"""Most samples kept per GPU: more than the shortest lane interval of one second yields in a window."""


class ClockCounts:
    """Clock event masks of one window by GPU. A GPU is removed once its last sample leaves the window."""

    def __init__(self) -> None:
        self._masks: dict[str, deque[tuple[dt.datetime, int]]] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Record the masks of a snapshot. A sample repeated in several snapshots counts once."""
        for device in snapshot.devices:
            reading = device.readings.get(MASK)
            if device.kind is not ViewKind.GPU or device.uuid is None or reading is None:
                continue
            if reading.measured_at is None or not isinstance(reading.value, int):
                continue
            masks = self._masks.setdefault(device.uuid, deque(maxlen=MAX_SAMPLES))
            if not masks or masks[-1][0] < reading.measured_at:
                masks.append((reading.measured_at, reading.value))
        for uuid, masks in list(self._masks.items()):
            while masks and snapshot.measured_at - masks[0][0] > WINDOW:
                masks.popleft()
            if not masks:
                del self._masks[uuid]

    def of(self, uuid: str) -> dict[str, int]:
        """Return reason to number of samples. Reasons without samples are omitted, as in dcgm-exporter."""
        masks = self._masks.get(uuid, ())
        counts = {name: sum(bool(mask & bit) for _, mask in masks) for name, bit in CLOCK_EVENT_REASONS}
        return {name: count for name, count in counts.items() if count}
