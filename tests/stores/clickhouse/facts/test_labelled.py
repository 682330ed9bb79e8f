"""Values with dimensions in memory: the newest value of each name, in any order of arrival."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue, Sample
from gpufleet.model.stored.readings import labelled, split_labelled
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.stores.clickhouse.facts import labelled as module
from gpufleet.stores.clickhouse.facts.labelled import LabelledValues
from gpufleet.stores.clickhouse.samples.subjects import SubjectNumbers
from gpufleet.stores.clickhouse.schema.columns import Columns, DictionaryColumn
from tests.support.accepted import accept

T0 = 1_700_000_000_000_000_000
NAMES = [labelled("gpu_retired_pages", "single_bit"), labelled("gpu_fabric_health", "route_unhealthy")]
OTHER = labelled("gpu_retired_pages", "double_bit")
MACHINES = ("m-a", "m-b", "m-c")

reports = st.lists(
    st.tuples(
        st.sampled_from(MACHINES),
        st.integers(0, 3),
        st.dictionaries(st.sampled_from([*NAMES, OTHER]), st.integers(0, 2**53), max_size=3),
    ),
    max_size=12,
)
"""Machine, second of measurement, and values, in the order of reports."""


def subjects(machines: tuple[str, ...]) -> Columns:
    rows = np.arange(len(machines), dtype=np.int32)
    shared = {name: DictionaryColumn([text], rows * 0) for name, text in
              (("cluster", "c"), ("view", ""), ("reader", "nvml"), ("lane", "slow"))}  # fmt: skip
    return {**shared, "machine": DictionaryColumn(machines, rows)}


def batch(machine: str, second: int, values: dict[str, int], reported_at: int) -> AcceptedBatch:
    dims = tuple(DimValue(*split_labelled(name), value) for name, value in values.items())
    sample = Sample(view=None, reader="nvml", lane=Lane.SLOW, measured_at=T0 + second, values={}, dims=dims)
    return accept("c", machine, [sample], reported_at=reported_at)


def write(values: LabelledValues, numbers: SubjectNumbers, *batches: AcceptedBatch) -> None:
    machines = tuple(one.machine_ids[0] for one in batches for block in one.batch.dims for _ in block.machine)
    values.add(batches, numbers.assign(subjects(machines)), numbers)


def found_at(values: LabelledValues, second: int, machines: tuple[str, ...] = MACHINES) -> dict[tuple[str, str], float]:
    """Return (machine, name) to value, of samples measured at this second."""
    times = np.full(len(machines), T0 + second)
    found = values.find([*NAMES, "gpu_power_watts"], subjects(machines), times)
    return {
        (machine, name): cell
        for name, column in found.items()
        for machine, cell in zip(machines, column.tolist(), strict=True)
        if not math.isnan(cell)
    }


@given(reports, st.data())
def test_values_are_the_newest_of_each_name(
    history: list[tuple[str, int, dict[str, int]]], data: st.DataObject
) -> None:
    """Neither the order of arrival nor the sizes of writes matter, also if a sample is reported again after another."""
    expected: dict[tuple[str, str], tuple[int, int]] = {}
    for machine, second, cells in history:
        expected |= {(machine, name): (second, cell) for name, cell in cells.items() if name in NAMES}
    values, numbers = LabelledValues([*NAMES, "gpu_power_watts"]), SubjectNumbers()
    batches = [batch(*report, T0 + number) for number, report in enumerate(history)]
    arrived, start = data.draw(st.permutations(batches)), 0
    while start < len(arrived):
        size = data.draw(st.integers(1, 4))
        write(values, numbers, *arrived[start : start + size])
        start += size
    for second in range(4):
        assert found_at(values, second) == {key: cell for key, (at, cell) in expected.items() if at == second}


def test_unknown_subjects_and_names_have_no_value() -> None:
    values, numbers = LabelledValues(NAMES), SubjectNumbers()
    assert found_at(values, 0) == {}
    write(values, numbers, batch("m-a", 0, {NAMES[0]: 5}, T0))
    assert found_at(values, 0, ("m-a", "new")) == {("m-a", NAMES[0]): 5.0}
    assert values.find([OTHER], subjects(MACHINES), np.full(3, T0)) == {}


def test_too_many_subjects_drop_all_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SUBJECTS", 2)
    values, numbers = LabelledValues(NAMES), SubjectNumbers()
    for machine in MACHINES:
        write(values, numbers, batch(machine, 0, {NAMES[0]: 5}, T0))
    assert found_at(values, 0) == {}
    write(values, numbers, batch("m-a", 0, {NAMES[0]: 6}, T0))
    assert found_at(values, 0) == {("m-a", NAMES[0]): 6.0}
