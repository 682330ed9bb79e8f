"""What was met in answers before, so that it is not asked for again."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

import msgspec

from gpufleet.model.reading import Value
from gpufleet.model.stored import Accepted
from gpufleet.stores.clickhouse.absences import AbsenceSets
from gpufleet.stores.clickhouse.dims import tellers
from gpufleet.stores.clickhouse.remembered import Remembered, subjects_of
from gpufleet.stores.clickhouse.schema import VIEWS
from gpufleet.stores.clickhouse.sets import ById
from gpufleet.stores.clickhouse.views import Views


class Met(msgspec.Struct, frozen=True):
    """Sets, which never change, and what machines were found to have, which holds until a write tells of it.

    Attributes:
        absences, texts: sets, by id.
        views: how machines' views are described.
        told_dims: whether there ever were values with dimensions, of machines whose newest samples have none.
    """

    absences: AbsenceSets
    texts: ById[dict[str, Value]]
    views: Remembered[Views]
    told_dims: Remembered[bool]

    @classmethod
    def nothing(cls, *, writes_alone: bool) -> Self:
        """Begin; `writes_alone` is whether nobody but this store writes to the tables."""
        return cls(ById(), ById(), Remembered(keeps=writes_alone), Remembered(keeps=writes_alone))

    @contextlib.contextmanager
    def telling(self, accepted: Sequence[Accepted], made: Sequence[tuple[str, Any]]) -> Iterator[None]:
        """Write batches within, of which Arrow tables were made."""
        views = {subject for name, table in made if name == VIEWS.name for subject in subjects_of(table)}
        with self.views.telling(views), self.told_dims.telling(tellers(accepted)):
            yield
