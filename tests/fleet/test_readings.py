"""Merge of readings: conflicts between readers, and agreement of agent, page and hub."""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.agent.collect.assemble import assemble
from gpufleet.delivery.export import AgentStats
from gpufleet.fleet.readings import (
    Freshness,
    SampleReadings,
    devices,
    merge,
    merge_dimensions,
    stored_readings,
)
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.answer import AnswerDevice
from gpufleet.model.catalogue import CATALOGUE, Lane, MetricKind, Subject
from gpufleet.model.reading import DimReading, DimValue, Provenance, Reading, Sample, Value, precedence
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.support.pages import agent_page
from tests.support.passes import World, gpu

AT = 1_767_225_600_000_000_000
STALE = Absent(Reason.STALE, "no answer")
TIMEOUT = Absent(Reason.TIMEOUT)
UNSUPPORTED = Absent(Reason.NOT_SUPPORTED)
LOST = Absent(Reason.GPU_LOST)
FAN, LINK, POWER = "gpu_fan_speed_ratio", "gpu_nvlink_up", "gpu_power_watts"
STATE, SERIAL, XID_LAST = "gpu_state", "gpu_serial", "gpu_last_xid"

Dim = tuple[str, tuple[str, ...], Value | Absent]


class Source(NamedTuple):
    """Sample of a reader in a conflict."""

    reader: str
    values: Mapping[str, Value | Absent] = {}
    dims: Sequence[Dim] = ()
    lane: Lane = Lane.FAST
    stale: Absent | None = None
    provenance: Provenance = Provenance.HOST_LOCAL_PROBE
    age: float = 0.0
    interval: float | None = None


Expected = Mapping[str, tuple[Value | Reason, str]]
"""Metric, with its dimension values after a slash, to the value or reason and the reader that gives it."""

CONFLICTS: dict[str, tuple[Sequence[Source], Expected]] = {
    "fan: timeout from nvml, value from nvidia_smi": (
        [Source("nvml", dims=[(FAN, ("0",), TIMEOUT)]), Source("nvidia_smi", dims=[(FAN, ("0",), 0.5)])],
        {f"{FAN}/0": (0.5, "nvidia_smi")},
    ),
    "fan: both have values, the trusted reader wins whole": (
        [
            Source("nvidia_smi", dims=[(FAN, ("0",), 0.5), (FAN, ("1",), 0.5)]),
            Source("nvml", dims=[(FAN, ("0",), 0.4)]),
        ],
        {f"{FAN}/0": (0.4, "nvml")},
    ),
    "fan: one timed out, the other reader lists only the first": (
        [
            Source("nvml", dims=[(FAN, ("0",), TIMEOUT), (FAN, ("1",), TIMEOUT)]),
            Source("nvidia_smi", dims=[(FAN, ("0",), 0.5)]),
        ],
        {f"{FAN}/0": (0.5, "nvidia_smi"), f"{FAN}/1": (Reason.TIMEOUT, "nvml")},
    ),
    "fan: no reader has a value, the trusted reader's reason stands": (
        [Source("nvidia_smi", dims=[(FAN, ("0",), UNSUPPORTED)]), Source("nvml", dims=[(FAN, ("0",), TIMEOUT)])],
        {f"{FAN}/0": (Reason.TIMEOUT, "nvml")},
    ),
    "fan: the trusted reader is stale, the other is current": (
        [Source("nvml", dims=[(FAN, ("0",), 0.4)], stale=STALE), Source("nvidia_smi", dims=[(FAN, ("0",), 0.5)])],
        {f"{FAN}/0": (0.5, "nvidia_smi")},
    ),
    "link: stale without a second reader is absent and not left out": (
        [Source("nvml", dims=[(LINK, ("0",), 1)], stale=STALE)],
        {f"{LINK}/0": (Reason.STALE, "nvml")},
    ),
    "link: two lanes of one reader are joined": (
        [
            Source("nvml", dims=[(LINK, ("0",), 1)], lane=Lane.SLOW),
            Source("nvml", dims=[(LINK, ("1",), 0)], lane=Lane.FAST),
        ],
        {f"{LINK}/0": (1, "nvml"), f"{LINK}/1": (0, "nvml")},
    ),
    "power: the trusted reader wins": (
        [Source("dcgm", {POWER: 300.0}), Source("nvml", {POWER: 310.0})],
        {POWER: (310.0, "nvml")},
    ),
    "power: an absence yields to a value": (
        [Source("nvml", {POWER: UNSUPPORTED}), Source("dcgm", {POWER: 300.0})],
        {POWER: (300.0, "dcgm")},
    ),
    "power: a measured zero is a value": (
        [Source("nvml", {POWER: 0.0}), Source("dcgm", {POWER: 300.0})],
        {POWER: (0.0, "nvml")},
    ),
    "power: imported values come last whatever their reader": (
        [
            Source("nvml", {POWER: 310.0}, provenance=Provenance.IMPORTED),
            Source("netdata", {POWER: 290.0}, provenance=Provenance.HOST_NETDATA),
        ],
        {POWER: (290.0, "netdata")},
    ),
    "lost GPU: an imported value does not replace the absence": (
        [
            Source("nvml", {STATE: "lost", POWER: LOST}, dims=[(FAN, ("0",), LOST)]),
            Source(
                "exporter/dcgm",
                {POWER: 300.0, "gpu_temperature_celsius": 40.0},
                dims=[(FAN, ("0",), 0.5), (LINK, ("0",), 1)],
                provenance=Provenance.IMPORTED,
            ),
        ],
        {
            STATE: ("lost", "nvml"),
            POWER: (Reason.GPU_LOST, "nvml"),
            "gpu_temperature_celsius": (Reason.GPU_LOST, "exporter/dcgm"),
            f"{FAN}/0": (Reason.GPU_LOST, "nvml"),
            f"{LINK}/0": (Reason.GPU_LOST, "exporter/dcgm"),
        },
    ),
    "lost GPU: Netdata repeats a value": (
        [
            Source("nvml", {STATE: "lost", POWER: LOST}),
            Source("netdata", {POWER: 310.0}, provenance=Provenance.HOST_NETDATA),
            Source("events", {XID_LAST: 79}),
        ],
        {STATE: ("lost", "nvml"), POWER: (Reason.GPU_LOST, "nvml"), XID_LAST: (79, "events")},
    ),
    "lost GPU: an import that reports the loss has no values from before": (
        [
            Source("exporter/gpufleet", {STATE: "lost"}, provenance=Provenance.IMPORTED),
            Source("exporter/gpufleet", {POWER: 310.0}, lane=Lane.SLOW, provenance=Provenance.IMPORTED, age=1),
            Source("exporter/gpufleet", {SERIAL: "1"}, lane=Lane.STATIC, provenance=Provenance.IMPORTED, age=1),
            Source("exporter/dcgm", {"gpu_sm_clock_hertz": 1}, provenance=Provenance.IMPORTED, age=1),
        ],
        {
            STATE: ("lost", "exporter/gpufleet"),
            POWER: (Reason.GPU_LOST, "exporter/gpufleet"),
            SERIAL: ("1", "exporter/gpufleet"),
            "gpu_sm_clock_hertz": (1, "exporter/dcgm"),
        },
    ),
    "lost GPU: an import has values that were measured with the loss": (
        [
            Source("exporter/gpufleet", {STATE: "lost"}, provenance=Provenance.IMPORTED),
            Source("exporter/gpufleet", {POWER: 310.0}, lane=Lane.SLOW, provenance=Provenance.IMPORTED),
        ],
        {STATE: ("lost", "exporter/gpufleet"), POWER: (310.0, "exporter/gpufleet")},
    ),
    "lost GPU: an imported state is no proof for a reader that has values": (
        [
            Source("nvml", {STATE: "ok", POWER: 310.0}),
            Source("exporter/dcgm", {STATE: "lost", "gpu_sm_clock_hertz": 1}, provenance=Provenance.IMPORTED),
        ],
        {STATE: ("ok", "nvml"), POWER: (310.0, "nvml"), "gpu_sm_clock_hertz": (1, "exporter/dcgm")},
    ),
    "lost GPU: the proof is stale, the imported value is current": (
        [
            Source("nvml", {STATE: "lost", POWER: LOST}, stale=STALE),
            Source("exporter/dcgm", {POWER: 300.0}, provenance=Provenance.IMPORTED),
        ],
        {STATE: (Reason.STALE, "nvml"), POWER: (300.0, "exporter/dcgm")},
    ),
    "lost GPU: the text on its board and its newest XID are imported": (
        [
            Source("nvml", {STATE: "lost"}),
            Source("nvml", {SERIAL: LOST}, lane=Lane.STATIC),
            Source("exporter/dcgm", {SERIAL: "1"}, lane=Lane.STATIC, provenance=Provenance.IMPORTED),
            Source("exporter/dcgm", {XID_LAST: 79}, lane=Lane.EVENT, provenance=Provenance.IMPORTED),
        ],
        {STATE: ("lost", "nvml"), SERIAL: ("1", "exporter/dcgm"), XID_LAST: (79, "exporter/dcgm")},
    ),
    "state: a lost GPU is lost, also if the trusted reader has values": (
        [Source("nvml", {STATE: "ok", POWER: 310.0}), Source("dcgm", {STATE: "lost", POWER: LOST})],
        {STATE: ("lost", "dcgm"), POWER: (310.0, "nvml")},
    ),
    "state: the worst of three readers counts": (
        [
            Source("nvml", {STATE: "error"}),
            Source("dcgm", {STATE: "ok"}),
            Source("nvidia_smi", {STATE: "reset_required"}),
        ],
        {STATE: ("reset_required", "nvidia_smi")},
    ),
    "state: the trusted reader is named for equal states": (
        [Source("nvidia_smi", {STATE: "lost"}), Source("nvml", {STATE: "lost"})],
        {STATE: ("lost", "nvml")},
    ),
    "state: a stale loss does not count": (
        [Source("nvml", {STATE: "ok"}), Source("dcgm", {STATE: "lost"}, stale=STALE)],
        {STATE: ("ok", "nvml")},
    ),
    "state: a loss three passes ago counts": (
        [Source("nvml", {STATE: "ok"}), Source("dcgm", {STATE: "lost"}, age=30.0)],
        {STATE: ("lost", "dcgm")},
    ),
    "state: a loss does not count after missed passes of its reader": (
        [Source("nvml", {STATE: "ok"}), Source("dcgm", {STATE: "lost"}, age=30.1)],
        {STATE: ("ok", "nvml")},
    ),
    "state: a slow reader has passes of its own interval": (
        [Source("nvml", {STATE: "ok"}), Source("nvidia_smi", {STATE: "lost"}, age=100.0, interval=60.0)],
        {STATE: ("lost", "nvidia_smi")},
    ),
    "state: imported values are used after the loss has ended": (
        [
            Source("nvml", {STATE: "ok"}),
            Source("dcgm", {STATE: "lost"}, age=60.0),
            Source("exporter/dcgm", {POWER: 300.0}, provenance=Provenance.IMPORTED),
        ],
        {STATE: ("ok", "nvml"), POWER: (300.0, "exporter/dcgm")},
    ),
    "state: the worst of imported states counts": (
        [
            Source("exporter/a", {STATE: "ok"}, provenance=Provenance.IMPORTED),
            Source("exporter/b", {STATE: "lost"}, provenance=Provenance.IMPORTED),
        ],
        {STATE: ("lost", "exporter/b")},
    ),
    "power: every reader stale": (
        [Source("nvml", {POWER: 310.0}, stale=STALE), Source("dcgm", {POWER: 300.0}, stale=STALE)],
        {POWER: (Reason.STALE, "nvml")},
    ),
    "a metric of a newer build is left out": (
        [Source("nvml", {POWER: 310.0, "gpu_of_tomorrow": 1.0}, dims=[("gpu_of_tomorrow_dims", ("a",), 1.0)])],
        {POWER: (310.0, "nvml")},
    ),
}


def sample_of(source: Source) -> Sample:
    dims = tuple(DimValue(metric, labels, value) for metric, labels, value in source.dims)
    return Sample(
        view=gpu(0),
        reader=source.reader,
        lane=source.lane,
        measured_at=AT - int(source.age * NANOS),
        values=dict(source.values),
        dims=dims,
        provenance=source.provenance,
    )


def readings_of(source: Source, before: SampleReadings | None = None) -> SampleReadings:
    return SampleReadings(sample_of(source), source.stale, interval_seconds=source.interval, before=before)


def outcome(readings: Mapping[str, Reading], dimensions: Sequence[DimReading]) -> dict[str, tuple[Value | Reason, str]]:
    found: dict[str, tuple[Value | Reason, str]] = {}
    for name, one in readings.items():
        verdict = one.absent if one.value is None else one.value
        assert verdict is not None
        found[name] = (verdict, one.reader)
    for row in dimensions:
        verdict = row.absent if row.value is None else row.value
        assert verdict is not None
        found["/".join((row.metric, *row.labels.values()))] = (verdict, row.reader)
    return found


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_conflict_between_readers_has_one_answer(conflict: str) -> None:
    sources, expected = CONFLICTS[conflict]
    ordered = sorted(sources, key=lambda source: precedence(sample_of(source)))
    readings = [readings_of(source) for source in ordered]
    assert outcome(merge(readings), merge_dimensions(readings)) == expected


def test_merge_after_a_merge_gives_the_same() -> None:
    for sources, _ in CONFLICTS.values():
        ordered = sorted(sources, key=lambda source: precedence(sample_of(source)))
        readings = [readings_of(source) for source in ordered]
        again = [readings_of(source, before=one) for source, one in zip(ordered, readings, strict=True)]
        assert outcome(merge(again, merge(readings)), merge_dimensions(again)) == outcome(
            merge(readings), merge_dimensions(readings)
        )


NODES = 1000
READERS = ("nvml", "dcgm", "nvidia_smi")
LANES = (Lane.FAST, Lane.SLOW)
STALE_AFTER_SECONDS = 30.0
"""The fast lane's limit on both sides: three of its intervals."""

SCALARS = {
    lane: [
        row.name
        for row in CATALOGUE.values()
        if row.lane is lane and Subject.GPU in row.subjects and row.kind in (MetricKind.GAUGE, MetricKind.COUNTER)
        if not row.dims and row.role is None
    ][:6]
    for lane in LANES
}
DIMENSIONS = {Lane.FAST: FAN, Lane.SLOW: LINK}
HOST_METRICS = {
    lane: [
        row.name
        for row in CATALOGUE.values()
        if row.lane is lane and row.subjects == (Subject.MACHINE,) and row.kind is MetricKind.GAUGE
        if not row.dims and row.role is None
    ][:3]
    for lane in LANES
}
REASONS = (Reason.TIMEOUT, Reason.NOT_SUPPORTED, Reason.NOT_PERMITTED)


def random_value(chance: random.Random) -> Value | Absent:
    return Absent(chance.choice(REASONS)) if chance.random() < 0.3 else float(chance.randrange(100))


def random_views(chance: random.Random, reader: str) -> list[View]:
    """Choose what a reader lists: GPUs by identity, by index only, and MIG devices with and without a UUID."""
    views = [gpu(number) for number in range(chance.randrange(1, 4))]
    if reader == "nvidia_smi" and chance.random() < 0.3:
        views = [
            View(kind=ViewKind.GPU, side=Side.HOST, uuid=None, pci_address=None, instance=str(n)) for n in range(2)
        ]
    elif chance.random() < 0.2:
        views = [msgspec.structs.replace(view, uuid=None) for view in views]  # known by the address only
    if chance.random() < 0.3 and views[0].named:
        uuid = None if reader != "nvml" else "MIG-1"
        views.append(
            View(kind=ViewKind.MIG, side=Side.HOST, uuid=uuid, pci_address=None, instance="1/0", parent=views[0].key)
        )
    return views


def renamed_views(views: list[View]) -> list[View]:
    """Return the views with their first GPU under another key: its UUID became known or unknown to the reader."""
    first = views[0]
    if first.pci_address is None or any(view.kind is ViewKind.MIG for view in views):
        return views
    return [msgspec.structs.replace(first, uuid=None if first.uuid else gpu(0).uuid), *views[1:]]


def random_node(seed: int) -> tuple[World, list[StoredSample]]:
    """Feed one history of passes to an agent's state, and keep the newest samples as a hub would."""
    chance = random.Random(seed)
    world = World({"host": LANES, **dict.fromkeys(READERS, LANES)})
    newest: dict[tuple[str, str, Lane], StoredSample] = {}
    listed = {reader: random_views(chance, reader) for reader in READERS}
    stable = set(READERS)
    for _ in range(chance.randrange(1, 12)):
        reader, lane = chance.choice(("host", *READERS)), chance.choice(LANES)
        if reader in stable and chance.random() < 0.1:
            listed[reader] = renamed_views(listed[reader])
            stable.remove(reader)
        samples = []
        for view in [None] if reader == "host" else listed[reader]:
            metrics = HOST_METRICS[lane] if view is None else SCALARS[lane]
            values = {name: random_value(chance) for name in metrics if chance.random() < 0.8}
            if view is not None and view.kind is ViewKind.GPU and lane is Lane.FAST:
                values[STATE] = chance.choice(("ok", "lost", "error", UNSUPPORTED))
            dims: tuple[DimValue, ...] = ()
            if view is not None and view.kind is ViewKind.GPU and chance.random() < 0.7:
                dims = tuple(
                    DimValue(DIMENSIONS[lane], (str(place),), random_value(chance))
                    for place in range(chance.randrange(1, 4))
                )
            samples.append(world.sample(reader, lane, view, values, dims))
        world.passed(reader, lane, *samples)
        for sample in samples:
            key = sample.view.key if sample.view else ""
            newest[key, reader, lane] = StoredSample(sample=sample, received_at=world.clock.now_ns())
        world.clock.advance(chance.choice((1.0, 10.0, 25.0, 40.0, 100.0)))
    return world, list(newest.values())


Verdict = tuple[Value | None, Reason | None, str, str]


def verdicts(readings: Mapping[str, Reading]) -> dict[str, Verdict]:
    return {name: (one.value, one.absent, one.reader, one.side) for name, one in readings.items()}


def dim_verdicts(rows: Sequence[DimReading]) -> dict[tuple[str, ...], Verdict]:
    return {(row.metric, *row.labels.values()): (row.value, row.absent, row.reader, "") for row in rows}


def page_values(snapshot: Snapshot) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in text_string_to_metric_families(agent_page(snapshot, AgentStats(started_at=0, lanes={})).decode()):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def test_agent_and_hub_agree_on_random_nodes() -> None:
    compared = shared = 0
    for seed in range(NODES):
        world, stored = random_node(seed)
        now = world.clock.now_ns()
        snapshot = assemble(world.state, now=world.clock.monotonic(), now_ns=now, capabilities={})
        freshness = Freshness(now, STALE_AFTER_SECONDS, list(world.state.statuses.values()))
        answered = {device.id.split("/", 2)[2]: device for device in devices("c", "m", stored, freshness)}
        shown = {device.key: device for device in snapshot.devices}
        assert shown.keys() == answered.keys(), seed
        for key, device in shown.items():
            assert verdicts(device.readings) == verdicts(answered[key].readings), (seed, key)
            assert dim_verdicts(device.dimensions) == dim_verdicts(answered[key].dimensions), (seed, key)
            assert device.name == answered[key].name
            compared += len(device.readings) + len(device.dimensions)
            shared += len(device.sources) > 1
        host = stored_readings([one for one in stored if one.sample.view is None], freshness)
        assert verdicts(snapshot.host.readings) == verdicts(merge(host)), seed
        assert dim_verdicts(snapshot.host.dimensions) == dim_verdicts(merge_dimensions(host)), seed
    assert compared > 10 * NODES
    assert shared > NODES / 2  # enough conflicts between sources


def test_page_of_an_agent_equals_its_snapshot() -> None:
    for seed in range(0, NODES, 25):
        world, _ = random_node(seed)
        now = world.clock.now_ns()
        snapshot = assemble(world.state, now=world.clock.monotonic(), now_ns=now, capabilities={})
        page = page_values(snapshot)
        for device in [one for one in snapshot.devices if one.kind is ViewKind.GPU]:
            identity = {("uuid", device.uuid or ""), ("pci_address", device.pci_address or "")}
            for name, one in device.readings.items():
                values = [
                    value
                    for (family, labels), value in page.items()
                    if family == f"gpufleet_{name}" and {pair for pair in identity if pair[1]} <= labels
                    if dict(labels).get("device_instance", "") == (device.instance or "")
                    if dict(labels).get("kind") == device.kind
                    if dict(labels).get("state", one.value) == one.value
                ]
                assert values == ([] if one.value is None else [1 if name == STATE else one.value]), (
                    seed,
                    device.key,
                    name,
                )


UUID_KNOWN = gpu(0)
ADDRESS_ONLY = msgspec.structs.replace(UUID_KNOWN, uuid=None)
OWN, IMPORTED = Provenance.HOST_LOCAL_PROBE, Provenance.IMPORTED


def stored_sample(
    view: View,
    reader: str,
    values: Mapping[str, Value | Absent],
    age: float = 0.0,
    provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
    receipt: float | None = None,
) -> StoredSample:
    """Return a sample; `receipt` is its age by its receipt if that is another one than by its measurement."""
    at = AT - int(age * NANOS)
    sample = Sample(
        view=view, reader=reader, lane=Lane.FAST, measured_at=at, values=dict(values), provenance=provenance
    )
    return StoredSample(sample=sample, received_at=at if receipt is None else AT - int(receipt * NANOS))


def answered(*stored: StoredSample) -> tuple[AnswerDevice, ...]:
    return devices("c", "m", stored, Freshness(AT, 60.0, ()))


@pytest.mark.parametrize("age", [7, 10, 13])
@pytest.mark.parametrize("own", ["nvml", "nvidia_smi"])
@pytest.mark.parametrize(
    ("reader", "provenance", "state", "power"),
    [("exporter/dcgm", IMPORTED, None, None), ("dcgm", OWN, "ok", 300.0)],
)
def test_gpu_lost_under_its_address_is_lost_under_its_uuid(
    age: float, own: str, reader: str, provenance: Provenance, state: str | None, power: float | None
) -> None:
    values: dict[str, Value | Absent] = {POWER: 300.0}
    if state is not None:
        values[STATE] = state
    (device,) = answered(
        stored_sample(ADDRESS_ONLY, own, {STATE: "lost", POWER: LOST}, age=10),
        stored_sample(UUID_KNOWN, reader, values, age, provenance),
    )
    assert (device.uuid, device.pci_address) == (UUID_KNOWN.uuid, UUID_KNOWN.pci_address)
    assert (device.readings[STATE].value, device.readings[POWER].value) == ("lost", power)


def test_gpu_of_a_guest_is_lost_under_its_uuid_too() -> None:
    views = [msgspec.structs.replace(view, side=Side.GUEST) for view in (ADDRESS_ONLY, UUID_KNOWN)]
    found = answered(
        stored_sample(views[0], "nvidia_smi", {STATE: "lost"}), stored_sample(views[1], "dcgm", {STATE: "ok"})
    )
    assert [(one.uuid, one.readings[STATE].value) for one in found] == [(UUID_KNOWN.uuid, "lost")]


def test_uuid_from_the_reader_of_a_loss_ends_it() -> None:
    found = answered(
        stored_sample(ADDRESS_ONLY, "nvml", {STATE: "lost", POWER: LOST}, age=10),
        stored_sample(UUID_KNOWN, "nvml", {STATE: "ok", POWER: 300.0}),
    )
    assert [(one.uuid, one.readings[STATE].value) for one in found] == [(UUID_KNOWN.uuid, "ok")]


@pytest.mark.parametrize(
    ("present", "state", "earlier", "before"),
    [(ADDRESS_ONLY, "lost", UUID_KNOWN, "ok"), (UUID_KNOWN, "ok", ADDRESS_ONLY, "lost")],
)
def test_backlog_does_not_change_the_state_of_a_slot(present: View, state: str, earlier: View, before: str) -> None:
    (device,) = answered(
        stored_sample(present, "nvml", {STATE: state}, age=10),
        stored_sample(earlier, "nvml", {STATE: before}, age=90, receipt=0),
    )
    assert (device.uuid, device.readings[STATE].value) == (present.uuid, state)


def test_uuid_whose_series_end_with_a_loss_under_the_address_is_lost() -> None:
    ended: dict[str, Value | Absent] = {STATE: Absent(Reason.NO_DATA), POWER: Absent(Reason.NO_DATA)}
    (device,) = answered(
        stored_sample(UUID_KNOWN, "remote_write/gpufleet", ended, provenance=IMPORTED),
        stored_sample(ADDRESS_ONLY, "remote_write/gpufleet", {STATE: "lost"}, provenance=IMPORTED),
        stored_sample(UUID_KNOWN, "remote_write/dcgm-exporter", {POWER: 300.0}, provenance=IMPORTED),
    )
    assert (device.uuid, device.readings[STATE].value) == (UUID_KNOWN.uuid, "lost")


def test_mig_device_has_the_present_key_of_its_gpu() -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", instance="1/0", parent=ADDRESS_ONLY.key)
    found = answered(
        stored_sample(ADDRESS_ONLY, "nvidia_smi", {STATE: "ok"}),
        stored_sample(mig, "nvidia_smi", {"gpu_memory_used_bytes": 1}),
        stored_sample(UUID_KNOWN, "dcgm", {STATE: "ok"}),
    )
    assert {one.kind: one.parent for one in found} == {ViewKind.GPU: None, ViewKind.MIG: UUID_KNOWN.key}


@pytest.mark.parametrize("lost_view", [UUID_KNOWN, ADDRESS_ONLY])
def test_imported_values_of_instances_of_a_lost_gpu_are_absent(lost_view: View) -> None:
    used, link = "gpu_memory_used_bytes", DimValue(LINK, ("0",), 1)
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", instance="1/0", parent=UUID_KNOWN.key)
    old = stored_sample(mig, "exporter/dcgm", {used: 4}, provenance=IMPORTED)
    found = answered(
        stored_sample(lost_view, "nvml", {STATE: "lost"}),
        stored_sample(UUID_KNOWN, "exporter/dcgm", {POWER: 300.0}, provenance=IMPORTED),
        stored_sample(mig, "nvml", {used: LOST}),
        msgspec.structs.replace(old, sample=msgspec.structs.replace(old.sample, dims=(link,))),
    )
    (instance,) = (one for one in found if one.kind is ViewKind.MIG)
    assert (instance.readings[used].absent, instance.dimensions[0].absent) == (Reason.GPU_LOST, Reason.GPU_LOST)


def test_imported_values_of_instances_of_a_working_gpu_are_shown() -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", instance="1/0", parent=UUID_KNOWN.key)
    found = answered(
        stored_sample(UUID_KNOWN, "exporter/other", {STATE: "lost"}, provenance=IMPORTED),
        stored_sample(UUID_KNOWN, "nvml", {STATE: "ok"}),
        stored_sample(mig, "exporter/dcgm", {"gpu_memory_used_bytes": 4}, provenance=IMPORTED),
    )
    assert [one.readings["gpu_memory_used_bytes"].value for one in found if one.kind is ViewKind.MIG] == [4]
