"""XIDs of the store in memory: those that can be of before an allocation are left out of its series."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.events import XID_ALL, XID_LAST, XID_LAST_AT, XID_SINCE
from gpufleet.model.reading import Value
from gpufleet.model.stored.samples import StoredSample

Values = Mapping[str, Value | Absent]


class AllocatedXids:
    """Removes XIDs of before an instant from the samples of one view, reader and lane in order of time."""

    def __init__(self, since: int) -> None:
        self._since = since
        self._first: dict[Any, int] = {}

    def values(self, stored: StoredSample) -> Values:
        """Return the values of a sample without earlier XIDs."""
        sample = stored.sample
        values, at, code = sample.values, sample.measured_at, sample.values.get(XID_LAST)
        if not self._since:
            return values
        hidden: set[str] = set()
        counted = values.get(XID_SINCE)
        if not isinstance(counted, int | float) or counted < self._since / 1e9:
            hidden.add(XID_ALL)
        time = values.get(XID_LAST_AT)
        if isinstance(time, int | float):
            hidden.update((XID_LAST, XID_LAST_AT) if time < self._since / 1e9 else ())
        elif code is not None and at >= self._since:
            key = sample.view, sample.reader, sample.lane
            if isinstance(code, int) or (isinstance(code, Absent) and code.reason is Reason.NO_DATA):
                first = self._first.setdefault(key, code if isinstance(code, int) else 0)
                hidden.update((XID_LAST,) if code == first else ())
        return _without(values, hidden)


def _without(values: Values, hidden: Iterable[str]) -> Values:
    return {name: value for name, value in values.items() if name not in hidden} if hidden else values
