"""Invariants of snapshots after any passes: no stale value, no duplicate device, a reason for every absence."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.agent.collect.assemble import assemble
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import to_ns
from tests.support.passes import INTERVALS, World, function, gpu

METRICS = {Lane.FAST: "gpu_power_watts", Lane.SLOW: "gpu_row_remap_pending", Lane.STATIC: "gpu_module_id"}
LANE_OF = {metric: lane for lane, metric in METRICS.items()}
DRIVERS = ("nvidia", "vfio-pci", "nouveau", None)

numbers = st.sets(st.integers(0, 3))
steps = st.one_of(
    st.tuples(st.just("wait"), st.floats(0, 700)),
    st.tuples(st.just("set clock"), st.floats(-1e6, 1e6)),
    st.tuples(
        st.just("pass"), st.sampled_from(["nvml", "dcgm"]), st.sampled_from(list(METRICS)), numbers, st.booleans()
    ),
    st.tuples(st.just("fail"), st.sampled_from(["nvml", "dcgm"]), st.sampled_from(list(METRICS))),
    st.tuples(st.just("inventory"), st.lists(st.sampled_from(DRIVERS), min_size=0, max_size=4)),
)


def apply_step(world: World, step: tuple[object, ...]) -> None:
    match step:
        case ("wait", float(seconds)):
            world.clock.advance(seconds)
        case ("set clock", float(seconds)):
            world.clock.step(seconds)
        case ("pass", str(reader), Lane() as lane, set(members), bool(partial)):
            values = {METRICS[lane]: 1}
            samples = [world.sample(reader, lane, gpu(number), values) for number in members]
            world.passed(reader, lane, *samples, errors=("partly",) if partial else ())
        case ("fail", str(reader), Lane() as lane):
            world.failed(reader, lane, Absent(Reason.DRIVER_ERROR, "detail"))
        case ("inventory", list(drivers)):
            functions = tuple(function(number, driver) for number, driver in enumerate(drivers))
            world.passed("host", Lane.SLOW, inventory=functions)
        case _:
            raise AssertionError(step)


def snap(world: World) -> Snapshot:
    return assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})


@given(st.lists(steps, max_size=30))
def test_snapshot_invariants_hold_after_any_history(history: list[tuple[object, ...]]) -> None:
    lanes = tuple(METRICS)
    world = World({"host": (Lane.SLOW,), "nvml": lanes, "dcgm": lanes})
    measured: dict[int, float] = {}
    for step in history:
        measured[world.clock.now_ns() // 1000] = world.clock.monotonic()
        apply_step(world, step)
    snapshot = snap(world)
    for device in snapshot.devices:
        for metric, reading in device.readings.items():
            assert (reading.value is None) != (reading.absent is None)
            assert reading.measured_at is not None
            if reading.value is not None:
                age = world.clock.monotonic() - measured[to_ns(reading.measured_at) // 1000]
                assert age <= 3 * INTERVALS[LANE_OF[metric]]
            if device.side == "pci_only":
                assert reading.absent is not None
    addresses = [device.pci_address for device in snapshot.devices]
    assert len(addresses) == len(set(addresses))
    assert len({device.key for device in snapshot.devices}) == len(snapshot.devices)
    if snapshot.host.pci is not None:
        assert {listed.address for listed in snapshot.host.pci} <= set(addresses)
    assert snapshot.aggregate.devices == len(snapshot.devices)
