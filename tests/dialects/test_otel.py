"""OpenTelemetry dialect: names of the semantic conventions, and round trips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.dialects.otel import ROWS, device_attributes, map_point, points, points_of, view_of
from gpufleet.dialects.otel_names import OWN, OWN_ROWS, UNITS, Instrument
from gpufleet.dialects.otel_reading import IncomingPoint, read_points
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, MetricKind, Subject, ValueType
from gpufleet.model.catalogue.probe import PROBE_NAMES
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.view import Side, View, ViewKind

AT = 1_790_000_000_000_000_000
GPU = View(
    kind=ViewKind.GPU,
    side=Side.HOST,
    uuid="GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43",
    pci_address="0000:1b:00.0",
)
MIG = View(
    kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-11111111-3a86-4340-039d-25f2a83cdc43", instance="7/0", parent=GPU.key
)
VGPU = View(
    kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="22222222-3a86-4340-039d-25f2a83cdc43", instance="4", parent=GPU.key
)


def sent(sample: Sample, texts: dict[str, str] | None = None) -> list[IncomingPoint]:
    """Return the points of a sample as a receiver has them."""
    about = device_attributes(sample.view, texts or {}) if sample.view else {}
    return [
        IncomingPoint(point.name, point.unit, {**about, **point.attributes}, point.value, sample.measured_at)
        for point in points(sample)
    ]


def sample_of(view: View | None, metric: str, value: Value | Absent, labels: tuple[str, ...] = ()) -> Sample:
    row = CATALOGUE[metric]
    return Sample(
        view=view,
        reader="nvml",
        lane=row.lane,
        measured_at=AT,
        values={} if row.dims else {metric: value},
        dims=(DimValue(metric, labels, value),) if row.dims else (),
    )


def test_catalogue_and_tables_have_the_same_names() -> None:
    for metric in CATALOGUE.values():
        assert {row.name for row in ROWS.get(metric.name, ())} == ({metric.otel} if metric.otel else set())
        for row in ROWS.get(metric.name, ()):
            assert len(row.dims) == (0 if row.labels else len(metric.dims))
            assert (row.instrument is Instrument.COUNTER) == (metric.kind is MetricKind.COUNTER)


def test_every_numeric_metric_has_a_name_and_a_unit() -> None:
    for metric in CATALOGUE.values():
        assert (metric.name in OWN_ROWS) == (metric.kind is not MetricKind.INFO)
        assert metric.unit in UNITS


@pytest.mark.parametrize(
    ("metric", "labels", "value", "name", "unit", "attributes"),
    [
        ("gpu_utilization_ratio", (), 0.87, "hw.gpu.utilization", "1", {"hw.gpu.task": "general"}),
        ("gpu_encoder_utilization_ratio", (), 0.1, "hw.gpu.utilization", "1", {"hw.gpu.task": "encoder"}),
        ("gpu_memory_used_bytes", (), 1 << 60, "hw.gpu.memory.usage", "By", {}),
        ("gpu_memory_total_bytes", (), 1 << 60, "hw.gpu.memory.limit", "By", {}),
        ("gpu_power_watts", (), 312.5, "hw.power", "W", {}),
        ("gpu_energy_joules_total", (), 5.5, "hw.energy", "J", {}),
        ("gpu_temperature_celsius", (), 40, "hw.temperature", "Cel", {"hw.sensor_location": "gpu"}),
        ("gpu_memory_temperature_celsius", (), 60, "hw.temperature", "Cel", {"hw.sensor_location": "memory"}),
        ("gpu_ecc_corrected_errors_total", (), 3, "hw.errors", "{error}", {"error.type": "corrected"}),
        ("gpu_ecc_uncorrected_errors_total", (), 0, "hw.errors", "{error}", {"error.type": "uncorrected"}),
        ("gpu_pcie_transmit_bytes_total", (), 2**60 + 1, "hw.gpu.io", "By", {"network.io.direction": "transmit"}),
        (
            *("gpu_temperature_threshold_celsius", ("shutdown",), 92, "hw.temperature.limit", "Cel"),
            {"hw.limit_type": "high.critical", "hw.sensor_location": "gpu"},
        ),
        (
            *("gpu_temperature_threshold_celsius", ("acoustic_min",), 65),
            *("gpufleet.gpu_temperature_threshold_celsius", "Cel", {"gpufleet.threshold": "acoustic_min"}),
        ),
        ("gpu_sm_activity_ratio", (), 0.5, "gpufleet.gpu_sm_activity_ratio", "1", {}),
        (
            *("host_network_receive_bytes_total", ("eth0", "ethernet"), 7, "system.network.io", "By"),
            {"network.interface.name": "eth0", "gpufleet.class": "ethernet", "network.io.direction": "receive"},
        ),
        (
            *("host_cpu_seconds_total", ("3", "irq"), 7.5, "system.cpu.time", "s"),
            {"cpu.logical_number": "3", "cpu.mode": "interrupt"},
        ),
    ],
)
def test_names_units_and_attributes_follow_the_conventions(
    metric: str, labels: tuple[str, ...], value: float, name: str, unit: str, attributes: dict[str, str]
) -> None:
    (point,) = points_of(metric, labels, value)
    assert (point.name, point.unit, point.attributes, point.value) == (name, unit, attributes, value)
    mapped = map_point(name, unit, attributes, value)
    assert mapped is not None
    assert (mapped.metric, mapped.labels, mapped.value) == (metric, labels, value)


def test_device_attributes_follow_the_conventions() -> None:
    texts = {"gpu_name": "NVIDIA H100", "gpu_serial": "16", "nvidia_driver_version": "580.1", "gpu_vbios_version": "9"}
    attributes = device_attributes(MIG, texts)
    assert {name: text for name, text in attributes.items() if name.startswith("hw.")} == {
        "hw.id": MIG.uuid,
        "hw.type": "gpu",
        "hw.vendor": "NVIDIA",
        "hw.model": "NVIDIA H100",
        "hw.serial_number": "16",
        "hw.driver_version": "580.1",
        "hw.firmware_version": "9",
        "hw.parent": GPU.uuid,
    }


@pytest.mark.parametrize("view", [GPU, MIG, VGPU, View(kind=ViewKind.GPU, side=Side.GUEST, pci_address="0000:00:07.0")])
def test_device_identity_round_trips(view: View) -> None:
    back = view_of(device_attributes(view, {}))
    assert back is not None
    assert (back.key, back.kind, back.side, back.parent) == (view.key, view.kind, view.side, view.parent)


@pytest.mark.parametrize(("view", "name"), [(GPU, "gpu_name"), (MIG, "gpu_name"), (VGPU, "vgpu_type")])
def test_product_and_address_of_a_device_round_trip(view: View, name: str) -> None:
    texts = {name: "NVIDIA L40S-12Q"}
    address = {"gpu_pci_address": view.pci_address} if view.kind is ViewKind.GPU else {}
    point = points_of("gpu_utilization_ratio", (), 0.5)
    incoming = [
        IncomingPoint(one.name, one.unit, {**one.attributes, **device_attributes(view, texts)}, one.value, AT)
        for one in point
    ]
    samples = read_points("n", incoming, reader="otlp").machines["n"]
    assert {key: value for sample in samples for key, value in sample.values.items()} == {
        "gpu_utilization_ratio": 0.5,
        **texts,
        **address,
    }


def test_devices_of_other_senders() -> None:
    gpu = view_of({"hw.id": GPU.uuid or "", "hw.type": "gpu"})
    mig = view_of({"hw.id": MIG.uuid or "", "hw.parent": GPU.uuid or ""})
    assert gpu is not None
    assert (gpu.kind, gpu.key) == (ViewKind.GPU, GPU.key)
    assert mig is not None
    assert (mig.kind, mig.key, mig.parent) == (ViewKind.MIG, MIG.key, GPU.key)
    assert view_of({}) is None
    assert view_of({"hw.id": "x" * 300}) is None
    utilization = map_point("hw.gpu.utilization", "1", {"hw.id": "a"}, 0.5)
    assert utilization is not None
    assert utilization.metric == "gpu_utilization_ratio"
    assert map_point("hw.errors", "{error}", {"hw.id": "a"}, 5) is None  # without its error type
    assert map_point("hw.power", "W", {"hw.type": "cpu", "hw.id": "a"}, 5) is None


@pytest.mark.parametrize(
    ("state", "theirs"),
    [
        ("ok", {"ok": 1, "degraded": 0, "failed": 0}),
        ("error", {"ok": 0, "degraded": 1, "failed": 0}),
        ("lost", {"ok": 0, "degraded": 0, "failed": 1}),
        ("hung", {"ok": 0, "degraded": 0, "failed": 1}),
        ("reset_required", {"ok": 0, "degraded": 0, "failed": 1}),
        ("unreadable", {}),
    ],
)
def test_failed_reader_reports_no_device_status(state: str, theirs: dict[str, int]) -> None:
    made = list(points_of("gpu_state", (), state))
    assert {point.attributes["hw.state"]: point.value for point in made if point.name == "hw.status"} == theirs
    own = [point.attributes["gpufleet.state"] for point in made if point.name.startswith(OWN) and point.value == 1]
    assert own == [state]
    found = read_points("n", sent(sample_of(GPU, "gpu_state", state)), reader="otlp")
    values = {name: value for sample in found.machines["n"] for name, value in sample.values.items()}
    assert values == {"gpu_state": state, "gpu_pci_address": GPU.pci_address}
    assert not found.unknown


def test_status_of_an_agents_device_is_not_read() -> None:
    """The agent's own state names the failure. A Collector can send the two points in different requests."""
    (status,) = [one for one in sent(sample_of(GPU, "gpu_state", "lost")) if one.name == "hw.status" and one.value == 1]
    found = read_points("n", [status], reader="otlp")
    assert (found.machines, list(found.unknown)) == ({}, [])


def foreign(*states: str) -> Value | Absent | None:
    """Return the state that a device has by points of other projects, with plausible readings beside them."""
    device = {"hw.id": "GPU-1", "hw.type": "gpu"}
    points = [
        *(IncomingPoint("hw.status", "1", {**device, "hw.state": text}, 1, 5) for text in states),
        *(IncomingPoint("hw.status", "1", {**device, "hw.state": text}, 0, 5) for text in {"ok", "failed"} - {*states}),
        IncomingPoint("hw.power", "W", device, 300.0, 5),
        IncomingPoint("hw.temperature", "Cel", {**device, "hw.sensor_location": "gpu"}, 40.0, 5),
        IncomingPoint("hw.gpu.memory.usage", "By", device, 1, 5),
    ]
    found = read_points("n", points, reader="otlp")
    assert not found.unknown
    values = [one.values for one in found.machines["n"] if "gpu_state" in one.values]
    return values[0]["gpu_state"] if values else None


def test_failed_device_is_not_ok_beside_plausible_readings() -> None:
    assert [foreign("ok"), foreign("degraded"), foreign("failed")] == ["ok", "error", "error"]


def test_worst_of_contradictory_states_counts() -> None:
    assert foreign("melted", "failed") == foreign("failed", "melted") == "error"
    assert foreign("ok", "failed") == foreign("failed", "ok") == foreign("ok", "degraded") == "error"


@pytest.mark.parametrize("states", [("predicted_failure",), ("ok", "melted"), ("melted", "ok")])
def test_unknown_text_of_a_state_is_absent(states: tuple[str, ...]) -> None:
    found = foreign(*states)
    assert isinstance(found, Absent)
    assert found.reason is Reason.INVALID_VALUE


def test_state_of_another_component_is_not_read() -> None:
    attributes = {"hw.id": "GPU-1", "hw.type": "fan", "hw.state": "melted"}
    assert map_point("hw.status", "1", attributes, 1) is None


def test_absent_value_has_no_point() -> None:
    assert not sent(sample_of(GPU, "gpu_power_watts", Absent(Reason.NOT_SUPPORTED)))


def test_percentage_is_not_read_as_a_ratio() -> None:
    mapped = map_point("hw.gpu.utilization", "%", {"hw.id": "a"}, 0.5)
    assert mapped is not None
    assert isinstance(mapped.value, Absent)
    over = map_point("hw.gpu.utilization", "1", {"hw.id": "a"}, 50)
    assert over is not None
    assert isinstance(over.value, Absent)


def test_points_without_a_device_and_unknown_names_are_counted() -> None:
    found = read_points(
        "n",
        [
            IncomingPoint("hw.gpu.utilization", "1", {}, 0.5, AT),
            IncomingPoint("hw.gpu.memory.utilization", "1", {"hw.id": "a"}, 0.5, AT),
            IncomingPoint("gpu.speed", "W", {"hw.id": "a"}, 312000, AT),
            IncomingPoint("system.memory.limit", "By", {"hw.id": "a"}, 4096, AT),
        ],
        reader="otlp",
    )
    assert found.unattributed == 1
    assert list(found.unread) == ["hw.gpu.memory.utilization"]
    assert list(found.unknown) == ["gpu.speed"]
    ((sample),) = found.machines["n"]
    assert (sample.view, sample.values) == (None, {"host_memory_total_bytes": 4096})


def test_only_reliable_l9gpu_points_are_read() -> None:
    about = {"gpu.uuid": GPU.uuid or "", "gpu.index": "0", "host.name": "another-host"}
    ecc = {**about, "gpu.ecc.error_type": "correctable", "gpu.ecc.count_type": "volatile"}
    found = read_points(
        "n",
        [
            IncomingPoint("gpu.energy.consumption", "mJ", about, 5_551_899_580, AT),
            IncomingPoint("gpu.ecc.errors", "{error}", ecc, 3, AT),
            IncomingPoint("gpu.power.draw", "W", about, 312_000, AT),
            IncomingPoint("gpu.utilization", "1", {**about, "gpu.task.type": "compute"}, 1.0, AT),
            IncomingPoint("vllm.requests.running", "1", about, 4, AT),
        ],
        reader="otlp",
    )
    (sample,) = found.machines["n"]
    assert sample.view is not None
    assert sample.view.uuid == GPU.uuid
    assert sample.values == {"gpu_energy_joules_total": 5_551_899.58, "gpu_ecc_corrected_errors_total": 3}
    assert set(found.unread) == {"gpu.power.draw", "gpu.utilization", "vllm.requests.running"}
    assert "milliwatts" in found.unread["gpu.power.draw"]
    assert not found.unknown


_METRICS = [
    metric for name, metric in CATALOGUE.items() if metric.kind is not MetricKind.INFO and name not in PROBE_NAMES
]


@given(st.data())
def test_readings_round_trip(data: st.DataObject) -> None:
    metric = data.draw(st.sampled_from(_METRICS))
    low = 0 if metric.low is None else metric.low
    high = low + 1e9 if metric.high is None else metric.high
    value: Value
    if metric.type is ValueType.ENUM:
        value = data.draw(st.sampled_from(metric.states))
    elif metric.type is ValueType.INT:
        value = data.draw(st.integers(int(low), int(high)))
    else:
        value = data.draw(st.floats(low, high))
    labels = tuple(data.draw(st.text(min_size=1, max_size=8)) for _ in metric.dims)
    views: list[View | None] = [None] if Subject.MACHINE in metric.subjects else [GPU, MIG, VGPU]
    view = data.draw(st.sampled_from(views))
    found = read_points("n", sent(sample_of(view, metric.name, value, labels)), reader="otlp")
    assert not found.unknown
    assert not found.unattributed
    rows = [one for one in found.machines["n"] if one.dims or one.values.keys() != {"gpu_pci_address"}]
    (back,) = rows or found.machines["n"]
    assert (back.view.key if back.view else None) == (view.key if view else None)
    assert (back.lane, back.measured_at) == (metric.lane, AT)
    value_back = back.values[metric.name] if not metric.dims else back.dims[0].value
    assert value_back == value
    if metric.dims:
        assert back.dims[0].labels == labels


@given(
    st.sampled_from([name for row in (*ROWS.values(),) for name in {one.name for one in row}] + ["x", "gpufleet.x"]),
    st.dictionaries(
        st.sampled_from(["hw.id", "hw.type", "hw.parent", "hw.state", "hw.gpu.task", "gpufleet.kind", "gpufleet.side"])
        | st.text(max_size=5),
        st.text(max_size=20),
    ),
    st.floats() | st.integers(-(2**63), 2**64),
    st.text(max_size=4),
)
def test_any_point_is_read_without_error(name: str, attributes: dict[str, str], value: float, unit: str) -> None:
    found = read_points("n", [IncomingPoint(name, unit, attributes, value, AT)], reader="otlp")
    assert set(found.machines) <= {"n"}
    for sample in found.machines.get("n", ()):
        assert sample.lane in set(Lane)
