"""What a series means, apart from its value. Pure."""

from typing import NamedTuple

from gpufleet.dialects.dialect import Dialect, Family, Special, Whose
from gpufleet.dialects.gathering import key_of
from gpufleet.model.catalogue import CATALOGUE, Metric
from gpufleet.model.series import Series


class Meaning(NamedTuple):
    """What a series means in a dialect, whatever its value: found out once, as a source sends it again and again.

    Attributes:
        dialect: in which it means this.
        whose: what it is about, or None where it tells nothing.
        key: of the view in a `Gathering`.
        family, metric, labels: where it is a family of the table.
        special: where its labels say what its value means.
        why: why it is left alone.
        is_known: whether the dialect has a row for it.
    """

    dialect: Dialect
    whose: Whose | None = None
    key: str = ""
    family: Family | None = None
    metric: Metric | None = None
    labels: tuple[str, ...] = ()
    special: Special | None = None
    why: str | None = None
    is_known: bool = True


def meaning_of(dialect: Dialect, series: Series) -> Meaning:
    """Look a series up in a dialect's tables."""
    family, special = dialect.families.get(series.name), dialect.special.get(series.name)
    why = dialect.why_unread(series.name)
    if why is not None or (family is None and special is None):
        return Meaning(dialect, why=why, is_known=why is not None or series.name == dialect.measured)
    whose = dialect.whose(series)
    if whose is None:
        return Meaning(dialect)
    labels: tuple[str, ...] = ()
    if family is not None:
        labels = family.labels or tuple(series.labels.get(label, "") for label in family.dims)
    return Meaning(
        dialect,
        whose,
        key_of(whose.view),
        family,
        None if family is None else CATALOGUE[family.metric],
        labels,
        special,
    )
