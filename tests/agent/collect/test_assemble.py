"""Assembly of a snapshot from state: precedence, staleness, added and removed devices, identity."""

import msgspec
import pytest

from gpufleet.agent.collect.assemble import Assembler, assemble, current_readings
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Provenance, Round, Value
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.time import to_datetime
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.runtime import run_to_end
from tests.support.passes import World, function, gpu

ALL = (Lane.STATIC, Lane.SLOW, Lane.FAST)


@pytest.fixture
def world() -> World:
    return World({"host": ALL, "nvml": ALL, "dcgm": (Lane.FAST,)})


def snap(world: World) -> Snapshot:
    return assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={"push": "x"})


def single_device(snapshot: Snapshot) -> Device:
    (device,) = snapshot.devices
    return device


def fast(world: World, number: int = 0, reader: str = "nvml", **values: float | Absent) -> None:
    world.passed(reader, Lane.FAST, world.sample(reader, Lane.FAST, gpu(number), values))


def test_everything_is_unknown_before_the_first_pass(world: World) -> None:
    snapshot = snap(world)
    assert snapshot.devices == ()
    assert snapshot.host.readings == {}
    assert snapshot.host.pci is None
    assert snapshot.aggregate.coverage == "0 of 0 devices"
    assert snapshot.capabilities["nvml"] == "not_collected: the nvml reader has not completed a pass yet"
    assert world.state.missing()[0] == "host/static"


def test_preferred_reader_wins_and_others_fill_gaps(world: World) -> None:
    world.passed(
        "dcgm",
        Lane.FAST,
        world.sample(
            "dcgm",
            Lane.FAST,
            gpu(0),
            {"gpu_power_watts": 1.0, "gpu_temperature_celsius": 41.0, "gpu_performance_state": Absent(Reason.NO_DATA)},
        ),
    )
    fast(
        world,
        gpu_power_watts=700.0,
        gpu_temperature_celsius=Absent(Reason.NOT_SUPPORTED, "n"),
        gpu_performance_state=Absent(Reason.NOT_SUPPORTED, "n"),
    )
    readings = single_device(snap(world)).readings
    assert (readings["gpu_power_watts"].value, readings["gpu_power_watts"].reader) == (700.0, "nvml")
    assert (readings["gpu_temperature_celsius"].value, readings["gpu_temperature_celsius"].reader) == (41.0, "dcgm")
    state = readings["gpu_performance_state"]
    assert (state.absent, state.reader) == (Reason.NOT_SUPPORTED, "nvml")


def test_stale_value_is_hidden_and_keeps_its_timestamp(world: World) -> None:
    fast(world, gpu_power_watts=700.0)
    measured = to_datetime(world.clock.now_ns())
    world.clock.advance(30.0)
    assert single_device(snap(world)).readings["gpu_power_watts"].value == 700.0
    world.clock.advance(0.1)
    world.failed("nvml", Lane.FAST, Absent(Reason.TIMEOUT, "the fast pass did not end"))
    reading = single_device(snap(world)).readings["gpu_power_watts"]
    assert reading.value is None
    assert (reading.absent, reading.detail) == (Reason.STALE, "the fast pass did not end")
    assert reading.measured_at == measured
    assert snap(world).aggregate.coverage == "0 of 1 devices"


def test_wall_clock_step_makes_no_value_stale(world: World) -> None:
    fast(world, gpu_power_watts=700.0)
    world.clock.step(86_400)
    assert single_device(snap(world)).readings["gpu_power_watts"].value == 700.0


def test_fresh_value_of_a_lesser_reader_replaces_a_stale_one(world: World) -> None:
    fast(world, gpu_power_watts=700.0)
    world.clock.advance(31)
    fast(world, reader="dcgm", gpu_power_watts=690.0)
    reading = single_device(snap(world)).readings["gpu_power_watts"]
    assert (reading.value, reading.reader) == (690.0, "dcgm")


def test_each_lane_becomes_stale_by_its_own_interval(world: World) -> None:
    world.passed("nvml", Lane.SLOW, world.sample("nvml", Lane.SLOW, gpu(0), {"gpu_row_remap_pending": 0}))
    fast(world, gpu_power_watts=700.0)
    world.clock.advance(100)
    readings = single_device(snap(world)).readings
    assert readings["gpu_power_watts"].absent is Reason.STALE
    assert readings["gpu_row_remap_pending"].value == 0


def test_device_missing_from_a_complete_round_is_gone(world: World) -> None:
    for lane, name in ((Lane.STATIC, "gpu_serial"), (Lane.FAST, "gpu_module_id")):
        world.passed("nvml", lane, *[world.sample("nvml", lane, gpu(number), {name: "x"}) for number in (0, 1)])
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(1), {"gpu_module_id": "x"}))
    assert single_device(snap(world)).uuid == gpu(1).uuid


def test_device_missing_from_a_partial_round_becomes_stale(world: World) -> None:
    fast(world, 0, gpu_power_watts=1.0)
    world.passed("nvml", Lane.FAST, errors=("the GPU at index 0 cannot be named",))
    assert single_device(snap(world)).readings["gpu_power_watts"].value == 1.0
    world.clock.advance(31)
    assert single_device(snap(world)).readings["gpu_power_watts"].absent is Reason.STALE


def test_machine_readings_of_a_failing_reader_are_kept(world: World) -> None:
    own = world.sample("nvml", Lane.FAST, None, {"nvidia_driver_state": "no_library"})
    world.failed("nvml", Lane.FAST, Absent(Reason.NO_LIBRARY, "not found"), Round(samples=(own,)))
    snapshot = snap(world)
    assert snapshot.host.readings["nvidia_driver_state"].value == "no_library"
    assert snapshot.capabilities["nvml"] == "no_library: not found"


def test_device_bound_elsewhere_on_the_bus_is_passed_through(world: World) -> None:
    world.passed("nvml", Lane.STATIC, world.sample("nvml", Lane.STATIC, gpu(0), {"gpu_serial": "165"}))
    fast(world, 0, gpu_power_watts=1.0)
    world.clock.advance(31)
    world.failed("nvml", Lane.FAST, Absent(Reason.NO_SUPPORTED_GPU, "none"))
    world.passed("host", Lane.SLOW, inventory=(function(0, "nvidia"),))
    assert single_device(snap(world)).readings["gpu_power_watts"].absent is Reason.STALE
    world.passed("host", Lane.SLOW, inventory=(function(0, "vfio-pci"),))
    device = single_device(snap(world))
    assert (device.side, device.uuid) == ("pci_only", None)
    assert {reading.absent for reading in device.readings.values()} == {Reason.BOUND_TO_VFIO}


def test_device_not_on_the_bus_is_stale_and_kept(world: World) -> None:
    fast(world, 0, gpu_power_watts=1.0)
    world.clock.advance(31)
    world.failed("nvml", Lane.FAST, Absent(Reason.NO_DRIVER, "Driver Not Loaded"))
    world.passed("host", Lane.SLOW, inventory=())
    assert single_device(snap(world)).readings["gpu_power_watts"].absent is Reason.STALE


def test_stale_device_removed_from_the_bus_is_gone(world: World) -> None:
    world.passed("host", Lane.SLOW, inventory=(function(0, "nvidia"), function(1, "nvidia")))
    fast(world, 0, gpu_power_watts=1.0)
    world.clock.advance(31)
    world.failed("nvml", Lane.FAST, Absent(Reason.NO_SUPPORTED_GPU, "No supported GPUs were found"))
    assert [device.uuid for device in snap(world).devices] == [gpu(0).uuid, None]
    world.passed("host", Lane.SLOW, inventory=(function(1, "nvidia"),))
    assert [device.pci_address for device in snap(world).devices] == [function(1, "nvidia").address]


def test_device_with_a_shared_uuid_is_keyed_by_its_address(world: World) -> None:
    fast(world, 0, gpu_power_watts=1.0)
    world.clock.advance(10)
    without_uuid = msgspec.structs.replace(gpu(0), uuid=None)
    unnamed_sample = world.sample("nvml", Lane.FAST, without_uuid, {"gpu_power_watts": 2.0})
    world.passed("nvml", Lane.FAST, unnamed_sample, errors=("several GPUs report GPU-x",))
    device = single_device(snap(world))
    assert (device.key, device.readings["gpu_power_watts"].value) == ("gpu/pci/0000:10:00.0", 2.0)


def test_gpu_lost_under_its_address_is_lost_under_its_uuid(world: World) -> None:
    """Its MIG devices name the same GPU, and the next UUID from the reader of the loss ends it."""
    lost = msgspec.structs.replace(gpu(0), uuid=None)
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", instance="1/0", parent=lost.key)
    values: dict[str, Value | Absent] = {"gpu_state": "lost", "gpu_power_watts": Absent(Reason.GPU_LOST)}
    world.passed(
        "nvml", Lane.FAST, world.sample("nvml", Lane.FAST, lost, values), world.sample("nvml", Lane.FAST, mig, {})
    )
    world.clock.advance(2.0)
    page = world.sample("dcgm", Lane.FAST, gpu(0), {"gpu_power_watts": 300.0})
    world.passed("dcgm", Lane.FAST, msgspec.structs.replace(page, provenance=Provenance.IMPORTED))
    device, instance = snap(world).devices
    assert (device.key, instance.parent) == (gpu(0).key, gpu(0).key)
    assert (device.readings["gpu_state"].value, device.readings["gpu_power_watts"].absent) == ("lost", Reason.GPU_LOST)
    now = world.clock.monotonic()
    for key in (gpu(0).key, lost.key):
        assert current_readings(key, world.state, now) == device.readings
    assert current_readings(gpu(1).key, world.state, now) is None
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {"gpu_state": "ok"}))
    assert single_device(snap(world)).readings["gpu_state"].value == "ok"


def test_slot_has_the_gpu_of_the_last_pass_after_the_clock_was_set_back(world: World) -> None:
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {"gpu_state": "ok"}))
    world.clock.advance(10.0)
    world.clock.step(-3600.0)
    lost = msgspec.structs.replace(gpu(0), uuid=None)
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, lost, {"gpu_state": "lost"}))
    device = single_device(snap(world))
    assert (device.key, device.readings["gpu_state"].value) == (lost.key, "lost")
    assert device.readings["gpu_state"].measured_at == to_datetime(world.clock.now_ns())


def test_address_of_a_device_is_that_of_any_reader(world: World) -> None:
    bare = msgspec.structs.replace(gpu(0), pci_address=None)
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, bare, {"gpu_power_watts": 700.0}))
    fast(world, reader="dcgm", gpu_power_watts=1.0)
    assert single_device(snap(world)).pci_address == gpu(0).pci_address


def test_imported_values_of_mig_devices_follow_the_state_of_their_gpu(world: World) -> None:
    """The document is rebuilt although the samples of the MIG device stay the same."""
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", instance="1/0", parent=gpu(0).key)
    page = world.sample("dcgm", Lane.FAST, mig, {"gpu_memory_used_bytes": 4})
    world.passed("dcgm", Lane.FAST, msgspec.structs.replace(page, provenance=Provenance.IMPORTED))
    assembler, found = Assembler(), []
    for state in ("ok", "lost", "ok"):
        world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {"gpu_state": state}))
        steps = assembler.steps(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})
        _, instance = run_to_end(steps).devices
        found.append(instance.readings["gpu_memory_used_bytes"].value)
    assert found == [4, None, 4]


def test_gpus_with_one_address_are_not_listed_as_bus_only(world: World) -> None:
    unplaced = [msgspec.structs.replace(gpu(number), pci_address=None) for number in (0, 1)]
    samples = [world.sample("nvml", Lane.FAST, view, {"gpu_power_watts": 1.0}) for view in unplaced]
    world.passed("nvml", Lane.FAST, *samples, errors=("several GPUs report 0000:10:00.0",))
    both = (function(0, "nvidia"), function(1, "nvidia"), function(2, "vfio-pci"))
    world.passed("host", Lane.SLOW, inventory=both)
    assert [(device.uuid, device.pci_address) for device in snap(world).devices] == [
        (gpu(0).uuid, None),
        (gpu(1).uuid, None),
        (None, function(2, "vfio-pci").address),
    ]
    world.passed("host", Lane.SLOW, inventory=(*both, function(3, "nvidia")))
    assert len(snap(world).devices) == 6  # one function is a third GPU: which one is unknown, so all are listed


def test_dimensions_are_labelled_and_become_stale(world: World) -> None:
    dims = (
        DimValue("host_network_up", ("eth0", "physical"), 1),
        DimValue("host_network_speed_bytes_per_second", ("eth0", "physical"), Absent(Reason.NO_DATA, "no link")),
    )
    world.passed("host", Lane.FAST, world.sample("host", Lane.FAST, None, {"host_load_1m": 0.5}, dims))
    up, speed = snap(world).host.dimensions
    assert (up.labels, up.value) == ({"interface": "eth0", "class": "physical"}, 1)
    assert (speed.absent, speed.detail) == (Reason.NO_DATA, "no link")
    world.clock.advance(31)
    assert {dim.absent for dim in snap(world).host.dimensions} == {Reason.STALE}


def test_machine_evidence_replaces_all_but_a_configured_name() -> None:
    world = World({"host": ALL}, name="node17")
    world.passed("host", Lane.STATIC, machine=Machine(name="localhost", machine_id="a" * 32))
    assert snap(world).node == Machine(name="node17", machine_id="a" * 32)


def test_devices_are_ordered_by_index_and_bus_address(world: World) -> None:
    samples = [world.sample("nvml", Lane.FAST, gpu(number), {"gpu_power_watts": 1.0}) for number in (2, 0, 1)]
    world.passed("nvml", Lane.FAST, *samples)
    world.passed("host", Lane.SLOW, inventory=tuple(function(number, "nvidia") for number in (9, 0, 8)))
    assert [device.pci_address for device in snap(world).devices] == [
        gpu(number).pci_address for number in (0, 1, 2, 8, 9)
    ]
