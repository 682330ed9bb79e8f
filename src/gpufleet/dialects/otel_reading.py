"""Points of OTLP as samples of machines. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.dialects.l9gpu import MODEL
from gpufleet.dialects.otel import DEVICE_ATTRIBUTES, is_state, map_point, view_of, why_unread
from gpufleet.dialects.otel_names import TEXTS
from gpufleet.dialects.reading import SeriesReadings
from gpufleet.dialects.sample_builder import SERIES_ENDED, SampleBuilder
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.text import clean
from gpufleet.model.view import View

_TEXTS = (*TEXTS, (MODEL, "gpu_name"))

MAX_TEXT = 256
"""Characters of a text that is taken in."""


class IncomingPoint(NamedTuple):
    """A number as OTLP brings it.

    Attributes:
        name, unit: of its metric.
        attributes: of the point; those that are no texts are left out by whoever decodes.
        value: the number; None says that there is none now.
        at: nanoseconds since 1970, of the point itself.
    """

    name: str
    unit: str
    attributes: Mapping[str, str]
    value: int | float | None
    at: int


def read_points(machine: str, incoming: Iterable[IncomingPoint], *, reader: str) -> SeriesReadings:
    """Return the samples that points of one resource say.

    A name of the conventions with `hw.id` is that device's; without it is nameless where only devices have such a
    metric. Names that no table has are `unknown`.

    Args:
        machine: whose resource it is; the caller decides by whom it authenticated, not by what the resource says.
        incoming: its points, bounded by the caller.
        reader: name of the reader in the samples.
    """
    found = SeriesReadings({}, {}, {})
    gathering = SampleBuilder()
    views: dict[tuple[str | None, ...], View | None] = {}
    for point in incoming:
        said = map_point(point.name, point.unit, point.attributes, 0 if point.value is None else point.value)
        if said is None:
            why = why_unread(point.name, point.attributes)
            if why is None:
                found.unknown[point.name] = None
            elif not is_state(point.name):
                found.unread[point.name] = why
            continue
        key = tuple(point.attributes.get(name) for name in DEVICE_ATTRIBUTES)
        if key not in views:
            views[key] = view_of(point.attributes)
        view = views[key]
        subjects = CATALOGUE[said.metric].subjects
        if Subject.MACHINE in subjects:
            view = None
        elif view is None:
            found.nameless += 1
            continue
        gathering.add(view, said.metric, SERIES_ENDED if point.value is None else said.value, point.at, said.labels)
        if view is not None:
            for attribute, metric in _TEXTS:
                text = clean(point.attributes.get(attribute, "")[:MAX_TEXT])
                if text:
                    gathering.add_text(view if metric.startswith("gpu_") else None, metric, text, point.at)
    samples = gathering.samples(reader)
    if samples:
        found.machines[machine] = samples
    return found
