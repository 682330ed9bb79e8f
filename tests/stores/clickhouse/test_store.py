"""Round trip through the store: values, absences, texts, dimensions, views."""

import threading
from pathlib import Path

import msgspec
import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import StoreError
from gpufleet.model.event import Event
from gpufleet.model.holdings import DeviceState, Holder, HolderKind, HolderState, Holding, HoldingVerdict, Share
from gpufleet.model.machine import PciFunction
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.holdings import HoldingQuery
from gpufleet.model.time import LATEST, NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.connection.embedded import EmbeddedHandle
from tests.support.accepted import accept

T0 = 1_700_000_000_123_456_789
GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:1b:00.0", index=0)
HOSTILE = "x' OR 1=1; DROP TABLE latest; -- \\ \n\t\0 {machine:String} %s $1 \u202e \U0001f4a9"


def fast(at: int = T0, **values: object) -> Sample:
    return Sample(view=GPU, reader="nvml", lane=Lane.FAST, measured_at=at, values=values)  # type: ignore[arg-type]


def test_every_kind_of_value_comes_back_equal(store: ClickHouseStore, cluster: str) -> None:
    sample = Sample(
        view=GPU,
        reader="nvml",
        lane=Lane.FAST,
        measured_at=T0,
        values={
            "gpu_utilization_ratio": 0.0,
            "gpu_memory_used_bytes": 2**53 + 1,
            "gpu_ecc_corrected_errors_total": 2**63 + 5,
            "gpu_energy_joules_total": 1234567.25,
            "gpu_state": "ok",
            "gpu_bar1_used_bytes": 2**64 - 1,
            "gpu_jpeg_utilization_ratio": 0.125,
            "gpu_mig_mode": "enabled",
            "gpu_power_watts": Absent(Reason.TIMEOUT, "nvmlDeviceGetPowerUsage"),
            "gpu_video_clock_hertz": Absent(Reason.NOT_SUPPORTED),
        },
        dims=(
            DimValue("gpu_clock_event_active", ("gpu_idle",), 1),
            DimValue("gpu_clock_event_active", ("hw_thermal",), 0),
            DimValue("gpu_fan_speed_ratio", ("0",), 0.5),
            DimValue("gpu_fan_speed_ratio", ("1",), Absent(Reason.NOT_IN_GUEST, "a vGPU guest")),
        ),
        provenance=Provenance.SLICE_GUEST,
        driver_session=2**63 + 7,
    )
    machine = Sample(
        view=None,
        reader="host",
        lane=Lane.SLOW,
        measured_at=T0 + 1,
        values={},
        dims=(DimValue("host_infiniband_port_state", ("mlx5_0", "1", "InfiniBand", ""), "active"),),
    )
    store.write([accept(cluster, "m", [sample, machine], received_at=T0 + NANOS)], f"{cluster}-t")
    of_machine, of_gpu = store.latest(cluster, "m")
    assert of_gpu.sample == sample
    assert of_gpu.received_at == T0 + NANOS
    assert isinstance(of_gpu.sample.values["gpu_memory_used_bytes"], int)
    assert of_machine.sample == machine
    assert store.latest(cluster, "m", GPU.key) == (of_gpu,)
    assert store.latest(cluster, "m", "gpu/GPU-2") == ()
    assert store.latest(cluster, "other") == ()


@pytest.mark.parametrize("at", [1, 2023 * NANOS, 20_230_101 * NANOS + 5, 10**18, 2**62])
def test_dimension_values_are_found_at_any_instant(store: ClickHouseStore, cluster: str, at: int) -> None:
    dims = (DimValue("gpu_fan_speed_ratio", ("0",), 0.5),)
    sample = Sample(view=GPU, reader="nvml", lane=Lane.FAST, measured_at=at, values={}, dims=dims)
    store.write([accept(cluster, "m", [sample])], f"{cluster}-t")
    (stored,) = store.latest(cluster, "m")
    assert stored.sample == sample


def test_same_token_adds_nothing(store: ClickHouseStore, cluster: str) -> None:
    batch = accept(cluster, "m", [fast(gpu_power_watts=100.0)])
    for token in ("same", "same", "another"):
        store.write([batch], f"{cluster}-{token}")
    assert len(store.latest(cluster, "m")) == 1
    points = store.series(cluster, "m", ["gpu_power_watts"], T0, T0 + NANOS, NANOS)
    assert points.points == {(GPU.key, "gpu_power_watts"): [(T0, 100.0)]}


def test_older_sample_does_not_replace_a_newer_one(store: ClickHouseStore, cluster: str) -> None:
    def write(at: int, reported_at: int, watts: float) -> float | str | Absent:
        batch = accept(cluster, "m", [fast(at, gpu_power_watts=watts)], reported_at=reported_at)
        store.write([batch], f"{cluster}-{watts}")
        (stored,) = store.latest(cluster, "m")
        return stored.sample.values["gpu_power_watts"]

    assert write(T0 + 10, T0 + 10, 2.0) == 2.0
    assert write(T0, T0 + 9, 1.0) == 2.0  # backlog
    assert write(T0 + 11, T0 + 9, 1.5) == 2.0  # backlog from before the sender's clock was set back
    assert write(T0 - 1000, T0 + 11, 3.0) == 3.0  # the first after that
    (stored,) = store.latest(cluster, "m")
    assert stored.sample.measured_at == T0 - 1000


def test_newest_sample_of_a_report_is_the_last_measured(store: ClickHouseStore, cluster: str) -> None:
    for order in ((1, 2), (2, 1)):
        samples = [fast(T0 + at, gpu_power_watts=float(at)) for at in order]
        store.write([accept(cluster, f"m{order}", samples)], f"{cluster}-{order}")
        (stored,) = store.latest(cluster, f"m{order}")
        assert stored.sample.values == {"gpu_power_watts": 2.0}


def test_texts_come_from_the_newest_sample(store: ClickHouseStore, cluster: str) -> None:
    def static(at: int, **values: object) -> Sample:
        return Sample(view=GPU, reader="nvml", lane=Lane.STATIC, measured_at=at, values=values)  # type: ignore[arg-type]

    first = static(T0, gpu_name="NVIDIA H200", gpu_serial="1", gpu_power_default_limit_watts=700.0)
    gone = static(T0 + 1, gpu_name="NVIDIA H200", gpu_serial=Absent(Reason.NOT_PERMITTED))
    again = static(T0 + 2, gpu_name="NVIDIA H200", gpu_serial="1", gpu_power_default_limit_watts=700.0)
    for number, sample in enumerate((first, gone, again)):
        store.write([accept(cluster, "m", [sample], reported_at=T0 + number)], f"{cluster}-t{number}")
        (stored,) = store.latest(cluster, "m")
        assert stored.sample == sample


def test_probe_is_kept_with_its_receipts_and_its_changes(store: ClickHouseStore, cluster: str) -> None:
    def probe(at: int, pages: str) -> Sample:
        values: dict[str, Value | Absent] = {"probe_hugepages": pages, "probe_boot_kernel_seconds": 2.5}
        return Sample(view=None, reader="probe", lane=Lane.STATIC, measured_at=at, values=values)

    first, changed = probe(T0, "2048kB: 0"), probe(T0 + 2, "2048kB: 512")
    for number, sample in enumerate((first, first, changed, changed)):  # an agent repeats the sample of a probe
        received = T0 + 10 * NANOS * number
        store.write(
            [accept(cluster, "m", [sample], reported_at=T0 + number, received_at=received)], f"{cluster}-p{number}"
        )
        (stored,) = store.latest(cluster, "m")
        assert (stored.sample, stored.received_at) == (sample, received)
    texts = store.select(f"SELECT text FROM fleet_text_history WHERE cluster = '{cluster}' ORDER BY since").rows
    assert texts == [("2048kB: 0",), ("2048kB: 512",)]


def test_view_is_that_of_the_newest_report(store: ClickHouseStore, cluster: str) -> None:
    for number, index in enumerate((0, 3)):
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", index=index)
        sample = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=T0 + number, values={})
        store.write([accept(cluster, "m", [sample], sent_at=T0 + number)], f"{cluster}-t{number}")
    old = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", index=7)
    late = Sample(view=old, reader="nvml", lane=Lane.FAST, measured_at=T0 - 5, values={})
    store.write([accept(cluster, "m", [late], sent_at=T0 - 5)], f"{cluster}-late")
    (stored,) = store.latest(cluster, "m")
    assert stored.sample.view is not None
    assert stored.sample.view.index == 3


def test_answers_follow_each_write_about_a_machine(store: ClickHouseStore, cluster: str) -> None:
    idle = DimValue("gpu_clock_event_active", ("gpu_idle",), 1)
    reports: list[tuple[int, tuple[DimValue, ...]]] = [(0, ()), (3, ()), (3, (idle,)), (3, ()), (0, (idle,))]
    for number, (index, dims) in enumerate(reports):
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", index=index)
        sample = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=T0 + number, values={}, dims=dims)
        store.write([accept(cluster, "m", [sample], reported_at=T0 + number)], f"{cluster}-t{number}")
        for _ in range(2):
            (stored,) = store.latest(cluster, "m")
            assert stored.sample == sample
            assert store.latest(cluster, "m", view.key) == (stored,)
    another = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=view.key)
    sample = Sample(view=another, reader="nvml", lane=Lane.FAST, measured_at=T0, values={})
    store.write([accept(cluster, "m", [sample], reported_at=T0 + 9)], f"{cluster}-another")
    assert {stored.sample.view for stored in store.latest(cluster, "m")} == {view, another}


def test_reader_status_is_the_newest_reported(store: ClickHouseStore, cluster: str) -> None:
    ok = ReaderStatus(reader="nvml", lane=Lane.FAST, state=ReaderState.OK, interval_seconds=10, last_attempt=T0)
    failed = ReaderStatus(
        reader="nvml",
        lane=Lane.FAST,
        state=ReaderState.FAILED,
        interval_seconds=10,
        last_attempt=T0 + NANOS,
        last_success=T0,
        duration_seconds=0.25,
        failures=3,
        error_class="timeout",
        last_error="Driver/library version mismatch",
    )
    store.write([accept(cluster, "m", part=MachinePart(machine=0, readers=[failed]), sent_at=T0 + 2)], f"{cluster}-a")
    store.write([accept(cluster, "m", part=MachinePart(machine=0, readers=[ok]), sent_at=T0 + 1)], f"{cluster}-b")
    assert store.readers(cluster, "m") == (failed,)
    assert store.readers(cluster, "other") == ()


def test_status_keeps_an_unknown_duration_and_interval(store: ClickHouseStore, cluster: str) -> None:
    one = ReaderStatus(reader="events", lane=Lane.EVENT, state=ReaderState.OK, last_attempt=T0, last_success=T0)
    measured = msgspec.structs.replace(one, reader="nvml", lane=Lane.FAST, interval_seconds=10, duration_seconds=0)
    store.write([accept(cluster, "m", part=MachinePart(machine=0, readers=[one, measured]))], cluster)
    assert set(store.readers(cluster, "m")) == {one, measured}
    columns = "interval_seconds, duration_seconds"
    found = store.select(f"SELECT {columns} FROM fleet_readers WHERE cluster = '{cluster}' ORDER BY reader")
    assert list(map(tuple, found.rows)) == [(None, None), (10, 0)]


def test_events_holdings_and_inventory_are_kept(store: ClickHouseStore, cluster: str) -> None:
    part = MachinePart(
        machine=0,
        events=[
            Event(view=GPU, kind="xid", code=79, at=T0, attributes={"pid": "1"}),
            Event(view=None, kind="bound", at=T0),
        ],
        holdings=[
            Holding(
                view=GPU.key,
                holder=Holder(kind=HolderKind.POD, id="uid", name="p", namespace="ns"),
                since=T0,
                methods=("kubelet",),
                verdict=HoldingVerdict.AGREED,
            )
        ],
        inventory=[
            PciFunction(address="0000:1b:00.0", vendor=0x10DE, device=0x2335, class_code=0x030200, numa_node=1),
            PciFunction(address="0000:1c:00.0", vendor=0x15B3, device=1, class_code=0x020000),
        ],
    )
    for token in ("a", "b"):
        store.write([accept(cluster, "m", part=part)], f"{cluster}-{token}")
    assert store.pci_gpu_counts(cluster, ["m"]) == {"m": 1}
    assert store.numa_nodes(cluster, ["m", "n"]) == {"m": {"0000:1b:00.0": 1}}
    later = accept(cluster, "m", part=MachinePart(machine=0, inventory=[]), sent_at=T0 + NANOS)
    store.write([later], f"{cluster}-c")
    assert store.pci_gpu_counts(cluster, ["m"]) == {"m": 0}
    assert store.numa_nodes(cluster, ["m"]) == {"m": {}}
    found = store.holdings(HoldingQuery(cluster=cluster, machines=("m",), start=T0, end=LATEST))
    assert [one.holding for one in found] == part.holdings
    query = f"SELECT kind FROM fleet_events WHERE cluster = '{cluster}' ORDER BY kind"
    assert store.select(query).rows == [("bound",), ("xid",)]


def test_holding_is_its_last_report_and_open_until_it_ends(store: ClickHouseStore, cluster: str) -> None:
    vm = Holder(kind=HolderKind.VM, id="vm-1", name="guest")
    first = Holding(
        view=GPU.key,
        holder=Holder(kind=HolderKind.POD, id="ns/p", name="p", namespace="ns"),
        parent=vm,
        since=T0 + 1,
        methods=("exporter_labels",),
        verdict=HoldingVerdict.OBSERVED_ONLY,
    )
    second = Holding(view=GPU.key, holder=vm, since=T0 + 2, methods=("declared",), verdict=HoldingVerdict.DECLARED_ONLY)
    shared = msgspec.structs.replace(first, share=Share.TIMESLICE)
    ended = msgspec.structs.replace(shared, until=T0 + 3)
    for seq, (reported, kept) in enumerate(
        (((first,), (first,)), ((shared, second), (shared, second)), ((ended,), (second,))), 1
    ):
        part = MachinePart(machine=0, holdings=list(reported))
        store.write([accept(cluster, "m", part=part, seq=seq, reported_at=T0 + seq)], f"{cluster}-{seq}")
        found = store.holdings(HoldingQuery(cluster=cluster, machines=("m", "other"), start=T0 + 3, end=LATEST))
        assert tuple(one.holding for one in found) == kept
    query = f"SELECT id, share, toUnixTimestamp64Nano(until) FROM fleet_holders WHERE cluster = '{cluster}' ORDER BY id"
    assert store.select(query).rows == [("ns/p", "timeslice", T0 + 3), ("vm-1", "exclusive", T0 + 2)]  # long ago


def test_hostile_names_are_stored_unchanged(store: ClickHouseStore, cluster: str) -> None:
    sample = Sample(
        view=View(kind=ViewKind.GPU, side=Side.HOST, uuid=HOSTILE),
        reader="nvml",
        lane=Lane.FAST,
        measured_at=T0,
        values={"gpu_power_watts": Absent(Reason.DRIVER_ERROR, HOSTILE), "gpu_name": HOSTILE},
        dims=(DimValue("gpu_fan_speed_ratio", (HOSTILE,), 1.0),),
    )
    named = cluster + HOSTILE
    store.write([accept(named, HOSTILE, [sample])], HOSTILE)
    assert sample.view is not None
    (stored,) = store.latest(named, HOSTILE, sample.view.key)
    assert stored.sample == sample
    assert store.latest(HOSTILE, cluster) == ()
    assert store.readers(named, HOSTILE) == ()
    assert store.series(HOSTILE, HOSTILE, ["gpu_power_watts"], 0, 1, 1).points == {}


def test_threads_read_while_one_writes(store: ClickHouseStore, cluster: str) -> None:
    rounds = 20
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        newest = 0
        try:
            while not done.is_set():
                for stored in store.latest(cluster, "m"):
                    assert stored.sample.measured_at >= newest
                    newest = stored.sample.measured_at
                    assert stored.sample.values == {"gpu_power_watts": float(newest - T0)}
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(rounds):
        batch = accept(cluster, "m", [fast(T0 + number, gpu_power_watts=float(number))], reported_at=T0 + number)
        store.write([batch], f"{cluster}-t{number}")
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    (stored,) = store.latest(cluster, "m")
    assert stored.sample.measured_at == T0 + rounds - 1


def test_finished_write_is_visible_to_concurrent_readers(store: ClickHouseStore, cluster: str) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                for stored in store.latest(cluster, "m"):
                    number = stored.sample.measured_at - T0
                    assert len(stored.sample.dims) == number % 2
                    assert stored.sample.view is not None
                    assert stored.sample.view.index in (number, number + 1)  # views are written before samples
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(10):
        dims = (DimValue("gpu_clock_event_active", ("gpu_idle",), 1),) * (number % 2)
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", index=number)
        sample = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=T0 + number, values={}, dims=dims)
        store.write([accept(cluster, "m", [sample], reported_at=T0 + number)], f"{cluster}-t{number}")
        (stored,) = store.latest(cluster, "m")
        assert stored.sample == sample
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_requested_machines_are_answered_from_memory(
    embedded: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = [PciFunction(address="0000:1b:00.0", vendor=0x10DE, device=1, class_code=0x030200, numa_node=1)]
    status = ReaderStatus(reader="nvml", lane=Lane.FAST, state=ReaderState.OK, interval_seconds=10, failures=0)
    holder = Holder(kind=HolderKind.POD, id="uid")
    held = Holding(view=GPU.key, holder=holder, since=T0, methods=("kubelet",), verdict=HoldingVerdict.AGREED)
    declared = DimValue("kubernetes_capacity_devices", ("nvidia_com_gpu",), 1)

    def write(second: int) -> None:
        at = T0 + second * NANOS
        resource = Sample(view=None, reader="kubernetes", lane=Lane.SLOW, measured_at=at, values={}, dims=(declared,))
        part = MachinePart(
            machine=0, readers=[status], inventory=functions, holdings=[held],
            device_holders=[DeviceState(view=GPU.key, state=HolderState.HELD)],
        )  # fmt: skip
        accepted = accept(cluster, "m", [fast(at, gpu_state="ok")], part=part, received_at=at, reported_at=at)
        declaration = accept(cluster, "n", [resource], received_at=at)  # values with dimensions are in the store only
        embedded.write([accepted, declaration], f"{cluster}-{second}")

    def answers() -> list[object]:
        query = HoldingQuery(cluster=cluster, machines=("m",), start=T0 + NANOS, end=LATEST)
        return [
            embedded.latest(cluster, "m")[0].sample.measured_at,
            embedded.sample_summaries(cluster, ["m"])["m"][0].stored.sample.measured_at,
            embedded.readers(cluster, "m"),
            embedded.pci_gpu_counts(cluster, ["m"]),
            embedded.numa_nodes(cluster, ["m"]),
            embedded.declared_resources(cluster, ["n"], 0)["n"][0].received_at,
            embedded.declared_gpus(0)[cluster][0].received_at,
            embedded.holder_states(cluster, ["m"], 0)["m"][0].reported_at,
            embedded.holdings(query)[0].reported_at,
            embedded.known_gpus()[cluster],
        ]

    embedded.load()
    write(0)
    before = answers()
    write(1)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a query of the engine")

    monkeypatch.setattr(EmbeddedHandle, "query", refuse)
    monkeypatch.setattr(EmbeddedHandle, "query_arrow", refuse)
    after = answers()
    monkeypatch.undo()
    embedded._drop_memory()
    assert before != after == answers()


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ({"gpu_memory_used_bytes": -1}, "gpu_memory_used_bytes"),
        ({"gpu_state": "odd"}, "gpu_state"),
        ({"gpu_power_watts": "many"}, "gpu_power_watts"),
    ],
)
def test_unstorable_value_is_refused_without_blocking_writes(
    store: ClickHouseStore, cluster: str, values: dict[str, object], column: str
) -> None:
    with pytest.raises(StoreError, match=column):
        store.write([accept(cluster, "m", [fast(T0, **values)])], f"{cluster}-bad")
    store.write([accept(cluster, "m", [fast(gpu_power_watts=1)])], f"{cluster}-good")
    (stored,) = store.latest(cluster, "m")
    assert stored.sample.values == {"gpu_power_watts": 1.0}


def test_second_folder_in_one_process_is_refused(embedded: ClickHouseStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="chdb"):
        ClickHouseStore.open(f"chdb://{tmp_path / 'other'}")


def test_opening_a_folder_twice_is_refused(embedded: ClickHouseStore, folder: Path) -> None:
    with pytest.raises(StoreError, match="open"):
        ClickHouseStore.open(f"chdb://{folder}")


def test_sample_after_a_fast_clock_replaces_the_latest(store: ClickHouseStore, cluster: str) -> None:
    def write(at: int, received_at: int, watts: float, error: str) -> None:
        status = ReaderStatus(
            reader="nvml", lane=Lane.FAST, state=ReaderState.OK, interval_seconds=10.0, last_error=error
        )
        part = MachinePart(0, readers=[status])
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address=f"0000:{int(watts)}:00.0")
        sample = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values={"gpu_power_watts": watts})
        batch = accept(cluster, "m", [sample], part=part, sent_at=at, received_at=received_at, reported_at=received_at)
        store.write([batch], f"{cluster}-{received_at}")

    write(T0 + 300 * NANOS, T0, 10.0, "ahead")
    write(T0 + 10 * NANOS, T0 + 10 * NANOS, 20.0, "right")
    (stored,) = store.latest(cluster, "m")
    assert stored.sample.values == {"gpu_power_watts": 20.0}
    assert stored.sample.view is not None
    assert stored.sample.view.pci_address == "0000:20:00.0"
    assert [one.last_error for one in store.readers(cluster, "m")] == ["right"]
