"""Series that were seen before: a source writes the same ones again and again."""

from collections.abc import Sequence

from gpufleet.codecs.remote_write.limits import WriteLimits
from gpufleet.codecs.remote_write.records import WriteProblem
from gpufleet.model.series import Series
from gpufleet.model.text import clean

NAME = "__name__"
"""The label that holds the metric's name."""


class SeriesError(Exception):
    """A series that is not taken."""

    def __init__(self, problem: WriteProblem) -> None:
        self.problem = problem
        super().__init__(problem)


def series_of(pairs: Sequence[tuple[str, str]], limits: WriteLimits) -> Series:
    """Return a series of labels as they came.

    Raises:
        SeriesError: if it has no name, a label twice, or passes a bound.
    """
    if len(pairs) > limits.labels:
        raise SeriesError(WriteProblem.TOO_MANY_LABELS)
    labels: dict[str, str] = {}
    for label, value in pairs:
        if len(label.encode()) > limits.name_bytes or len(value.encode()) > limits.value_bytes:
            raise SeriesError(WriteProblem.LABEL_TOO_LONG)
        label = clean(label)
        if label in labels:
            raise SeriesError(WriteProblem.LABEL_TWICE)
        labels[label] = clean(value)
    name = labels.pop(NAME, "")
    if not name:
        raise SeriesError(WriteProblem.NO_NAME)
    return Series(name, labels)
