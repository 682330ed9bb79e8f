"""Boots of machines as agents report them: two agents on one host report the same boot under different names."""

from collections import Counter
from collections.abc import Callable, Mapping

from gpufleet.hub.liveness.senders import SenderReport
from gpufleet.model.machine import MachineKind

SenderKey = tuple[str, str]
"""Cluster and sender."""

Boot = tuple[str, str]
"""Machine-id and boot id."""


class AgentBoots:
    """Boot that each sender reports as its own machine's. Written on the event loop, read from any thread.

    A batch with several boots is not from an agent. A batch without a boot is ignored.
    """

    def __init__(self) -> None:
        self._boots: dict[SenderKey, Boot] = {}

    def note(self, report: SenderReport) -> None:
        """Record a batch."""
        batch = report.batch
        boots = {
            (one.machine_id, one.boot_id)
            for one in batch.machines
            if one.kind is MachineKind.NODE and one.machine_id and one.boot_id
        }
        if len(boots) == 1:
            self._boots[batch.cluster, batch.sender] = boots.pop()

    def count(self, is_live: Callable[[SenderKey], bool]) -> Mapping[SenderKey, int]:
        """Return the number of senders with the boot of each sender.

        Args:
            is_live: returns whether a sender is live; others do not count.
        """
        current = {who: (who[0], boot) for who, boot in self._boots.copy().items() if is_live(who)}
        counts = Counter(current.values())
        return {who: counts[boot] for who, boot in current.items()}
