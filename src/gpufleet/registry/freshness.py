"""Freshness of machines in columns, kept up to date by each report, so that an overview reads no row of a machine."""

from array import array
from collections.abc import Collection

from gpufleet.registry.machine_rows import MachineRow


class PlainMachines:
    """Id, sender and last report of the plain machines of a cluster: not retired, not only named, without a conflict.

    Attributes:
        ids, senders, last_seen: columns of the machines.
        others: ids of the other machines.
        version: number that changes with the machines and their senders.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.senders: list[str] = []
        self.last_seen = array("q")
        self.others: set[str] = set()
        self.version = 0
        self._places: dict[str, int] = {}

    def update(self, row: MachineRow, *, is_plain: bool) -> None:
        """Take over a changed row."""
        id_ = row.known.id
        place = self._places.get(id_)
        if not is_plain:
            self.others.add(id_)
            if place is not None:
                self._remove(id_, place)
        elif place is None:
            self.others.discard(id_)
            self._places[id_] = len(self.ids)
            self.ids.append(id_)
            self.senders.append(row.sender)
            self.last_seen.append(row.known.last_seen)
            self.version += 1
        else:
            self.last_seen[place] = row.known.last_seen
            if self.senders[place] != row.sender:
                self.senders[place] = row.sender
                self.version += 1

    def leave_out(self, ids: Collection[str]) -> None:
        """Make those of these machines that are plain others."""
        for id_ in self._places.keys() & ids:
            self.others.add(id_)
            self._remove(id_, self._places[id_])

    def _remove(self, id_: str, place: int) -> None:
        """Remove a machine; the last one takes its place."""
        last = self.ids.pop(), self.senders.pop(), self.last_seen.pop()
        del self._places[id_]
        if place < len(self.ids):
            self.ids[place], self.senders[place], self.last_seen[place] = last
            self._places[last[0]] = place
        self.version += 1
