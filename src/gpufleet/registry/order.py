"""Machines in the order in which they are listed: a page is found without sorting all of them."""

import bisect
from collections.abc import Iterator


class MachineOrder:
    """Ids of machines by cluster, name and id."""

    def __init__(self) -> None:
        self._clusters: dict[str, list[tuple[str, str]]] = {}

    def add(self, cluster: str, name: str, id: str) -> None:  # noqa: A002 - the word of the domain
        """Put a machine where it belongs."""
        bisect.insort(self._clusters.setdefault(cluster, []), (name, id))

    def remove(self, cluster: str, name: str, id: str) -> None:  # noqa: A002
        """Take one out that was put there under this name."""
        machines = self._clusters[cluster]
        del machines[bisect.bisect_left(machines, (name, id))]

    def count(self, cluster: str) -> int:
        """Return how many a cluster has."""
        return len(self._clusters.get(cluster, ()))

    def after(self, cluster: str | None, place: tuple[str, str, str] | None) -> Iterator[str]:
        """Go through those of one cluster, or of all, that come after a cluster, name and id."""
        for one in sorted(self._clusters) if cluster is None else (cluster,):
            machines = self._clusters.get(one, [])
            if place is None or one > place[0]:
                first = 0
            elif one == place[0]:
                first = bisect.bisect_right(machines, place[1:])
            else:
                continue
            for at in range(first, len(machines)):
                yield machines[at][1]
