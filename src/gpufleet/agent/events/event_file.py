"""The file in the agent's state folder with its events, XID counts and last passes: its next start continues them."""

from pathlib import Path

import msgspec

from gpufleet.agent.collect.saved import SavedFile
from gpufleet.agent.events.changes import LastEnergy
from gpufleet.agent.events.occupants import Occupant
from gpufleet.agent.events.xids import XidCounts
from gpufleet.model.event import Event


class LastPasses(msgspec.Struct, frozen=True, kw_only=True):
    """The last passes before a save: a reset after it was later than them.

    Attributes:
        session_at, driver_failed_at: see `ChangeDetector`.
        failed_at: see `DeviceFailures`.
        energies: see `EnergyCounters`.
    """

    session_at: int = 0
    driver_failed_at: int = 0
    failed_at: dict[str, int] = {}
    energies: dict[str, dict[str, LastEnergy]] = {}


class SavedEvents(msgspec.Struct, kw_only=True):
    """Content of the event file.

    Attributes:
        boot: id of the boot that `log_seq`, `xids` and `session` belong to.
        log_seq: the newest kernel log record whose event was emitted, or -1.
        xids: counts of that boot.
        driver, session: version and session of the driver at its last reading.
        last: what changes with every pass.
        events: the newest events, oldest first.
        occupants: PCI address to the GPU that was last read there, in any boot.
    """

    boot: str
    log_seq: int = -1
    xids: XidCounts
    driver: str = ""
    session: int = 0
    last: LastPasses = LastPasses()
    events: tuple[Event, ...] = ()
    occupants: dict[str, Occupant] = {}

    def differs(self, other: "SavedEvents | None") -> bool:
        """Return whether more differs than `last`."""
        return other is None or self != msgspec.structs.replace(other, last=self.last)


def event_file(path: Path) -> SavedFile[SavedEvents]:
    """Return the file of saved events."""
    return SavedFile(path, SavedEvents, loss="event counts restart and events are repeated")
