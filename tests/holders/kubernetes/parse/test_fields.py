"""Common fields: metadata, label selection, times and quantities."""

import msgspec
import pytest

from gpufleet.holders.kubernetes.parse.fields import (
    MAX_VALUE,
    LabelSelection,
    ObjectMetadata,
    OwnerReference,
    instant,
    required,
    whole_count,
)
from gpufleet.model.errors import WireError
from gpufleet.model.holdings import MAX_LABELS
from gpufleet.model.kubernetes import Labels


def test_selection_by_name_and_prefix() -> None:
    selection = LabelSelection.of(("app", "ray.io/*"))
    labels = {"app": "a", "app2": "b", "ray.io/cluster": "c", "secret": "s"}
    assert selection.select(labels) == {"app": "a", "ray.io/cluster": "c"}
    assert LabelSelection().select(labels) == {}
    assert selection.select(None) == {}


def test_selected_labels_are_bounded() -> None:
    chosen = LabelSelection.of(("*",)).select({f"l{n:03}": "x" * 1000 + "\x1b" for n in range(200)})
    assert len(chosen) == MAX_LABELS
    assert {len(value) for value in chosen.values()} == {MAX_VALUE}


@pytest.mark.parametrize(
    ("text", "count"),
    [("8", 8), (8, 8), ("1k", 1000), ("2Ki", 2048), ("0", 0), ("1e3", 1000)]
    + [(text, None) for text in ("", None, "-1", "100m", "1.5", "x", "9" * 40, -1, 10**30)],
)
def test_quantities_of_devices(text: str | int | None, count: int | None) -> None:
    assert whole_count(text) == count


def test_times() -> None:
    assert instant("2026-01-01T00:00:00Z") == 1_767_225_600_000_000_000
    assert [instant(text) for text in (None, "", "yesterday", "2026-01-01T00:00:00", "9999-99-99T00:00:00Z")] == [
        None
    ] * 5


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z"])
def test_time_that_is_no_instant_is_unknown(text: str) -> None:
    """A node writes the times in the status of its pods."""
    assert instant(text) is None


def test_longest_label_can_be_sent() -> None:
    name = f"{'a' * 253}/{'b' * 63}"
    labels = LabelSelection.of(("*",)).select({name: "v", f"c{name}d": "w"})
    assert labels[name] == "v"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(labels), type=Labels) == labels


def test_controller_is_the_reference_marked_so() -> None:
    references = [
        OwnerReference("Node", "n", "u1", "v1"),
        OwnerReference("Job", "j", "u2", "batch/v1", controller=True),
    ]
    controller = ObjectMetadata("p", "u", owners=references).controller
    assert controller is not None
    assert (controller.kind, controller.name, controller.api_version) == ("Job", "j", "batch/v1")
    assert ObjectMetadata("p", "u").controller is None


def test_queue_of_labels_precedes_annotations() -> None:
    metadata = ObjectMetadata(
        "p", "u", labels={"kai.scheduler/queue": "l"}, annotations={"scheduling.volcano.sh/queue-name": "a"}
    )
    assert metadata.queue == "l"


def test_empty_required_field_is_an_error() -> None:
    with pytest.raises(WireError) as error:
        required("", "metadata.uid")
    assert error.value.field == "metadata.uid"
