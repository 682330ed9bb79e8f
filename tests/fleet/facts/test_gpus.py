"""GPUs of a cluster: keys of one slot, GPUs that are gone, and GPUs that only the PCI bus or an index identifies."""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from gpufleet.fleet.facts.gpus import ClusterGpus, GpuIndex, cluster_gpus
from gpufleet.fleet.facts.metrics import FACT_METRICS
from gpufleet.fleet.facts.newest import current_rows, reason_of
from gpufleet.fleet.readings import Freshness, devices
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.machine import PCI_READER
from gpufleet.model.reading import Provenance, Reading, Sample, Value
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.support.newest import newest_columns
from tests.support.profiles import examples

NOW = 1_800_000_000 * NANOS
FRESHNESS = Freshness(NOW, 120.0, ())
SLOT, OTHER_SLOT = "0000:1b:00.0", "0000:43:00.0"
POWER: Mapping[str, Value | Absent] = {"gpu_power_watts": 100.0}
VFIO = Absent(Reason.BOUND_TO_VFIO)
ENDED: Mapping[str, Value | Absent] = {"gpu_state": Absent(Reason.NO_DATA), "gpu_power_watts": Absent(Reason.NO_DATA)}


class Row(NamedTuple):
    """Newest sample of a GPU; `receipt` is the age by its receipt if that is another one than by its measurement."""

    uuid: str | None = None
    address: str | None = SLOT
    reader: str = "nvml"
    age: float = 5.0
    values: Mapping[str, Value | Absent] = POWER
    instance: str | None = None
    lane: Lane = Lane.FAST
    receipt: float | None = None


BUS = Row(reader=PCI_READER, values={"gpu_state": VFIO}, lane=Lane.SLOW)


def stored(row: Row) -> StoredSample:
    at = NOW - int(row.age * NANOS)
    side = Side.PCI_ONLY if row.reader == PCI_READER else Side.HOST
    view = View(kind=ViewKind.GPU, side=side, uuid=row.uuid, pci_address=row.address, instance=row.instance)
    sample = Sample(
        view=view,
        reader=row.reader,
        lane=row.lane,
        measured_at=at,
        values=dict(row.values),
        provenance=Provenance.IMPORTED if row.reader == "exporter" else Provenance.HOST_LOCAL_PROBE,
    )
    return StoredSample(sample=sample, received_at=at if row.receipt is None else NOW - int(row.receipt * NANOS))


def gpus_of(rows: Sequence[Row]) -> ClusterGpus:
    newest = newest_columns({"m": [stored(row) for row in rows]}, FACT_METRICS)
    return cluster_gpus(newest, current_rows(newest, NOW, 120.0))


def present(rows: Sequence[Row]) -> set[str]:
    gpus = gpus_of(rows)
    return {key for key, is_retired in zip(gpus.keys, gpus.retired.tolist(), strict=True) if not is_retired}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # the driver loaded: the GPU has a UUID now
        ([Row("A"), BUS._replace(age=900)], {"gpu/A"}),
        # the GPU was bound to vfio-pci, and is shown by its address only
        ([Row("A", age=900), BUS], {f"gpu/pci/{SLOT}"}),
        # it is bound, and an exporter repeats values of it
        ([Row("A", reader="exporter", age=30), BUS], {"gpu/A"}),
        # static readings do not show that the driver lists it
        ([Row("A", lane=Lane.STATIC, values={"gpu_name": "H100"}, age=300), BUS], {f"gpu/pci/{SLOT}"}),
        # another GPU is in the slot
        ([Row("A", age=900), Row("B")], {"gpu/B"}),
        ([Row("A"), Row("B", OTHER_SLOT)], {"gpu/A", "gpu/B"}),
        # another GPU is in the slot, and the backlog of the first arrives
        ([Row("A", age=90, receipt=0), Row("B")], {"gpu/B"}),
        # an exporter reports another GPU, and the end of the series of the first
        ([Row("A", reader="exporter"), Row("B", reader="exporter", values=ENDED)], {"gpu/A"}),
        # long after the others: gone
        ([Row("A"), Row("B", OTHER_SLOT, age=1300)], {"gpu/A"}),
        # the machine is lost, its GPUs are not gone
        ([Row("A", age=4000), Row("B", OTHER_SLOT, age=4100)], {"gpu/A", "gpu/B"}),
        # buses are listed less often than values are read
        ([Row("A"), BUS._replace(address=OTHER_SLOT, age=700)], {"gpu/A", f"gpu/pci/{OTHER_SLOT}"}),
        # an index identifies nothing beside named GPUs
        ([Row("A"), Row(address=None, instance="0", reader="exporter")], {"gpu/A"}),
        ([Row(address=None, instance="0", reader="exporter")], {"gpu/instance/0"}),
        # the driver of the named GPU fails; the list with an index has its values
        (
            [
                Row("A", values={"gpu_state": Absent(Reason.DRIVER_ERROR)}),
                Row(address=None, instance="0", reader="exporter"),
            ],
            {"gpu/instance/0"},
        ),
    ],
)
def test_one_key_of_each_present_gpu_counts(rows: Sequence[Row], expected: set[str]) -> None:
    assert present(rows) == expected


LOST: Mapping[str, Value | Absent] = {"gpu_state": "lost", "gpu_power_watts": Absent(Reason.GPU_LOST)}


@pytest.mark.parametrize("reader", ["dcgm", "exporter"])
@pytest.mark.parametrize("age", [3, 5, 8])
def test_gpu_lost_under_its_address_is_lost_under_its_uuid(reader: str, age: float) -> None:
    state: Mapping[str, Value | Absent] = {} if reader == "exporter" else {"gpu_state": "ok"}
    rows = [Row(values=LOST), Row("A", reader=reader, age=age, values={**state, **POWER})]
    gpus = gpus_of([*rows, Row("A", values={"gpu_state": "ok", **POWER}, age=20)])
    place = gpus.keys.index("gpu/A")
    assert [key for key, is_retired in zip(gpus.keys, gpus.retired.tolist(), strict=True) if not is_retired] == [
        "gpu/A"
    ]
    assert gpus.readings.value("gpu_state")[place] == CATALOGUE["gpu_state"].states.index("lost")
    assert gpus.readings.has_value(["gpu_power_watts"])[place] == (reader == "dcgm")


def test_uuid_from_the_reader_of_a_loss_ends_it() -> None:
    gpus = gpus_of([Row(values=LOST, age=10), Row("A", values={"gpu_state": "ok"}), Row("A", reader="exporter")])
    place = gpus.keys.index("gpu/A")
    assert gpus.readings.value("gpu_state")[place] == CATALOGUE["gpu_state"].states.index("ok")
    assert gpus.readings.has_value(["gpu_power_watts"])[place]


def random_slot(chance: random.Random) -> list[Row]:
    """Return newest samples about one slot: by its address, by two UUIDs, and by the PCI bus.

    Some are backlog, and some report only the end of series.
    """
    rows: dict[tuple[str, str | None], Row] = {}
    first = Row(chance.choice((None, "A")), values=chance.choice((LOST, ENDED)), age=chance.choice(AGES))
    rows[first.reader, first.uuid] = first
    for _ in range(chance.randrange(1, 5)):
        reader, uuid = chance.choice(("nvml", "dcgm", "exporter", PCI_READER)), chance.choice((None, "A", "B"))
        state = chance.choice(("ok", "lost", "error", None))
        values = ENDED if state is None else {"gpu_state": state, **POWER}
        row = BUS if reader == PCI_READER else Row(uuid, reader=reader, values=values)
        age = chance.choice(AGES)
        rows[row.reader, row.uuid] = row._replace(age=age, receipt=chance.choice((age, max(1.0, age - 100))))
    return list(rows.values())


AGES = (1.0, 5.0, 20.0, 50.0, 100.0, 130.0, 500.0, 1300.0)


def test_slot_with_several_keys_has_the_same_gpu_in_an_answer() -> None:
    for seed in range(examples(ci=1000, long=10_000)):
        rows = random_slot(random.Random(seed))
        gpus, samples = gpus_of(rows), [stored(row) for row in rows]
        if not any(one.received_at >= NOW - 120 * NANOS for one in samples):
            continue
        if len({row.uuid for row in rows if row.reader != PCI_READER}) == 1:
            continue
        shown = {one.id.removeprefix("c/m/"): one.readings for one in devices("c", "m", samples, FRESHNESS)}
        assert present(rows) == shown.keys(), seed
        for key, readings in shown.items():
            state, place = readings["gpu_state"].value, gpus.keys.index(key)
            number = np.nan if state is None else CATALOGUE["gpu_state"].states.index(str(state))
            assert np.array_equal(gpus.readings.value("gpu_state")[place], number, equal_nan=True), seed
            has_power = readings.get("gpu_power_watts", Reading(absent=Reason.STALE)).value is not None
            assert gpus.readings.has_value(["gpu_power_watts"])[place] == has_power, seed


def test_earlier_gpu_of_a_slot_is_known() -> None:
    gpus = gpus_of([Row("A", age=7200), Row("B"), Row("C", OTHER_SLOT), Row("D", None)])
    found = dict(zip(gpus.keys, gpus.replaced_at.tolist(), strict=True))
    assert found["gpu/B"] == NOW - 7200 * NANOS
    assert (found["gpu/C"], found["gpu/D"]) == (0, -1)


def test_earlier_gpu_of_a_slot_was_there_until_its_last_measurement() -> None:
    """Its last sample came with a backlog, after the samples of the next GPU had been measured."""
    gpus = gpus_of([Row("A", age=7200, receipt=5), Row("B", age=10)])
    assert gpus.others_until[gpus.keys.index("gpu/B")] == NOW - 7200 * NANOS


def test_earlier_gpu_of_a_slot_was_there_at_most_until_its_receipt() -> None:
    """The clock of its machine was half an hour ahead."""
    gpus = gpus_of([Row("A", age=-1200, receipt=600), Row("B", age=10)])
    assert gpus.others_until[gpus.keys.index("gpu/B")] == NOW - 600 * NANOS


def test_earlier_key_of_a_slot_is_replaced() -> None:
    """The coverage of the fleet counts each key that a reader reported."""
    found = gpus_of([Row(age=60), Row("A"), Row("B", OTHER_SLOT), BUS._replace(address=OTHER_SLOT, age=60)])
    assert [key for key, at in zip(found.keys, found.is_replaced.tolist(), strict=True) if at] == [f"gpu/pci/{SLOT}"]


def test_gpu_on_the_bus_has_the_reason() -> None:
    gpus = gpus_of([BUS])
    assert [reason_of(number) for number in gpus.bus_reason.tolist()] == [Reason.BOUND_TO_VFIO]
    assert (gpus.is_current.tolist(), gpus.is_own.tolist()) == ([False], [False])


def test_static_readings_do_not_show_use_or_condition() -> None:
    gpus = gpus_of([Row("A", age=900), Row("A", lane=Lane.STATIC, values={"gpu_name": "H100"}, age=30)])
    assert (gpus.received_at.tolist(), gpus.value_at.tolist()) == ([NOW - 30 * NANOS], [NOW - 900 * NANOS])


def test_imported_gpu_is_not_its_machines_own() -> None:
    gpus = gpus_of([Row("A", reader="exporter")])
    assert (gpus.is_current.tolist(), gpus.is_own.tolist()) == ([True], [False])


def test_gpu_of_netdata_is_not_listed_by_the_driver() -> None:
    gpus = gpus_of([Row("A", reader="netdata"), Row("B", OTHER_SLOT)])
    assert gpus.is_own.tolist() == [True, True]
    assert dict(zip(gpus.keys, gpus.is_listed.tolist(), strict=True)) == {"gpu/A": False, "gpu/B": True}


def test_earlier_key_stands_for_the_gpu_of_its_slot() -> None:
    gpus = gpus_of([Row("A"), BUS._replace(age=900), Row("B", OTHER_SLOT)])
    index = GpuIndex(gpus, ["m"])
    first, second = gpus.keys.index("gpu/A"), gpus.keys.index("gpu/B")
    assert index.find("m", f"gpu/pci/{SLOT}") == first
    assert index.find("m", f"gpu/pci/{OTHER_SLOT}") == second
    assert [index.find("m", "gpu/C"), index.find("n", "gpu/A"), index.find("m", "gpu/pci/x")] == [None, None, None]
    found = index.find_all(["m", "m", "n"], ["gpu/B", f"gpu/pci/{OTHER_SLOT}", "gpu/A"])
    assert np.array_equal(found, [second, second, -1])


def test_uuid_of_an_earlier_gpu_does_not_stand_for_the_next_one() -> None:
    gpus = gpus_of([Row("A", age=900), Row("B"), Row("C", OTHER_SLOT)])
    index = GpuIndex(gpus, ["m"])
    first, second = gpus.keys.index("gpu/A"), gpus.keys.index("gpu/B")
    assert [index.find("m", key) for key in ("gpu/A", "gpu/B", f"gpu/pci/{SLOT}")] == [first, second, second]


def test_last_uuid_stands_for_a_gpu_that_only_its_address_identifies() -> None:
    """The agent was started again while the GPU was lost."""
    lost: Mapping[str, Value | Absent] = {"gpu_state": "lost", "gpu_power_watts": Absent(Reason.GPU_LOST)}
    gpus = gpus_of([Row("A", age=7200), Row("B", age=900), Row(values=lost)])
    index = GpuIndex(gpus, ["m"])
    first, unnamed = gpus.keys.index("gpu/A"), gpus.keys.index(f"gpu/pci/{SLOT}")
    assert [index.find("m", key) for key in ("gpu/A", "gpu/B", f"gpu/pci/{SLOT}")] == [first, unnamed, unnamed]
