"""Bodies of the load generator: valid batches with the values of their twin."""

import pytest

from gpufleet.codecs.batch import decode, encode_wire
from gpufleet.hub.flush.normalise import normalise
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.load_generator import WHOLE_GPU_ROLES, LoadGenerator
from gpufleet.simulate.fleet.values import gpu_fast

START = 1_795_000_005 * NANOS
FLEET = Fleet(FleetSpec(nodes=40, faults=parse_faults("gpu-hung@+0s/1h:c1/n1/g2", START)))
LOAD_GENERATOR = LoadGenerator(FLEET, cluster="local", prefix="light", started_at=START, period_seconds=15)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("number", [0, 5, 1000])
def test_body_has_the_values_of_its_twin_at_the_period_start(number: int, packed: bool) -> None:
    node, twin = LOAD_GENERATOR.prepare(number), LOAD_GENERATOR.twin(number)
    assert twin.role in WHOLE_GPU_ROLES
    for step in range(3):
        at = START + (15 * step + 11) * NANOS
        begin = at // (15 * NANOS) * (15 * NANOS)
        wire = decode(node.next_body(at, packed=packed))
        assert (wire.cluster, wire.sender, wire.epoch) == (
            "local",
            LOAD_GENERATOR.name(number),
            LOAD_GENERATOR.epoch(number),
        )
        assert (wire.seq, wire.sent_at) == (step + 1, at)
        (block,) = wire.samples
        for row, gpu in enumerate(twin.gpus):
            values = gpu_fast(gpu, begin, FLEET.booted_at(twin, begin), FLEET.activity(twin, gpu, begin))
            sent = dict(zip(block.metrics, (column[row] for column in block.columns), strict=True))
            assert sent == {name: None if isinstance(value, Absent) else value for name, value in values.items()}
            assert block.measured_at[row] == begin
        found = normalise(wire, at)
        assert (found.invalid_values, found.unknown_metrics, found.future_rows) == ({}, {}, 0)
        assert decode(encode_wire(wire)) == wire


def test_every_node_has_its_own_identity() -> None:
    count = sum(node.role in WHOLE_GPU_ROLES for node in FLEET.nodes())
    one, other = (decode(LOAD_GENERATOR.prepare(number).next_body(START)) for number in (3, 3 + count))
    assert one.samples == other.samples
    assert one.machines[0].machine_id != other.machines[0].machine_id
    assert {view.uuid for view in one.views}.isdisjoint(view.uuid for view in other.views)


def test_absent_values_of_the_twin_keep_their_reason() -> None:
    wire = decode(LOAD_GENERATOR.prepare(0).next_body(START + 30 * NANOS))
    (block,) = wire.samples
    assert block.absence == [0, 0, 1, 0, 0, 0, 0, 0]
    assert [one.reason for one in wire.absences[0]] == [Reason.NOT_SUPPORTED]  # no video encoder
    assert {one.reason for one in wire.absences[1]} == {Reason.TIMEOUT}
    assert len(wire.absences[1]) == 39  # all but the state, which is `hung`
