"""Random values of metrics, as a hub accepts them."""

from hypothesis import strategies as st

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Metric, ValueType
from gpufleet.model.reading import Value

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
ABSENT = st.builds(Absent, st.sampled_from(Reason), TEXT)

LARGEST = 1e15
"""Largest number of a metric whose range is open."""


def value_of(metric: Metric, texts: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[Value | Absent]:
    """Return values of a metric within its range, or absences.

    The tests of a store share its tables: a rollup of an hour has the values of all of them.
    """
    match metric.type:
        case ValueType.ENUM:
            return st.sampled_from(metric.states) | ABSENT
        case ValueType.TEXT:
            return texts | ABSENT
        case ValueType.FLOAT:
            low = -LARGEST if metric.low is None else metric.low
            return st.floats(low, LARGEST if metric.high is None else metric.high) | ABSENT
        case ValueType.INT:
            return st.integers(0, 2**64 - 1) | ABSENT
