"""The fleet in pages: machines, nodes and devices, and beside them how many GPUs report of those that should."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

import msgspec

from gpufleet.hub import answers
from gpufleet.hub.freshness import Freshness
from gpufleet.hub.inventory import count_gpus, count_shown, gpu_records, may_count_twice, node_record, with_age
from gpufleet.hub.paging import Asked, cursor_after
from gpufleet.model.answer import Coverage, GpuPage, GpuRecord, MachinePage, MachineRecord, NodePage, NodeRecord
from gpufleet.model.machine import MachineKind
from gpufleet.model.status import ReaderStatus
from gpufleet.model.time import NANOS
from gpufleet.ports import Clock, Registry, Store

T = TypeVar("T")

DEVICES_A_MACHINE = 8
"""Machines of a page of devices are asked for in groups that will about fill it if each has so many."""


class Lists:
    """Answers for many machines with a few questions to the store, however many they are. Everything here blocks."""

    def __init__(self, *, registry: Registry, store: Store, clock: Clock, stale_after_seconds: float) -> None:
        self._registry = registry
        self._store = store
        self._clock = clock
        self._stale_after = stale_after_seconds

    def machines(self, cluster: str | None, page: Asked) -> MachinePage:
        """Return a page of machines with the number of their GPUs."""
        found, following = self._page(cluster, page, None)
        return MachinePage(items=self.complete(found), coverage=self._coverage(cluster), next=following)

    def complete(self, machines: Sequence[MachineRecord]) -> tuple[MachineRecord, ...]:
        """Fill in the age of machines and the number of their GPUs."""
        counts = self._counts(machines, _of_each(machines, self._store.readers_of))
        now = self._clock.now_ns()
        return tuple(msgspec.structs.replace(with_age(one, now), gpus=counts[one.id][0]) for one in machines)

    def nodes(self, cluster: str | None, page: Asked) -> NodePage:
        """Return a page of machines of kind node, with how they are doing."""
        found, following = self._page(cluster, page, MachineKind.NODE)
        readers = _of_each(found, self._store.readers_of)
        counts = self._counts(found, readers)

        def record(machine: MachineRecord) -> NodeRecord:
            error = answers.last_error(readers.get(machine.id, ()))
            machine = with_age(machine, self._clock.now_ns())
            return node_record(machine, counts[machine.id], error, self._stale_after)

        return NodePage(items=tuple(map(record, found)), coverage=self._coverage(cluster), next=following)

    def gpus(self, cluster: str | None, machine: str | None, page: Asked) -> GpuPage:
        """Return a page of views; a machine's are never parted, so it may have a few more than were asked for."""
        items: list[GpuRecord] = []
        after: str | None = None
        if machine is not None:
            items += self.gpus_of(self._called(cluster, machine))
        else:
            place = page
            while len(items) < page.limit:
                group = max(1, -(-(page.limit - len(items)) // DEVICES_A_MACHINE))
                found, after = self._page(cluster, msgspec.structs.replace(place, limit=group), None)
                items += self.gpus_of(found)
                if after is None:
                    break
                last = found[-1]
                place = Asked(page.limit, (last.cluster, last.machine.name, last.id))
        return GpuPage(items=tuple(items), coverage=self._coverage(cluster), next=after)

    def gpus_of(self, machines: Sequence[MachineRecord]) -> list[GpuRecord]:
        """Return every view of machines, in their order."""
        stored = _of_each(machines, self._store.latest_of)
        readers = _of_each(machines, self._store.readers_of)
        return [
            record
            for one in machines
            for record in gpu_records(one, stored.get(one.id, ()), self._freshness(readers.get(one.id, ())))
        ]

    def _counts(
        self, machines: Sequence[MachineRecord], readers: Mapping[str, tuple[ReaderStatus, ...]]
    ) -> dict[str, tuple[int, int]]:
        """Return how many GPUs each machine has, and how many of them report: as many as `gpus_of` shows."""
        standings = _of_each(machines, self._store.standings)
        doubtful = [one for one in machines if may_count_twice(standings.get(one.id, ()))]
        stored = _of_each(doubtful, self._store.latest_of)
        counts = {}
        for one in machines:
            freshness = self._freshness(readers.get(one.id, ()))
            if one.id in stored:
                counts[one.id] = count_shown(gpu_records(one, stored[one.id], freshness))
            else:
                counts[one.id] = count_gpus(standings.get(one.id, ()), freshness)
        return counts

    def _called(self, cluster: str | None, word: str) -> list[MachineRecord]:
        clusters = [cluster] if cluster is not None else [one.id for one in self._registry.clusters()]
        return [one for name in clusters for one in self._registry.machines_called(name, word)]

    def _page(
        self, cluster: str | None, page: Asked, kind: MachineKind | None
    ) -> tuple[Sequence[MachineRecord], str | None]:
        found = self._registry.machines(cluster, kind=kind, after=page.after, limit=page.limit + 1)
        if len(found) <= page.limit:
            return found, None
        return found[: page.limit], cursor_after(found[page.limit - 1])

    def _coverage(self, cluster: str | None) -> tuple[Coverage, ...]:
        """Say how many GPUs of each cluster report, and how many its registration says that it has."""
        reporting = self._store.reporting_gpus(self._clock.now_ns() - int(self._stale_after * NANOS))
        known = {one.id: one for one in self._registry.clusters() if one.closed_at is None}
        names = sorted({*known, *reporting}) if cluster is None else [cluster]
        found = []
        for name in names:
            spec = known[name].spec if name in known else None
            expected = sum(spec.expected.values()) if spec is not None and spec.expected else None
            count = reporting.get(name, 0)
            found.append(
                Coverage(
                    cluster=name,
                    reporting=count,
                    expected=expected,
                    words=f"{count} of {expected} expected" if expected is not None else f"{count}, expected: not said",
                )
            )
        return tuple(found)

    def _freshness(self, readers: Sequence[ReaderStatus]) -> Freshness:
        return Freshness(self._clock.now_ns(), self._stale_after, readers)


def _of_each(machines: Sequence[MachineRecord], ask: Callable[[str, Sequence[str]], Mapping[str, T]]) -> dict[str, T]:
    """Ask one question a cluster; ids of machines are unique over all of them."""
    found: dict[str, T] = {}
    for cluster, group in groupby(machines, key=lambda one: one.cluster):
        found.update(ask(cluster, [one.id for one in group]))
    return found
