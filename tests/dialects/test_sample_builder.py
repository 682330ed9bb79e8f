"""State of an imported GPU by the evidence of the page."""

import pytest

from gpufleet.dialects.sample_builder import SampleBuilder
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Value
from gpufleet.model.view import Side, View, ViewKind

GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")


def state(*readings: tuple[str, Value | Absent]) -> object:
    builder = SampleBuilder()
    for name, value in readings:
        builder.add(GPU, name, value, 1)
    found = [sample.values["gpu_state"] for sample in builder.samples("x") if "gpu_state" in sample.values]
    assert len(found) < 2
    return found[0] if found else None


LOST = Absent(Reason.GPU_LOST)


def test_lost_reading_overrules_the_state_of_the_page() -> None:
    assert state(("gpu_state", "ok"), ("gpu_performance_state", 0), ("gpu_power_watts", LOST)) == "lost"
    assert state(("gpu_power_watts", LOST), ("gpu_state", "ok")) == "lost"
    assert state(("gpu_serial", LOST), ("gpu_state", "ok"), ("gpu_power_watts", 1.0)) == "lost"


@pytest.mark.parametrize(("at", "expected"), [(9, "ok"), (10, "lost"), (11, "lost")])
def test_loss_read_before_the_state_of_the_page_is_over(at: int, expected: str) -> None:
    builder = SampleBuilder()
    builder.add(GPU, "gpu_serial", LOST, at)
    builder.add(GPU, "gpu_power_watts", Absent(Reason.DRIVER_ERROR), 8)
    builder.add(GPU, "gpu_state", "ok", 10)
    found = [sample.values["gpu_state"] for sample in builder.samples("x") if "gpu_state" in sample.values]
    assert found == [expected]


@pytest.mark.parametrize(("at", "expected"), [(9, Absent(Reason.STALE)), (10, "lost")])
def test_loss_read_before_an_absent_state_is_no_state(at: int, expected: object) -> None:
    builder = SampleBuilder()
    builder.add(GPU, "gpu_serial", LOST, at)
    builder.add(GPU, "gpu_state", Absent(Reason.STALE), 10)
    found = [sample.values["gpu_state"] for sample in builder.samples("x") if "gpu_state" in sample.values]
    assert found == [expected]


def states_of(*readings: tuple[int, str, Value | Absent]) -> dict[int, object]:
    """Return the states by time."""
    builder = SampleBuilder()
    for at, name, value in readings:
        builder.add(GPU, name, value, at)
    samples = builder.samples("x")
    return {one.measured_at: one.values["gpu_state"] for one in samples if "gpu_state" in one.values}


@pytest.mark.parametrize("order", [1, -1])
def test_evidence_is_about_its_own_scrape(order: int) -> None:
    """A request after an outage has several scrapes."""
    lost = {2, 3, 6}
    scrapes: list[tuple[int, str, Value | Absent]] = [
        (at, name, found)
        for at in range(1, 8)
        for name, found in (("gpu_state", "ok"), ("gpu_serial", LOST if at in lost else "1"))
    ]
    expected = {at: "lost" if at in lost else "ok" for at in range(1, 8)}
    assert states_of(*scrapes[::order]) == expected


def test_evidence_without_a_state_is_about_its_own_scrape() -> None:
    power: list[tuple[int, str, Value | Absent]] = [(at, "gpu_power_watts", 300.0) for at in (1, 2, 5, 6)]
    assert states_of(*power, (3, "gpu_serial", LOST), (4, "gpu_power_watts", LOST)) == {3: "lost", 4: "lost"}
    assert states_of((1, "gpu_state", "reset_required"), *power, (4, "gpu_serial", LOST)) == {
        1: "reset_required",
        4: "lost",
    }


def test_evidence_of_a_source_without_times_is_about_its_own_scrape() -> None:
    """An exporter reports failures only, and a request after an outage has several scrapes."""
    builder = SampleBuilder(has_times=False)
    for at, name, value in ((1, "gpu_serial", LOST), (2, "gpu_serial", LOST), (3, "gpu_state", "reset_required")):
        builder.add(GPU, "gpu_performance_state", 0, at)
        builder.add(GPU, name, value, at)
    builder.add(GPU, "gpu_serial", LOST, 4)  # without a number that dates a row
    states = {one.measured_at: one.values["gpu_state"] for one in builder.samples("x") if "gpu_state" in one.values}
    assert states == {1: "lost", 2: "lost", 3: "reset_required", 4: "lost"}


def test_core_error_of_a_mig_device_is_about_its_own_scrape() -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=GPU.key)
    builder = SampleBuilder()
    for at in (1, 2, 3):
        builder.add(GPU, "gpu_state", "ok", at)
        builder.add(mig, "gpu_bar1_used_bytes", 1, at)
        builder.add(mig, "gpu_memory_used_bytes", Absent(Reason.DRIVER_ERROR) if at == 2 else 1, at)
    states = {one.measured_at: one.values["gpu_state"] for one in builder.samples("x") if "gpu_state" in one.values}
    assert states == {1: "ok", 2: "error", 3: "ok"}


def test_worse_state_of_the_page_is_kept() -> None:
    assert state(("gpu_state", "lost"), ("gpu_power_watts", Absent(Reason.DRIVER_ERROR))) == "lost"


def test_core_error_is_an_error() -> None:
    assert state(("gpu_state", "ok"), ("gpu_power_watts", Absent(Reason.DRIVER_ERROR))) == "error"
    assert state(("gpu_state", "ok"), ("gpu_fan_speed_rpm", Absent(Reason.DRIVER_ERROR))) == "ok"


def test_call_that_timed_out_is_an_error() -> None:
    assert state(("gpu_state", "ok"), ("gpu_power_watts", Absent(Reason.TIMEOUT))) == "error"


def test_worse_of_two_states_counts() -> None:
    assert state(("gpu_state", "ok"), ("gpu_state", "lost")) == "lost"
    assert state(("gpu_state", "lost"), ("gpu_state", "ok")) == "lost"


def test_page_without_a_state_gets_one_only_by_evidence() -> None:
    assert state(("gpu_power_watts", 1.0)) is None
    assert state(("gpu_power_watts", LOST)) == "lost"


def test_state_is_a_fast_reading() -> None:
    builder = SampleBuilder()
    builder.add(GPU, "gpu_serial", LOST, 1)
    assert [sample.lane for sample in builder.samples("x") if "gpu_state" in sample.values] == [Lane.FAST]


def test_lost_reading_of_a_mig_device_overrules_the_state_of_its_gpu() -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=GPU.key)
    for reading, expected in ((LOST, "lost"), (Absent(Reason.DRIVER_ERROR), "ok")):
        builder = SampleBuilder()
        builder.add(GPU, "gpu_state", "ok", 1)
        builder.add(mig, "gpu_memory_used_bytes", reading, 1)
        found = {sample.view: sample.values.get("gpu_state") for sample in builder.samples("x")}
        assert found == {GPU: expected, mig: None}
    alone = SampleBuilder()
    alone.add(mig, "gpu_memory_used_bytes", LOST, 1)
    assert [sample.view for sample in alone.samples("x")] == [mig]


def test_core_error_of_a_mig_device_with_numbers_is_an_error_of_its_gpu() -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=GPU.key)
    bar1 = "gpu_bar1_used_bytes"
    for metric, other, at, expected in (
        (bar1, 1, 2, "error"),
        (bar1, Absent(Reason.DRIVER_ERROR), 2, "ok"),
        (bar1, 1, 1, "ok"),  # an earlier scrape
        ("mig_multiprocessors", 16, 2, "ok"),  # a constant
        ("gpu_compute_processes", 0, 2, "ok"),
    ):
        builder = SampleBuilder()
        builder.add(GPU, "gpu_state", "ok", 2)
        builder.add(mig, "gpu_memory_used_bytes", Absent(Reason.DRIVER_ERROR), 2)
        builder.add(mig, metric, other, at)
        builder.add(mig, "mig_profile", "1g.18gb", 2)
        found = {sample.view: sample.values.get("gpu_state") for sample in builder.samples("x")}
        assert found == {GPU: expected, mig: None}


@pytest.mark.parametrize("reason", [Reason.NO_DRIVER, Reason.NO_LIBRARY, Reason.DRIVER_MISMATCH, Reason.DRIVER_ERROR])
def test_gpu_that_only_the_bus_lists_has_no_state(reason: Reason) -> None:
    view = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:64:00.0")
    builder = SampleBuilder()
    for name in ("gpu_state", "gpu_power_watts", "gpu_temperature_celsius"):
        builder.add(view, name, Absent(reason), 1)
    (sample,) = builder.samples("x")
    assert sample.values["gpu_state"] == Absent(reason)


def test_performance_probe_is_not_imported() -> None:
    """Its texts have no time of their own: they could be shown to the next tenant of the machine."""
    builder = SampleBuilder()
    builder.add(None, "probe_pci_links", "0000:01:00.0 x16 of x16, 32 GT/s", 1)
    builder.add(None, "probe_pci_gpus", 8, 1)
    builder.add(None, "probe_docker_version", Absent(Reason.NOT_ENABLED), 2)
    builder.add_text(None, "probe_kernel_parameters", "iommu=pt", 2)
    builder.add(None, "nvidia_driver_version", "580.1", 3)
    assert [(one.measured_at, one.values) for one in builder.samples("x")] == [(3, {"nvidia_driver_version": "580.1"})]
