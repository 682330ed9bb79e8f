"""Builder of samples from single values. Pure."""

import math
from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, Subject, ValueType
from gpufleet.model.catalogue.probe import PROBE_NAMES
from gpufleet.model.device_state import ERROR, OK, STATE_OF_REASON, is_core_error, is_measured, worst_state
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.view import Side, View, ViewKind

STATE = "gpu_state"

WHOLE_GPU_METRICS = frozenset(
    metric.name
    for metric in CATALOGUE.values()
    if Subject.GPU in metric.subjects
    and Subject.MIG not in metric.subjects
    and metric.type in (ValueType.INT, ValueType.FLOAT)
)
"""Numbers of a GPU that its MIG devices do not have."""

SERIES_ENDED = Absent(Reason.NO_DATA, "the source reported the end of the series")


def is_end_of_series(sample: Sample) -> bool:
    """Return whether a sample reports the end of series, and nothing else."""
    values = (*sample.values.values(), *(dim.value for dim in sample.dims))
    return all(value == SERIES_ENDED for value in values)


class SampleBuilder:
    """Collects the values of one machine. The series of a device may carry different parts of its identity.

    Readings of the performance probe are left out. They are about the tenant of their time, and a source gives no time
    of its texts: an answer could show them to the next tenant.

    Args:
        has_times: whether the source gives times of measurement, so that an absence can be older than the state.
    """

    def __init__(self, *, has_times: bool = True) -> None:
        self._has_times = has_times
        self._views: dict[str, View] = {}
        self._rows: dict[tuple[str, Lane, int], _Row] = {}
        self._texts: dict[str, dict[str, tuple[str, int]]] = {}
        self._evidence: dict[str, set[tuple[int, str]]] = {}  # view key to the states that readings prove, and when
        self._failed_instances: dict[str, set[int]] = {}  # view key to the times of core readings that failed

    def add(
        self,
        view: View | None,
        metric: str,
        value: Value | Absent,
        at: int,
        labels: tuple[str, ...] = (),
        *,
        is_evidence: bool = True,
    ) -> None:
        """Add a value.

        Args:
            view: the device, or None for the machine itself.
            metric: catalogue name.
            value: the reading.
            at: nanoseconds since 1970.
            labels: values of the metric's dimensions.
            is_evidence: whether an absence can prove the state of the GPU.
        """
        self.add_keyed(view_key(view), view, CATALOGUE[metric], value, at, labels, is_evidence=is_evidence)

    def add_keyed(
        self,
        key: str,
        view: View | None,
        metric: Metric,
        value: Value | Absent,
        at: int,
        labels: tuple[str, ...],
        *,
        is_evidence: bool = True,
    ) -> None:
        """Add a value as `add`, with the view's key and the metric's row already looked up."""
        if metric.name in PROBE_NAMES:
            return
        row = self._rows.get((key, metric.lane, at))
        if row is None:
            row = self._rows[key, metric.lane, at] = _Row()
        if view is not None:
            self._note(key, view)
            if value.__class__ is Absent and is_evidence:
                self._note_evidence(key, view, metric, value, at)
        if metric.dims:
            place = metric.name, labels
            row.dims[place] = merge_readings(metric.name, row.dims[place], value) if place in row.dims else value
        else:
            name = metric.name
            row.values[name] = merge_readings(name, row.values[name], value) if name in row.values else value

    def add_text(self, view: View | None, metric: str, text: str, at: int) -> None:
        """Add a text that many series repeat, such as a product name; the newest counts."""
        self.add_text_keyed(view_key(view), view, metric, text, at)

    def add_text_keyed(self, key: str, view: View | None, metric: str, text: str, at: int) -> None:
        """Add a text, with the view's key already looked up."""
        if view is not None:
            self._note(key, view)
        texts = self._texts.get(key)
        if texts is None:
            texts = self._texts[key] = {}
        known = texts.get(metric)
        if known is None or at >= known[1]:
            texts[metric] = text, at

    def samples(self, reader: str) -> list[Sample]:
        """Return the samples; all texts of a subject have the time of the newest text."""
        for key, times in self._failed_instances.items():
            parent = self._views[key].parent
            if parent is not None:  # as `device_state.state_with_instances`
                found = {(at, ERROR) for at in times if self._is_measured(key, at)}
                self._evidence.setdefault(parent, set()).update(found)
        for key, proven in self._evidence.items():
            if key in self._views:  # a page may have the MIG devices of a GPU without it
                self._correct_states(key, proven)
        for key, texts in self._texts.items():
            newest = max(at for _, at in texts.values())
            for metric, (text, _) in texts.items():
                self.add_keyed(key, self._views.get(key), CATALOGUE[metric], text, newest, ())
        return [
            Sample(
                view=self._views.get(key),
                reader=reader,
                lane=lane,
                measured_at=at,
                values=row.values,
                dims=tuple(DimValue(metric, labels, value) for (metric, labels), value in row.dims.items()),
                provenance=Provenance.IMPORTED,
            )
            for (key, lane, at), row in self._rows.items()
        ]

    def _note_evidence(self, key: str, view: View, metric: Metric, value: Value | Absent, at: int) -> None:
        """Record the state of a GPU that an absent reading of it, or of one of its MIG devices, proves.

        A GPU that only the PCI bus lists has no state: its readings are absent because no driver holds it.
        """
        if not isinstance(value, Absent) or view.side is Side.PCI_ONLY:
            return
        state = STATE_OF_REASON.get(value.reason)
        if view.kind is ViewKind.MIG and view.parent is not None:
            if is_core_error(metric.name, value):
                self._failed_instances.setdefault(key, set()).add(at)
            key = view.parent
        elif view.kind is not ViewKind.GPU:
            return
        elif is_core_error(metric.name, value):
            state = state or ERROR
        if state is not None:
            self._evidence.setdefault(key, set()).add((at, state))

    def _is_measured(self, key: str, at: int) -> bool:
        row = self._rows[key, CATALOGUE[STATE].lane, at]
        dims = ((metric, value) for (metric, _), value in row.dims.items())
        return any(is_measured(metric, value) for metric, value in (*row.values.items(), *dims))

    def _correct_states(self, key: str, proven: Iterable[tuple[int, str]]) -> None:
        """Replace better states of the page by those that its readings prove. No page state is made up as `ok`.

        A page can have several scrapes. A reading is about the newest row up to its time. If that row has no state, the
        proven state has the time of the reading. A reading measured before the newest state of the page proves nothing
        then, also if that state is absent: the GPU can have recovered since. Without times of measurement, a reading is
        as old as its scrape.

        Args:
            key: of the GPU.
            proven: times and states.
        """
        lane = CATALOGUE[STATE].lane
        times = sorted(at for of, of_lane, at in self._rows if of == key and of_lane is lane)
        stated = [at for at in times if STATE in self._rows[key, lane, at].values]
        for at, state in sorted(proven):
            place = bisect_right(times, at) if self._has_times else 0
            about = times[place - 1] if place else at
            if about not in stated:
                if self._has_times and stated and stated[-1] > at:
                    continue
                about = at
            row = self._rows.setdefault((key, lane, about), _Row())
            given = row.values.get(STATE)
            row.values[STATE] = worst_state((given, state)) if isinstance(given, str) else state

    def _note(self, key: str, view: View) -> None:
        """Record a device; identity fields of its series are merged."""
        known = self._views.get(key)
        if known is None:
            self._views[key] = view
        elif known is not view and known != view:
            self._views[key] = msgspec.structs.replace(
                known,
                pci_address=known.pci_address or view.pci_address,
                parent=known.parent or view.parent,
                index=view.index if known.index is None else known.index,
            )


def view_key(view: View | None) -> str:
    """Return the key of a view; empty for the machine itself."""
    return "" if view is None else view.key


class _Row(msgspec.Struct):
    values: dict[str, Value | Absent] = {}
    dims: dict[tuple[str, tuple[str, ...]], Value | Absent] = {}


def bounded(metric: Metric, value: float, source: str) -> int | float | Absent:
    """Return a number in the catalogue's type, or an absence; `source` is the foreign name."""
    if not math.isfinite(value):
        return Absent(Reason.INVALID_VALUE, source)
    ours = round(value) if metric.type is ValueType.INT else value
    if (metric.low is not None and ours < metric.low) or (metric.high is not None and ours > metric.high):
        return Absent(Reason.INVALID_VALUE, source)
    return ours


def merge_readings(metric: str, before: Value | Absent | None, value: Value | Absent) -> Value | Absent:
    """Merge values of one metric from two parts of a row.

    - The worse of two states is the state of the GPU. A state that cannot be read leaves a failure as it is.
    - An exporter can read a whole GPU once for each of its MIG devices in one scrape. The largest number counts, so
      that a counter does not fall.
    """
    if metric in WHOLE_GPU_METRICS:
        numbers = [one for one in (before, value) if isinstance(one, int | float)]
        other = value if before in numbers else before
        if len(numbers) == 2:
            return max(numbers)
        if numbers and isinstance(other, Absent) and other.reason is Reason.NO_DATA:
            return numbers[0]
    states = [one for one in (before, value) if isinstance(one, str)] if metric == STATE else []
    if len(states) == 2 or (before is not None and states and states[0] != OK):
        return worst_state(states)
    return merge_values(before, value)


def merge_values(before: Value | Absent | None, value: Value | Absent) -> Value | Absent:
    """Merge values of several series of one device: an exporter repeats a GPU for each pod that shares it.

    Different values contradict each other, and none is used. An ended series does not contradict a running one: it had
    other labels, such as those of an earlier pod. A value of another part does not contradict a reading that was not
    reported.
    """
    if before is None or before == value or _is_missing(before):
        return value
    if _is_missing(value):
        return before
    return Absent(Reason.INVALID_VALUE, "several series of one device differ")


def _is_missing(value: Value | Absent) -> bool:
    return value == SERIES_ENDED or (isinstance(value, Absent) and value.reason is Reason.NOT_REPORTED)
