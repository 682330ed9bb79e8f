"""Changes of the performance probe of a machine, for operators."""

from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.model.api.probe import ProbeChange, ProbeChangePage
from gpufleet.model.catalogue.probe import PROBE_READER
from gpufleet.model.stored.readings import ReadingChangeQuery
from gpufleet.model.time import to_datetime
from gpufleet.ports.store import Store


class ProbeChangeQueries:
    """Queries for changes of probes."""

    def __init__(self, *, store: Store, lookup: MachineLookup, executor: QueryExecutor) -> None:
        self._store = store
        self._lookup = lookup
        self._executor = executor

    async def page(self, machine: str, start: int, end: int, requested: PageRequest) -> ProbeChangePage:
        """Return a page of changes, newest first.

        Args:
            machine: id or name.
            start, end: nanoseconds since 1970, `end` excluded.
            requested: the page; a place is (time, metric) of a change.

        Raises:
            InvalidQueryError: if the interval is empty.
            NotFoundError: if there is no such machine.
            AmbiguousError: if several machines have the name.
        """
        if end <= start:
            raise InvalidQueryError("until", "must be after since")

        def fetch() -> ProbeChangePage:
            one = self._lookup.find_one(machine)
            query = ReadingChangeQuery(
                cluster=one.cluster,
                machine=one.id,
                reader=PROBE_READER,
                start=start,
                end=end,
                before=requested.after,
                limit=requested.limit + 1,
            )
            found = self._store.reading_changes(query)
            page = found[: requested.limit]
            return ProbeChangePage(
                machine=one.id,
                node=one.machine.name,
                items=tuple(
                    ProbeChange(at=to_datetime(item.at), metric=item.metric, before=item.before, value=item.value)
                    for item in page
                ),
                next=requested.cursor((page[-1].at, page[-1].metric)) if len(found) > len(page) else None,
            )

        return await self._executor.run(fetch)
