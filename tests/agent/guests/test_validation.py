"""Validation of guest data: about the guest only, within the catalogue, bounded in size, and encodable."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.agent.guests.validation import MAX_ERRORS, MAX_EVENTS, MAX_TEXT, MAX_VIEWS, validate_round
from gpufleet.codecs.batch import decode, encode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine, MachineKind, PciFunction
from gpufleet.model.reading import DimValue, Provenance, Round, Sample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport

LOOSE = st.one_of(
    st.integers(min_value=-(2**70), max_value=2**70),
    st.just(10**400),
    st.floats(allow_nan=True),
    st.text(max_size=400),
    st.builds(Absent, st.sampled_from(list(Reason)), st.text(max_size=400)),
)
NAMES = st.one_of(st.sampled_from(list(CATALOGUE)), st.text(max_size=20))
IDENTITIES = st.one_of(st.none(), st.text(max_size=120), st.from_regex(r"GPU-[0-9a-f]{8}", fullmatch=True))
VIEWS = st.one_of(
    st.none(),
    st.builds(
        View,
        kind=st.sampled_from(ViewKind),
        side=st.sampled_from(Side),
        uuid=IDENTITIES,
        pci_address=IDENTITIES,
        instance=IDENTITIES,
        parent=IDENTITIES,
        index=st.one_of(st.none(), st.integers(-5, 2**40)),
    ),
)
SAMPLES = st.builds(
    Sample,
    view=VIEWS,
    reader=st.just("nvidia_smi"),
    lane=st.sampled_from([Lane.STATIC, Lane.FAST, Lane.SLOW]),
    measured_at=st.integers(1, 2**60),
    values=st.dictionaries(NAMES, LOOSE, max_size=8),
    dims=st.lists(
        st.builds(DimValue, NAMES, st.lists(st.text(max_size=300), max_size=3).map(tuple), LOOSE), max_size=4
    ).map(tuple),
    provenance=st.sampled_from(Provenance),
)


@given(st.lists(SAMPLES, max_size=6), st.lists(st.text(max_size=600), max_size=9))
def test_admitted_samples_belong_to_the_guest_and_are_encodable(samples: list[Sample], errors: list[str]) -> None:
    admitted = validate_round(Round(samples=tuple(samples), errors=tuple(errors)))
    for sample in admitted.samples:
        assert sample.provenance is Provenance.SLICE_GUEST
        assert sample.view is None or (sample.view.side is Side.GUEST and sample.view.kind is not ViewKind.VGPU)
        for name, value in sample.values.items():
            metric = CATALOGUE[name]
            if isinstance(value, str):
                assert len(value) <= MAX_TEXT
                assert not metric.states or value in metric.states
            elif not isinstance(value, Absent):
                assert metric.low is None or value >= metric.low
                assert metric.high is None or value <= metric.high
    assert len(admitted.errors) <= MAX_ERRORS
    report = MachineReport(machine=Machine(name="vm", kind=MachineKind.GUEST), samples=admitted.samples)
    batch = Batch(cluster="c", sender="s", epoch="0" * 32, seq=1, sent_at=1, reports=(report,))
    assert decode(encode(batch)).cluster == "c"


def test_inventory_and_identity_of_a_guest_are_dropped() -> None:
    bus = (PciFunction(address="0000:01:00.0", vendor=1, device=1, class_code=1),)
    assert validate_round(Round(inventory=bus, machine=Machine(name="another"))) == Round()


def test_only_xids_of_the_guests_own_devices_are_admitted() -> None:
    gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
    good = Event(kind="xid", code=79, at=5, view=gpu, attributes={"sources": "dcgm\x1b[2J" + "x" * 999})
    others = (
        Event(kind="xid", code=79, at=5, view=None),
        Event(kind="xid", code=79, at=-5, view=gpu),
        Event(kind="driver_reloaded", at=5, view=gpu),
        Event(kind="xid", code=1, at=5, view=View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="U")),
        Event(kind="xid", code=1, at=5, view=View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU 1\n")),
    )
    (event,) = validate_round(Round(events=(good, *others))).events
    assert event.view == View(kind=ViewKind.GPU, side=Side.GUEST, uuid="GPU-1")
    assert (event.code, event.at, len(event.attributes["sources"])) == (79, 5, MAX_TEXT)
    assert "\x1b" not in event.attributes["sources"]
    assert len(validate_round(Round(events=(good,) * 1000)).events) == MAX_EVENTS


def test_number_of_guest_devices_is_bounded() -> None:
    samples = tuple(
        Sample(
            view=View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}"),
            reader="nvidia_smi",
            lane=Lane.FAST,
            measured_at=1,
            values={},
        )
        for number in range(MAX_VIEWS + 10)
    )
    admitted = validate_round(Round(samples=samples))
    assert len(admitted.samples) == MAX_VIEWS
    assert "left out" in admitted.errors[0]
