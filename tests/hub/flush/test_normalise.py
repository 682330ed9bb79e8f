"""Normalisation: every value is checked against the catalogue."""

import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.codecs.batch import to_rows
from gpufleet.hub.flush.normalise import normalise
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Metric, ValueType
from gpufleet.model.event import Event
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.machine import Machine
from gpufleet.model.view import Side, View, ViewKind, ViewList
from gpufleet.model.wire.batch import Cell, DimBlock, MachinePart, SampleBlock, WireAbsence, WireBatch
from tests.support.profiles import examples

NOW = 1_790_000_000_000_000_000
MINUTE = 60_000_000_000
VIEWS = [
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1"),
    View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1"),
    View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, instance="7"),
]


def batch_of(
    columns: dict[str, list[Cell]],
    *,
    view: int = 0,
    at: Sequence[int] | None = None,
    absences: list[list[WireAbsence]] | None = None,
    absence: int = -1,
    dims: list[DimBlock] | None = None,
) -> WireBatch:
    rows = len(next(iter(columns.values()), []))
    block = SampleBlock(
        reader="nvml",
        lane="fast",
        provenance="host_local_probe",
        metrics=list(columns),
        machine=[0] * rows,
        view=[view] * rows,
        measured_at=list(at) if at else [NOW + row for row in range(rows)],
        driver_session=[0] * rows,
        absence=[absence] * rows,
        columns=list(columns.values()),
    )
    return WireBatch(
        version=1,
        catalogue=1,
        cluster="c",
        sender="s",
        epoch="0" * 32,
        seq=1,
        sent_at=NOW,
        machines=[Machine(name="n")],
        views=VIEWS,
        absences=absences or [],
        samples=[block],
        dims=dims or [],
    )


def fans(labels: list[list[str]], values: list[Cell], metric: str = "gpu_fan_speed_ratio") -> DimBlock:
    rows = len(values)
    return DimBlock(
        metric, "nvml", "fast", "host_local_probe", [0] * rows, [0] * rows, [NOW] * rows, [0] * rows, labels, values,
        [-1] * rows,
    )  # fmt: skip


def values_of(batch: WireBatch) -> list[dict[str, object]]:
    return [dict(sample.values) for report in to_rows(batch).reports for sample in report.samples]


def test_valid_batch_is_unchanged() -> None:
    batch = batch_of(
        {
            "gpu_utilization_ratio": [0.0, 1.0, 0],
            "gpu_memory_used_bytes": [0, 2**64 - 1, 5],
            "gpu_temperature_celsius": [-20.0, 150, 30.5],
            "gpu_recovery_action": ["none", "gpu_reset", "none"],
        },
        dims=[fans([["0", "1"]], [0.5, 2.0])],
    )
    result = normalise(batch, NOW)
    assert result.batch == batch
    assert (result.unknown_metrics, result.invalid_values, result.future_rows) == ({}, {}, 0)


@pytest.mark.parametrize(
    ("metric", "value", "detail"),
    [
        ("gpu_utilization_ratio", math.nan, "NaN"),
        ("gpu_utilization_ratio", math.inf, "infinite"),
        ("gpu_utilization_ratio", -math.inf, "infinite"),
        ("gpu_utilization_ratio", 1.0000001, "above 1"),
        ("gpu_utilization_ratio", -0.1, "below 0"),
        ("gpu_utilization_ratio", "0.5", "not a number"),
        ("gpu_utilization_ratio", True, "not a number"),
        ("gpu_energy_joules_total", math.nan, "NaN"),
        ("gpu_temperature_celsius", -21, "below -20"),
        ("gpu_memory_used_bytes", -1, "below 0"),
        ("gpu_memory_used_bytes", 1.5, "not an integer"),
        ("gpu_memory_used_bytes", 1e30, "does not fit in 64 bits"),
        ("gpu_memory_used_bytes", "many", "not a number"),
        ("gpu_memory_used_bytes", False, "not a number"),
        ("gpu_recovery_action", "pray", "not a state"),
        ("gpu_recovery_action", 1, "not a state"),
        ("gpu_name", 5, "not a text"),
        ("host_load_1m", 1.0, "not a metric of a gpu"),
    ],
)
def test_invalid_value_becomes_an_absence(metric: str, value: Cell, detail: str) -> None:
    good: dict[ValueType, Cell] = {ValueType.INT: 1, ValueType.FLOAT: 0.5, ValueType.ENUM: "none", ValueType.TEXT: "x"}
    beside = good[CATALOGUE[metric].type] if "metric of" not in detail else None
    batch = batch_of({metric: [beside, value], "gpu_power_watts": [10.0, 20.0]})
    result = normalise(batch, NOW)
    first, second = values_of(result.batch)
    assert second == {metric: Absent(Reason.INVALID_VALUE, detail), "gpu_power_watts": 20.0}
    assert first["gpu_power_watts"] == 10.0
    assert first[metric] == beside or beside is None
    assert result.invalid_values == {metric: 1}
    assert batch.samples[0].columns[0] == [beside, value] or math.isnan(float(value or 0)), "the input is not changed"


def test_integral_float_becomes_an_integer() -> None:
    result = normalise(batch_of({"gpu_memory_used_bytes": [3.0, 4]}), NOW)
    cells = result.batch.samples[0].columns[0]
    assert [(cell, type(cell)) for cell in cells] == [(3, int), (4, int)]
    assert not result.invalid_values


def test_unknown_metrics_are_dropped_and_counted() -> None:
    batch = batch_of({"made_up": [1, 2], "gpu_power_watts": [1.0, 2.0]}, dims=[fans([["0"]], [1], metric="also")])
    result = normalise(batch, NOW)
    assert result.unknown_metrics == {"made_up": 2, "also": 1}
    assert result.batch.samples[0].metrics == ["gpu_power_watts"]
    assert result.batch.samples[0].columns == [[1.0, 2.0]]
    assert result.batch.dims == []


def test_block_with_wrong_labels_is_dropped() -> None:
    two_labels = fans([["0"], ["x"]], [0.5])
    unlabelled = fans([["0"]], [1.0], metric="gpu_power_watts")
    batch = batch_of({"gpu_fan_speed_ratio": [0.5], "gpu_power_watts": [1.0]}, dims=[two_labels, unlabelled])
    result = normalise(batch, NOW)
    assert result.invalid_values == {"gpu_fan_speed_ratio": 2, "gpu_power_watts": 1}
    assert result.batch.dims == []
    assert values_of(result.batch) == [{"gpu_power_watts": 1.0}]


def test_invalid_dimension_value_keeps_its_labels() -> None:
    result = normalise(batch_of({}, dims=[fans([["0", "1"]], [0.5, 3.0])]), NOW)
    (block,) = result.batch.dims
    assert (block.labels, block.values) == ([["0", "1"]], [0.5, None])
    assert block.absence[0] == -1
    assert result.batch.absences[block.absence[1]] == [
        WireAbsence("gpu_fan_speed_ratio", Reason.INVALID_VALUE, "above 2")
    ]


@pytest.mark.parametrize("view", [-1, 2])
def test_metric_of_another_subject_is_invalid(view: int) -> None:
    result = normalise(batch_of({"gpu_power_watts": [5.0]}, view=view), NOW)
    subject = "machine" if view < 0 else "vgpu"
    assert values_of(result.batch) == [
        {"gpu_power_watts": Absent(Reason.INVALID_VALUE, f"not a metric of a {subject}")}
    ]


def test_row_keeps_its_received_absences() -> None:
    known = [WireAbsence("gpu_memory_temperature_celsius", Reason.NOT_SUPPORTED)]
    batch = batch_of(
        {"gpu_memory_temperature_celsius": [None, None], "gpu_utilization_ratio": [2.0, 0.5]},
        absences=[known],
        absence=0,
    )
    result = normalise(batch, NOW)
    assert result.batch.absences[0] == known
    assert result.batch.samples[0].absence == [1, 0]
    assert result.batch.absences[1] == [
        *known,
        WireAbsence("gpu_utilization_ratio", Reason.INVALID_VALUE, "above 1"),
    ]


def test_rows_with_equal_absences_share_a_set() -> None:
    result = normalise(batch_of({"gpu_utilization_ratio": [2.0] * 50}), NOW)
    assert len(result.batch.absences) == 1
    assert result.batch.samples[0].absence == [0] * 50


def test_null_without_a_reason_is_not_reported() -> None:
    result = normalise(batch_of({"gpu_utilization_ratio": [None, 0.5]}), NOW)
    assert values_of(result.batch)[0] == {"gpu_utilization_ratio": Absent(Reason.NOT_REPORTED)}
    assert result.batch.samples[0].absence == [0, -1]
    assert not result.invalid_values


def test_rows_measured_in_the_future_are_dropped() -> None:
    at = [NOW, NOW + 10 * MINUTE, NOW + 10 * MINUTE + 1, 2**63 - 1]
    dims = fans([["0", "1"]], [0.5, 0.25])
    dims.measured_at[1] = NOW + 11 * MINUTE
    result = normalise(batch_of({"gpu_power_watts": [1.0, 2.0, 3.0, math.nan]}, at=at, dims=[dims]), NOW)
    assert result.future_rows == 3
    assert result.batch.samples[0].columns == [[1.0, 2.0]]
    assert result.batch.samples[0].machine == [0, 0]
    assert result.batch.dims[0].labels == [["0"]]
    assert result.batch.dims[0].values == [0.5]
    assert not result.invalid_values


@pytest.mark.parametrize("kind", [list, ViewList])
def test_events_of_the_future_are_dropped(kind: type[list[View]]) -> None:
    events = [Event(view=None, kind="xid", at=NOW + ahead) for ahead in (10 * MINUTE, 10 * MINUTE + 1)]
    batch = batch_of({"gpu_power_watts": [1.0]})
    views, parts = kind(batch.views), [MachinePart(machine=0, events=events)]
    result = normalise(msgspec.structs.replace(batch, views=views, parts=parts), NOW)
    assert (result.batch.parts[0].events, result.future_rows) == (events[:1], 1)


@pytest.mark.parametrize("kind", [list, ViewList])
def test_holdings_of_the_future_are_dropped(kind: type[list[View]]) -> None:
    times = [(10 * MINUTE, None), (10 * MINUTE + 1, None), (0, 10 * MINUTE), (0, 10 * MINUTE + 1)]
    holdings = [
        Holding(
            view="gpu/host/uuid/GPU-0",
            holder=Holder(kind=HolderKind.POD, id=f"pod-{number}"),
            since=NOW + since,
            until=None if until is None else NOW + until,
            methods=("kubelet",),
            verdict=HoldingVerdict.DECLARED_ONLY,
        )
        for number, (since, until) in enumerate(times)
    ]
    batch = batch_of({"gpu_power_watts": [1.0]})
    views, parts = kind(batch.views), [MachinePart(machine=0, holdings=holdings)]
    result = normalise(msgspec.structs.replace(batch, views=views, parts=parts), NOW)
    assert (result.batch.parts[0].holdings, result.future_rows) == ([holdings[0], holdings[2]], 2)


plain = [metric for metric in CATALOGUE.values() if not metric.dims]
cells = (
    st.none()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-2, 40)
    | st.floats()
    | st.floats(-1, 2)
    | st.text(max_size=4)
    | st.sampled_from(["none", "ok", "enabled"])
    | st.booleans()
)


def fits(metric: Metric, view: int, cell: Cell) -> bool:
    """Check a cell by the catalogue's rule, in the simplest way."""
    subject = "machine" if view < 0 else VIEWS[view].kind.value
    if subject not in {s.value for s in metric.subjects}:
        return False
    if metric.type is ValueType.TEXT:
        return isinstance(cell, str)
    if metric.type is ValueType.ENUM:
        return isinstance(cell, str) and cell in metric.states
    if isinstance(cell, (str, bool)) or cell is None or not math.isfinite(cell):
        return False
    if metric.type is ValueType.INT and (cell != math.floor(cell) or cell >= 2**64):
        return False
    return (metric.low is None or cell >= metric.low) and (metric.high is None or cell <= metric.high)


@given(st.sampled_from(plain), st.lists(cells, min_size=1, max_size=6), st.integers(-1, 2))
def test_only_valid_cells_are_kept(metric: Metric, column: list[Cell], view: int) -> None:
    result = normalise(batch_of({metric.name: column}, view=view), NOW)
    (block,) = result.batch.samples
    invalid = 0
    for row, (before, after) in enumerate(zip(column, block.columns[0], strict=True)):
        if before is not None and fits(metric, view, before):
            assert after == before
            continue
        assert after is None
        (entry,) = result.batch.absences[block.absence[row]]
        assert entry.reason is (Reason.NOT_REPORTED if before is None else Reason.INVALID_VALUE)
        invalid += before is not None
    assert result.invalid_values.total() == invalid
    again = normalise(result.batch, NOW)
    assert again.batch == result.batch
    assert not again.invalid_values


def test_first_of_two_rows_with_equal_keys_is_kept() -> None:
    batch = batch_of({"gpu_power_watts": [1.0, 2.0, 3.0]}, at=[NOW, NOW, NOW + 1])
    result = normalise(batch, NOW)
    (block,) = result.batch.samples
    assert (block.columns, block.measured_at, block.machine) == ([[1.0, 3.0]], [NOW, NOW + 1], [0, 0])
    assert result.repeated_rows == 1


def test_row_key_is_machine_and_view_not_their_index() -> None:
    batch = batch_of({"gpu_power_watts": [1.0]}, at=[NOW])
    twin = batch_of({"gpu_temperature_celsius": [50.0]}, at=[NOW]).samples[0]
    batch.machines.append(Machine(name="n"))
    batch.machines.append(Machine(name="another"))
    batch = msgspec.structs.replace(batch, views=[*batch.views, batch.views[0]])
    for machine, view, reader in ((1, 0, "nvml"), (0, 3, "nvml"), (2, 0, "nvml"), (0, 1, "nvml"), (0, 0, "host")):
        block = msgspec.structs.replace(twin, machine=[machine], view=[view], reader=reader)
        batch.samples.append(block)
    result = normalise(batch, NOW)
    assert [len(block.machine) for block in result.batch.samples] == [1, 0, 0, 1, 1, 1]
    assert result.repeated_rows == 2


def test_first_of_two_values_with_equal_labels_is_kept() -> None:
    dims = DimBlock(
        metric="gpu_fan_speed_ratio",
        reader="nvml",
        lane="fast",
        provenance="host_local_probe",
        machine=[0, 0, 0],
        view=[0, 0, 0],
        measured_at=[NOW, NOW, NOW],
        driver_session=[0, 0, 0],
        labels=[["0", "0", "1"]],
        values=[0.1, 0.2, 0.3],
        absence=[-1, -1, -1],
    )
    result = normalise(batch_of({}, dims=[dims]), NOW)
    (block,) = result.batch.dims
    assert (block.labels, block.values) == ([["0", "1"]], [0.1, 0.3])
    assert result.repeated_rows == 1


blocks = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from([0, 0, 0, 11 * MINUTE])), max_size=3),
        st.sampled_from(["nvml", "dcgm"]),
        st.sampled_from([1.0, 1.0, 1.0, math.inf]),
    ),
    max_size=3,
)


@settings(max_examples=examples(200, 2000))
@given(blocks, st.integers(1, 2), st.booleans(), st.booleans())
def test_view_list_gives_the_same_result_as_a_list(
    rows_by_block: list[tuple[list[tuple[int, int, int]], str, float]], machines: int, doubles: bool, dims: bool
) -> None:
    """A `ViewList` knows whether two of its views are equal, which saves a check of most batches."""
    batch = batch_of({}, dims=[fans([["0", "0"]], [0.5, 2.0])] if dims else None)
    batch.machines[:] = [Machine(name="n")] * machines
    batch.samples[:] = [
        msgspec.structs.replace(
            batch_of({"gpu_power_watts": [watts] * len(rows)}, at=[NOW + at for _, _, at in rows]).samples[0],
            reader=reader,
            machine=[min(machine, machines - 1) for machine, _, _ in rows],
            view=[view for _, view, _ in rows],
        )
        for rows, reader, watts in rows_by_block
    ]
    views = [View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}") for number in (0, 1, 2, 0 if doubles else 3)]
    plain_list, known = (msgspec.structs.replace(batch, views=kind(views)) for kind in (list, ViewList))
    expected, result = normalise(plain_list, NOW), normalise(known, NOW)
    assert result.batch.samples == expected.batch.samples
    assert (result.batch.dims, result.batch.absences) == (expected.batch.dims, expected.batch.absences)
    assert (result.future_rows, result.repeated_rows) == (expected.future_rows, expected.repeated_rows)
    assert result.invalid_values == expected.invalid_values
