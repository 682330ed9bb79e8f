"""l9gpu dialect: names of its source and dashboards, and round trips."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.dialects.l9gpu import L9GPU, L9GPU_UNREAD, QUOTIENTS, SUM, Quotient
from gpufleet.dialects.l9gpu_points import device_attributes, points_of, quotient, sum_of
from gpufleet.dialects.otel import OtelPoint
from gpufleet.dialects.otel_names import Instrument
from gpufleet.dialects.otel_reading import IncomingPoint, read_points
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Subject, ValueType
from gpufleet.model.view import Side, View, ViewKind

AT = 1_790_000_000_000_000_000
DATA = Path(__file__).parents[1] / "data" / "l9gpu"
RESOURCE = {"host.name": "gpu-17", "k8s.cluster.name": "east"}
GPUS = [
    View(
        kind=ViewKind.GPU,
        side=Side.HOST,
        uuid=f"GPU-{number}b4e07f6-3a86-4340-039d-25f2a83cdc43",
        pci_address=f"0000:{number}b:00.0",
        index=number,
    )
    for number in range(2)
]
GUEST = View(kind=ViewKind.GPU, side=Side.GUEST, pci_address="0000:00:07.0", index=0)
UNITS = {"1": "ratio", "By": "bytes", "By/s": "bytes_per_second", "Cel": "celsius", "W": "watts"}


def known() -> set[tuple[str, str, frozenset[str]]]:
    """Return the names, units and attributes of l9gpu."""
    lines = [line.split() for line in (DATA / "names.txt").read_text().splitlines()]
    return {(name, unit, frozenset(attributes)) for name, unit, *attributes in lines}


def written() -> set[tuple[str, str, frozenset[str]]]:
    rows = {(row.name, row.unit, frozenset("=".join(pair) for pair in row.fixed)) for row in L9GPU}
    return rows | {(row.name, row.unit, frozenset[str]()) for row in (*QUOTIENTS, SUM)}


def about(view: View) -> dict[str, str]:
    found = device_attributes(view, "NVIDIA H100", RESOURCE)
    assert found is not None
    return found


def incoming(view: View, point: OtelPoint) -> IncomingPoint:
    """Return a point as a receiver has it."""
    return IncomingPoint(point.name, point.unit, {**about(view), **point.attributes}, point.value, AT)


def a_value(metric: Metric) -> float:
    return 3 if metric.type is ValueType.INT and (metric.high is None or metric.high > 3) else 1


def every_point() -> list[OtelPoint]:
    """Return the points of a GPU with all values."""
    points = [point for row in L9GPU for point in points_of(row.metric, row.labels, a_value(CATALOGUE[row.metric]))]
    made = [quotient(row, 1, 2) for row in QUOTIENTS] + [sum_of([1, 2])]
    return points + [point for point in made if point is not None]


def prometheus(point: OtelPoint) -> tuple[str, dict[str, str]]:
    """Return the series that a collector makes of a point.

    Unit and type are added to the name; a unit in braces is not.
    """
    suffix = UNITS.get(point.unit, "" if point.unit.startswith("{") else point.unit)
    name = point.name.replace(".", "_")
    labels = {key.replace(".", "_"): text for key, text in {**about(GPUS[0]), **point.attributes}.items()}
    return f"{name}_{suffix}" if suffix and not name.endswith(suffix) else name, labels


def test_written_gauges_have_their_name_unit_and_attributes() -> None:
    assert not written() - known()
    assert {point.instrument for point in every_point()} == {Instrument.GAUGE}


def test_omitted_names_have_a_reason() -> None:
    names = {name for name, _, _ in written()}
    for name, _, attributes in known() - written():
        assert name in L9GPU_UNREAD or (name, attributes) == ("gpu.throttle.reason", frozenset()), name
        assert name not in names or not attributes


def test_l9gpu_dashboards_and_alerts_find_their_series() -> None:
    series = [prometheus(point) for point in every_point()]
    missing = []
    for selector in (DATA / "selectors.txt").read_text().split():
        name, _, matchers = selector.removesuffix("}").partition("{")
        pairs = re.findall(r'(\w+)(?:="([^"]*)")?', matchers)
        if not any(
            name == found and all(labels.get(key, "") == text if text else key in labels for key, text in pairs)
            for found, labels in series
        ):
            missing.append(name)
    assert missing == ["gpu_fan_speed_ratio"]  # one value in l9gpu, one per fan here


def test_values_are_in_the_units_of_l9gpu() -> None:
    def value(metric: str, ours: float) -> float:
        (point,) = points_of(metric, (), ours)
        return point.value

    assert value("gpu_power_watts", 312.5) == 312.5  # watts, as documented by l9gpu, not milliwatts
    assert value("gpu_energy_joules_total", 5_551_899.58) == 5_551_899_580
    assert value("gpu_graphics_clock_hertz", 1_980_000_000) == 1980
    assert value("gpu_utilization_ratio", 0.5) == 0.5
    assert isinstance(value("gpu_energy_joules_total", 0.001), int)


@pytest.mark.parametrize(
    ("row", "value", "by", "theirs"), [(QUOTIENTS[0], 20, 80, 25), (QUOTIENTS[1], 350.0, 700, 0.5)]
)
def test_quotients_need_both_values(row: Quotient, value: float, by: float, theirs: float) -> None:
    point = quotient(row, value, by)
    assert point is not None
    assert point.value == theirs
    assert quotient(row, 0, by) is not None  # measured zero
    assert quotient(row, None, by) is None
    assert quotient(row, value, None) is None
    assert quotient(row, value, 0) is None


def test_sum_with_an_unknown_part_is_none() -> None:
    total = sum_of([2, 3])
    assert total is not None
    assert (total.name, total.value) == ("gpu.xid.errors", 5)
    assert sum_of([2, None]) is None
    assert sum_of([]) is None


def test_parts_of_a_gpu_are_not_written() -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=GPUS[0].key)
    vgpu = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="22", parent=GPUS[0].key)
    assert device_attributes(mig, None, RESOURCE) is None
    assert device_attributes(vgpu, None, RESOURCE) is None


def test_gpus_of_a_machine_are_distinct() -> None:
    points = [
        IncomingPoint(
            "gpu.pcie.replay.count", "{event}", {"gpu.uuid": gpu.uuid or "", "gpu.index": str(gpu.index)}, number, AT
        )
        for number, gpu in enumerate(GPUS)
    ]
    found = read_points("n", points, reader="otlp").machines["n"]
    read = {sample.view.uuid: (sample.view.index, sample.values) for sample in found if sample.view}
    assert read == {gpu.uuid: (gpu.index, {"gpu_pcie_replays_total": number}) for number, gpu in enumerate(GPUS)}


def test_unreliable_points_of_l9gpu_itself_are_not_read() -> None:
    theirs = [
        IncomingPoint(
            one.name,
            one.unit,
            {k: v for k, v in one.attributes.items() if not k.startswith("gpufleet.")},
            one.value,
            AT,
        )
        for one in (incoming(GPUS[0], point) for point in every_point())
    ]
    found = read_points("n", theirs, reader="otlp")
    read = {name for sample in found.machines["n"] for name in sample.values} - {"gpu_name"}
    assert read == {row.metric for row in L9GPU if not row.unread}
    assert set(found.unread) == {row.name for row in L9GPU if row.unread} | {row.name for row in (*QUOTIENTS, SUM)}
    assert not found.unknown
    bare = read_points("n", [IncomingPoint("gpu.throttle.reason", "{bool}", {"gpu.uuid": "a"}, 4, AT)], reader="otlp")
    assert bare.unread.keys() == {"gpu.throttle.reason"}


@pytest.mark.parametrize(("marks", "value"), [({}, Absent), ({"gpufleet.kind": "gpu"}, int)])
def test_total_memory_of_zero_is_a_value_of_ours_only(marks: dict[str, str], value: type) -> None:
    point = IncomingPoint("gpu.memory.total", "By", {"gpu.uuid": "GPU-a", **marks}, 0, AT)
    (sample,) = read_points("n", [point], reader="otlp").machines["n"]
    assert isinstance(sample.values["gpu_memory_total_bytes"], value)


@pytest.mark.parametrize("view", [GPUS[1], GUEST])
def test_device_identity_round_trips(view: View) -> None:
    (point,) = points_of("gpu_power_watts", (), 300.0)
    samples = read_points("n", [incoming(view, point)], reader="otlp").machines["n"]
    (power,) = [sample for sample in samples if "gpu_power_watts" in sample.values]
    (static,) = [sample for sample in samples if "gpu_name" in sample.values]
    assert power.view is not None
    assert (power.view.key, power.view.side, power.view.index) == (view.key, view.side, view.index)
    assert static.values == {"gpu_name": "NVIDIA H100", "gpu_pci_address": view.pci_address}


@given(st.data())
def test_readings_round_trip(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(L9GPU))
    metric = CATALOGUE[row.metric]
    assert metric.kind is not MetricKind.STATE
    assert metric.subjects[0] is Subject.GPU
    low = 0 if metric.low is None else metric.low
    high = low + 1e9 if metric.high is None else metric.high
    value: float
    if metric.type is ValueType.INT:
        value = data.draw(st.integers(int(low), int(high)))
    elif row.over != 1:
        value = data.draw(st.integers(0, 2**50)) / row.over
    else:
        value = data.draw(st.floats(low, high))
    view = data.draw(st.sampled_from([*GPUS, GUEST]))
    points = [incoming(view, point) for point in points_of(row.metric, row.labels, value)]
    assert row.name in {point.name for point in points}
    found = read_points("n", points, reader="otlp")
    assert not found.unknown
    assert not found.unread
    (back,) = [
        sample for sample in found.machines["n"] if sample.lane is metric.lane and "gpu_name" not in sample.values
    ]
    assert back.view is not None
    assert (back.view.key, back.measured_at) == (view.key, AT)
    if metric.dims:
        assert [(dim.metric, dim.labels, dim.value) for dim in back.dims] == [(row.metric, row.labels, value)]
    else:
        assert back.values == {row.metric: value}
