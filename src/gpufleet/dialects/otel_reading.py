"""Import of OTLP points as samples of machines. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.dialects import l9gpu, otel_names
from gpufleet.dialects.dialect import text_of
from gpufleet.dialects.otel import DEVICE_ATTRIBUTES, is_state, map_point, view_of, why_unread
from gpufleet.dialects.otel_names import MODEL_METRICS, TEXTS
from gpufleet.dialects.reading import SeriesReadings
from gpufleet.dialects.sample_builder import SERIES_ENDED, SampleBuilder
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.text import clean
from gpufleet.model.view import View, ViewKind

MAX_TEXT = 256
"""Maximum length of an imported text."""


class IncomingPoint(NamedTuple):
    """Decoded OTLP data point.

    Attributes:
        name, unit: of the metric.
        attributes: text attributes of the point.
        value: number; None means no value now.
        at: timestamp of the point, nanoseconds since 1970.
    """

    name: str
    unit: str
    attributes: Mapping[str, str]
    value: int | float | None
    at: int


def read_points(machine: str, incoming: Iterable[IncomingPoint], *, reader: str) -> SeriesReadings:
    """Return the samples of points of one resource.

    A point with `hw.id` belongs to that device; without it, a device metric is counted as unattributed. Names that no
    table has are `unknown`.

    Args:
        machine: machine of the resource; the caller derives it from authentication, not from the resource.
        incoming: points, bounded by the caller.
        reader: name of the reader in the samples.
    """
    found = SeriesReadings({}, {}, {})
    builder = SampleBuilder()
    views: dict[tuple[str | None, ...], View | None] = {}
    for point in incoming:
        mapped = map_point(point.name, point.unit, point.attributes, 0 if point.value is None else point.value)
        if mapped is None:
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
        subjects = CATALOGUE[mapped.metric].subjects
        if Subject.MACHINE in subjects:
            view = None
        elif view is None:
            found.unattributed += 1
            continue
        builder.add(view, mapped.metric, SERIES_ENDED if point.value is None else mapped.value, point.at, mapped.labels)
        if view is not None and view.kind is ViewKind.GPU and view.pci_address and point.value is not None:
            builder.add_text(view, "gpu_pci_address", view.pci_address, point.at)
        if view is not None:
            model = MODEL_METRICS[view.kind]
            for attribute, metric in ((otel_names.MODEL, model), (l9gpu.MODEL, model), *TEXTS):
                text = clean(text_of(point.attributes, attribute)[:MAX_TEXT])
                if text:
                    is_of_machine = Subject.MACHINE in CATALOGUE[metric].subjects
                    builder.add_text(None if is_of_machine else view, metric, text, point.at)
    samples = builder.samples(reader)
    if samples:
        found.machines[machine] = samples
    return found
