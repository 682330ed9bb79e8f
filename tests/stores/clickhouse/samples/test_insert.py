"""A repeated insert is completed by comparing rows with the table, not by its token."""

import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue, Sample
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.accepted import accept
from tests.support.latest import write_newest_rows
from tests.support.subjects import SUBJECTS_OF_CLUSTER

DAY = 86_400 * NANOS
T0 = 1_700_000_000_123_456_789
GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:1b:00.0", index=0)


def numbered_batch(
    cluster: str, number: int, *, at: int | None = None, reported_at: int | None = None
) -> AcceptedBatch:
    at = T0 + number if at is None else at
    values = {"gpu_power_watts": float(number)}
    fan = DimValue("gpu_fan_speed_ratio", ("0",), number / 100)
    sample = Sample(view=GPU, reader="nvml", lane=Lane.FAST, measured_at=at, values=dict(values), dims=(fan,))
    return accept(cluster, "m", [sample], reported_at=T0 + number if reported_at is None else reported_at)


def rows(store: ClickHouseStore, cluster: str) -> dict[str, int]:
    """Return how many rows of the cluster lie in each table, collapsed only in `latest`."""
    write_newest_rows(store)
    handle = store._handles.reader
    return {
        table: handle.query(
            f"SELECT count() FROM {table} WHERE {condition}", parameters={"cluster": cluster}
        ).result_rows[0][0]
        for table, condition in (
            ("samples", SUBJECTS_OF_CLUSTER),
            ("dim_samples", SUBJECTS_OF_CLUSTER),
            ("latest FINAL", "cluster = {cluster:String}"),
            ("views", "cluster = {cluster:String}"),
        )
    }


def watts(store: ClickHouseStore, cluster: str) -> list[float]:
    found = store.series(cluster, "m", ["gpu_power_watts"], T0 - DAY, T0 + DAY, DAY // 1000)
    return [float(value) for points in found.points.values() for _, value in points]


def test_retry_writes_rows_that_the_token_lost(
    store: ClickHouseStore, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    """State after a process was killed between writing the token and writing the part."""
    store.write([numbered_batch(cluster, 1)], f"{cluster}-token")
    before = rows(store, cluster)
    store.write([numbered_batch(cluster, 2)], f"{cluster}-token")
    assert rows(store, cluster) == before  # the token marks a repetition
    store.write([numbered_batch(cluster, 2)], f"{cluster}-token", is_retry=True)
    assert "1 rows of samples" in caplog.text
    caplog.clear()
    store.write([numbered_batch(cluster, 2)], f"{cluster}-token", is_retry=True)
    assert caplog.text == ""
    grown = rows(store, cluster)
    assert (grown["samples"], grown["dim_samples"]) == (before["samples"] + 1, before["dim_samples"] + 1)
    (latest,) = store.latest(cluster, "m")
    assert latest.sample.values["gpu_power_watts"] == 2.0
    assert watts(store, cluster) == [1.5]  # both, in one step


def test_retry_skips_stored_rows_under_any_token(store: ClickHouseStore, cluster: str) -> None:
    both = [
        numbered_batch(cluster, 1, at=T0 - DAY),
        numbered_batch(cluster, 2),
    ]  # two days, so two parts, and only the first exists
    store.write(both[:1], f"{cluster}-first")
    store.write(both, f"{cluster}-another", is_retry=True)
    before = rows(store, cluster)
    assert (before["samples"], before["dim_samples"]) == (3, 3)  # an insert with its own token is not deduplicated
    store.write(both, f"{cluster}-another", is_retry=True)
    assert rows(store, cluster) == before


def test_replaced_reports_of_an_insert_are_not_lost(
    store: ClickHouseStore, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    reports = [numbered_batch(cluster, number) for number in (1, 3, 2)]
    store.write(reports, f"{cluster}-token")
    rows(store, cluster)
    store._handles.writer.command("OPTIMIZE TABLE latest FINAL")  # merges can run at any time
    before = rows(store, cluster)
    assert (before["samples"], before["latest FINAL"]) == (3, 1)
    store.write(reports, f"{cluster}-token", is_retry=True)
    assert rows(store, cluster) == before
    assert caplog.text == ""
    (latest,) = store.latest(cluster, "m")
    assert latest.sample.values["gpu_power_watts"] == 3.0


def test_retry_leaves_no_temporary_table(store: ClickHouseStore, cluster: str) -> None:
    tables = {name for (name,) in store._handles.reader.query("SHOW TABLES").result_rows}
    store.write([numbered_batch(cluster, 1)], f"{cluster}-token", is_retry=True)
    assert {name for (name,) in store._handles.reader.query("SHOW TABLES").result_rows} == tables
    assert watts(store, cluster) == [1.0]
