"""Forwarded series: every value once, at its own timestamp, with stale markers."""

from collections.abc import Sequence

import msgspec
import pytest

from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1
from gpufleet.hub.forward.series import ForwardSeries
from gpufleet.hub.imports.remote_write import read_request
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import gpu_sample, gpu_view
from tests.support.accepted import accept

T0 = 1_700_000_000 * NANOS
ABSENT = Absent(Reason.TIMEOUT)


def forward(series: ForwardSeries, *samples: Sample, machine: str = "m1") -> list[tuple[str, float | None, int]]:
    """Return (name, value, seconds after the start) of the points of one batch."""
    return [
        (point.labels["__name__"].removeprefix("gpufleet_"), point.value, (point.at - T0) // NANOS)
        for point in points(series, samples, machine)
    ]


def points(series: ForwardSeries, samples: Sequence[Sample], machine: str = "m1") -> list[WritePoint]:
    return list(series.points([accept("east", machine, samples)]))


def gpu(seconds: int, **values: object) -> Sample:
    return gpu_sample(gpu_view(0), T0 + seconds * NANOS, **values)  # type: ignore[arg-type]


def test_labels_come_from_the_hub() -> None:
    (point,) = points(ForwardSeries({"team": "ml"}, sends_late=False), [gpu(0, gpu_power_watts=300.5)])
    assert (point.value, point.at, point.type) == (300.5, T0, "gauge")
    assert dict(point.labels) == {
        "__name__": "gpufleet_gpu_power_watts",
        "team": "ml",
        "job": "gpufleet",
        "forwarded_by": "gpufleet",
        "cluster": "east",
        "node": "node",
        "instance": "node",
        "machine": "m1",
        "reader": "nvml",
        "source": "host_local_probe",
        "uuid": "GPU-0",
        "pci_address": "0000:00:00.0",
        "kind": "gpu",
        "side": "host",
    }


def test_states_and_integers_become_series() -> None:
    state = next(one for one in CATALOGUE.values() if one.states and not one.dims and one.name.startswith("gpu_"))
    series = ForwardSeries({}, sends_late=False)
    sample = gpu(0, **{state.name: state.states[1], "gpu_name": "H100", "gpu_energy_joules_total": 2**53 + 2})
    found = points(series, [sample])
    states = {one.labels["state"]: one.value for one in found if "state" in one.labels}
    assert states == {name: float(name == state.states[1]) for name in state.states}
    assert [one.value for one in found if "state" not in one.labels] == [2**53 + 2]


def test_absent_value_ends_its_series() -> None:
    series = ForwardSeries({}, sends_late=False)
    assert forward(series, gpu(0, gpu_power_watts=1.0, gpu_temperature_celsius=40)) == [
        ("gpu_power_watts", 1.0, 0),
        ("gpu_temperature_celsius", 40, 0),
    ]
    assert forward(series, gpu(10, gpu_power_watts=2.0, gpu_temperature_celsius=ABSENT)) == [
        ("gpu_power_watts", 2.0, 10)
    ]
    # a later part of the same instant adds only new values
    assert forward(series, gpu(10, gpu_power_watts=2.0, gpu_sm_clock_hertz=5)) == [("gpu_sm_clock_hertz", 5, 10)]
    assert forward(series, gpu(20, gpu_power_watts=3.0)) == [
        ("gpu_temperature_celsius", None, 10),
        ("gpu_power_watts", 3.0, 20),
    ]
    assert forward(series, gpu(30, gpu_power_watts=4.0, gpu_temperature_celsius=41)) == [
        ("gpu_sm_clock_hertz", None, 20),
        ("gpu_power_watts", 4.0, 30),
        ("gpu_temperature_celsius", 41, 30),
    ]


@pytest.mark.parametrize("provenance", [Provenance.IMPORTED, Provenance.SLICE_GUEST])
def test_ambiguous_zero_is_forwarded_until_it_ends(provenance: Provenance) -> None:
    """A mean without such a GPU would be too high."""
    series = ForwardSeries({}, sends_late=False)
    idle, lost = Absent(Reason.AMBIGUOUS_ZERO), Absent(Reason.GPU_LOST)
    read = [
        gpu(at, gpu_power_watts=lost, gpu_utilization_ratio=use)
        for at, use in ((0, idle), (10, idle), (20, 0.5), (30, 0.5))
    ]
    rows = [msgspec.structs.replace(one, provenance=provenance) for one in read]
    assert [forward(series, row) for row in rows] == [
        [("reading_absent", 1, 0)],
        [("reading_absent", 1, 10)],
        [("gpu_utilization_ratio", 0.5, 20)],
        [("reading_absent", None, 20), ("gpu_utilization_ratio", 0.5, 30)],
    ]
    (point,) = points(ForwardSeries({}, sends_late=False), rows[:1])
    assert (point.labels["metric"], point.labels["reason"]) == ("gpu_utilization_ratio", "ambiguous_zero")
    assert point.labels["uuid"] == "GPU-0"


def test_repeated_values_of_a_lost_gpu_are_not_forwarded() -> None:
    """An exporter repeats values of the GPU, and of a MIG device of it, until the GPU works again."""
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=gpu_view(0).key)
    series = ForwardSeries({}, sends_late=False)

    def repeated(seconds: int, view: View, **values: Value) -> Sample:
        dims = (DimValue("gpu_fan_speed_ratio", ("0",), 0.5),) if view.kind is ViewKind.GPU else ()
        return msgspec.structs.replace(
            gpu_sample(view, T0 + seconds * NANOS, **values),
            reader="exporter/dcgm",
            provenance=Provenance.IMPORTED,
            dims=dims,
        )

    def values_at(seconds: int, state: str | None) -> list[float]:
        samples = [
            repeated(seconds, gpu_view(0), gpu_power_watts=100.0),
            repeated(seconds, gpu_view(1), gpu_power_watts=200.0),
            repeated(seconds, mig, gpu_utilization_ratio=0.25),
            *([] if state is None else [gpu(seconds, gpu_state=state)]),
        ]
        return sorted(one.value for one in points(series, samples) if one.value and "state" not in one.labels)

    every, others = [0.25, 0.5, 0.5, 100.0, 200.0], [0.5, 200.0]
    assert values_at(0, "ok") == every
    assert values_at(10, "lost") == others
    assert values_at(20, None) == others
    assert values_at(600, None) == every  # the reader of the loss has stopped
    assert values_at(610, "lost") == others
    assert values_at(620, "ok") == every


def test_points_of_a_series_are_in_order_of_time() -> None:
    series = ForwardSeries({}, sends_late=False)
    found = forward(
        series,
        gpu(20, gpu_power_watts=3.0),
        gpu(0, gpu_power_watts=1.0, gpu_sm_clock_hertz=1),
        gpu(10, gpu_power_watts=2.0),
    )
    power = [at for name, _, at in found if name == "gpu_power_watts"]
    assert power == [0, 10, 20]
    assert forward(series, gpu(15, gpu_power_watts=9.0, gpu_sm_clock_hertz=7)) == []
    assert series.late == 2


def test_late_values_are_sent_if_the_receiver_accepts_them() -> None:
    series = ForwardSeries({}, sends_late=True)
    forward(series, gpu(20, gpu_power_watts=3.0))
    assert forward(series, gpu(10, gpu_power_watts=2.0)) == [("gpu_power_watts", 2.0, 10)]
    assert series.late == 0


def test_each_machine_and_reader_has_its_own_series() -> None:
    series = ForwardSeries({}, sends_late=False)
    first = points(series, [gpu(10, gpu_power_watts=1.0)], "m1")
    second = points(series, [gpu(0, gpu_power_watts=2.0)], "m2")
    assert [one.labels["machine"] for one in (*first, *second)] == ["m1", "m2"]


def test_dimensions_become_labels_and_end_separately() -> None:
    name = "gpu_retired_pages"
    (dim,) = CATALOGUE[name].dims

    def sample(seconds: int, **values: int) -> Sample:
        one = gpu(seconds, gpu_power_watts=1.0)
        dims = tuple(DimValue(name, (label,), value) for label, value in values.items())
        return Sample(view=one.view, reader="nvml", lane=one.lane, measured_at=one.measured_at, values={}, dims=dims)

    series = ForwardSeries({}, sends_late=False)

    def of(one: Sample) -> list[tuple[str, float | None]]:
        return [(point.labels[dim], point.value) for point in points(series, [one])]

    assert of(sample(0, single_bit=1, double_bit=2)) == [("single_bit", 1), ("double_bit", 2)]
    assert of(sample(10, single_bit=1)) == [("single_bit", 1)]
    assert of(sample(20, single_bit=3)) == [("double_bit", None), ("single_bit", 3)]


def test_forwarded_series_are_not_imported_again() -> None:
    found = points(ForwardSeries({}, sends_late=False), [gpu(0, gpu_power_watts=1.0)])
    written = read_request(WriteDecoder().decode_1(encode_1(found)))
    assert not written.machines
    assert sum(written.others.values()) == 1
