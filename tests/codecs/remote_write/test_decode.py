"""Remote write decoding and encoding, compared with Google's protobuf, and hostile requests."""

import math
import struct
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1, encode_2
from gpufleet.codecs.remote_write.records import WriteLimits, WriteProblem, WriteRequest
from gpufleet.codecs.remote_write.series_cache import RENEWED_AFTER
from gpufleet.model.errors import WireError, WireLimitError
from tests.support.remote_write import pack, parse, request

AT = 1_790_000_000_123


def rows(found: WriteRequest) -> list[tuple[str, dict[str, str], float, int]]:
    return [(s.name, s.labels, v, t) for s, v, t in zip(found.series, found.values, found.times, strict=True)]


def labels(**names: str) -> list[dict[str, str]]:
    return [{"name": "__name__" if name == "name" else name, "value": value} for name, value in names.items()]


def series_1(*samples: tuple[float, int], **names: str) -> dict[str, Any]:
    return {"labels": labels(**names), "samples": [{"value": v, "timestamp": t} for v, t in samples]}


def test_version_1_request_is_decoded() -> None:
    body = request(
        1,
        timeseries=[
            series_1((1.5, AT), (0.0, AT + 1), name="m", gpu="0", empty=""),
            {
                **series_1((-math.inf, AT), name="n"),
                "exemplars": [{"labels": labels(trace="x"), "value": 1.0, "timestamp": AT}],
            },
        ],
        metadata=[{"type": 2, "metric_family_name": "m", "help": "text", "unit": "watts"}],
    )
    decoder = WriteDecoder()
    for _ in range(2):
        found = decoder.decode_1(body)
        assert rows(found) == [
            ("m", {"gpu": "0", "empty": ""}, 1.5, AT * 1_000_000),
            ("m", {"gpu": "0", "empty": ""}, 0.0, (AT + 1) * 1_000_000),
            ("n", {}, -math.inf, AT * 1_000_000),
        ]
        assert found.types == {"m": "gauge"}
        assert not found.problems
        assert not found.stale


def test_version_2_request_is_decoded() -> None:
    symbols = ["", "__name__", "m", "gpu", "0", "help text"]
    body = request(
        2,
        symbols=symbols,
        timeseries=[
            {
                "labels_refs": [1, 2, 3, 4],
                "samples": [{"value": 2.5, "timestamp": AT}],
                "metadata": {"type": 1, "help_ref": 5},
                "created_timestamp": AT - 5,
            }
        ],
    )
    decoder = WriteDecoder()
    for _ in range(2):
        found = decoder.decode_2(body)
        assert rows(found) == [("m", {"gpu": "0"}, 2.5, AT * 1_000_000)]
        assert found.types == {"m": "counter"}


@pytest.mark.parametrize("version", [1, 2])
def test_stale_marker_is_distinguished_from_other_nans(version: int) -> None:
    points = [
        WritePoint({"__name__": "m", "i": "0"}, None, AT * 1_000_000),
        WritePoint({"__name__": "m", "i": "1"}, math.nan, AT * 1_000_000),
    ]
    decoder = WriteDecoder()
    found = decoder.decode_1(encode_1(points)) if version == 1 else decoder.decode_2(encode_2(points))
    assert found.stale == [0]
    assert all(map(math.isnan, found.values))


POINTS = st.lists(
    st.builds(
        WritePoint,
        st.dictionaries(
            st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
            st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), min_size=1, max_size=12),
            max_size=4,
        ).flatmap(lambda d: st.from_regex(r"[a-z_:]{1,8}", fullmatch=True).map(lambda n: {**d, "__name__": n})),
        st.floats(allow_nan=False),
        st.integers(1, 2**62).map(lambda t: t // 1_000_000 * 1_000_000 + 1_000_000),
        st.sampled_from(["", "gauge", "counter"]),
    ),
    max_size=10,
)


@given(POINTS)
def test_both_versions_round_trip_and_agree_with_protobuf(points: list[WritePoint]) -> None:
    expected = [
        (p.labels["__name__"], {k: v for k, v in p.labels.items() if k != "__name__"}, p.value, p.at) for p in points
    ]
    first, second = encode_1(points), encode_2(points)
    for _ in range(2):
        assert rows(WriteDecoder().decode_1(first)) == expected
        assert rows(WriteDecoder().decode_2(second)) == expected
    seen = [
        ({label.name: label.value for label in series.labels}, series.samples[0].value, series.samples[0].timestamp)
        for series in parse(1, first).timeseries
    ]
    assert seen == [(dict(p.labels), p.value, p.at // 1_000_000) for p in points]
    for series in parse(1, first).timeseries:
        names = [label.name for label in series.labels]
        assert names == sorted(names)
    message = parse(2, second)
    assert not points or message.symbols[0] == ""
    for point, series in zip(points, message.timeseries, strict=True):
        texts = [message.symbols[ref] for ref in series.labels_refs]
        assert dict(zip(texts[::2], texts[1::2], strict=True)) == dict(point.labels)
        assert series.metadata.type == {"": 0, "counter": 1, "gauge": 2}[point.type]


def test_series_objects_are_reused_between_requests() -> None:
    decoder = WriteDecoder()
    one = decoder.decode_1(request(1, timeseries=[series_1((1, AT), name="m", a="1", b="2")])).series[0]
    two = decoder.decode_1(request(1, timeseries=[series_1((1, AT), b="2", a="1", name="m")])).series[0]
    three = decoder.decode_2(encode_2([WritePoint({"__name__": "m", "a": "1", "b": "2"}, 1.0, AT * 1_000_000)])).series[
        0
    ]
    assert one is two is three


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"a": "x"}, WriteProblem.NO_NAME),
        ({"name": ""}, WriteProblem.NO_NAME),
        ({"name": "\x00\x1b"}, WriteProblem.NO_NAME),
        ({"name": "m", "a": "x" * 4097}, WriteProblem.LABEL_TOO_LONG),
        ({"name": "m", "a" * 257: "x"}, WriteProblem.LABEL_TOO_LONG),
        ({"name": "m", **{f"l{i}": "x" for i in range(256)}}, WriteProblem.TOO_MANY_LABELS),
    ],
)
def test_invalid_series_drops_only_itself(names: dict[str, str], problem: WriteProblem) -> None:
    good = series_1((7, AT), name="good")
    decoder = WriteDecoder()
    for _ in range(2):
        found = decoder.decode_1(request(1, timeseries=[good, series_1((1, AT), **names), good]))
        assert found.problems == {problem: 1}
        assert found.values == [7, 7]


def test_duplicate_label_drops_its_series() -> None:
    twice = {"labels": [*labels(name="m", a="1"), *labels(a="2")], "samples": [{"value": 1, "timestamp": AT}]}
    assert WriteDecoder().decode_1(request(1, timeseries=[twice])).problems == {WriteProblem.LABEL_TWICE: 1}


def test_control_characters_are_removed() -> None:
    (series,) = WriteDecoder().decode_1(request(1, timeseries=[series_1((1, AT), name="m", a="\x1b[2Jx")])).series
    assert series.labels == {"a": "[2Jx"}


def test_untimed_samples_and_native_histograms_are_counted() -> None:
    odd = {**series_1((1, 0), (2, -5), (3, 2**62), name="m"), "histograms": [{"count": 3, "timestamp": AT}]}
    found = WriteDecoder().decode_1(request(1, timeseries=[odd]))
    assert found.problems == {WriteProblem.TIMESTAMP: 3, WriteProblem.HISTOGRAM: 1}
    assert not found.values


def test_missing_symbols_are_rejected() -> None:
    for refs in ([1, 2, 3], [1, 9], [1, 2, 3, 4, 1]):
        with pytest.raises(WireError) as caught:
            WriteDecoder().decode_2(
                request(2, symbols=["", "__name__", "m"], timeseries=[{"labels_refs": refs, "samples": [{"value": 1}]}])
            )
        assert caught.value.field == "labels_refs"
    with pytest.raises(WireError) as caught:
        WriteDecoder().decode_2(request(2, symbols=["a"]))
    assert caught.value.field == "symbols[0]"


def test_request_of_the_other_version_is_rejected() -> None:
    points = [WritePoint({"__name__": "m"}, 1.0, AT * 1_000_000)]
    with pytest.raises(WireError) as caught:
        WriteDecoder().decode_1(encode_2(points))
    assert caught.value.field == "symbols"
    with pytest.raises(WireError) as caught:
        WriteDecoder().decode_2(encode_1(points))
    assert caught.value.field == "timeseries"


def test_decompression_bomb_is_rejected_before_decompression() -> None:
    body = pack(b"\0" * 10_000_000)
    assert len(body) < 600_000
    with pytest.raises(WireLimitError, match="1000000") as caught:
        WriteDecoder(WriteLimits(message_bytes=1_000_000)).decode_1(body)
    assert caught.value.field == "body"
    lies = b"\x05" + body[4:]  # the header states five bytes
    with pytest.raises(WireError):
        WriteDecoder().decode_1(lies)
    with pytest.raises(WireLimitError, match="1000") as caught:
        WriteDecoder(WriteLimits(body_bytes=1000)).decode_1(b"\0" * 1001)
    assert caught.value.field == "body"


@pytest.mark.parametrize(
    ("limits", "field"),
    [(WriteLimits(samples=3), "samples"), (WriteLimits(series=3), "series"), (WriteLimits(symbols=3), "symbols")],
)
def test_requests_are_bounded(limits: WriteLimits, field: str) -> None:
    points = [WritePoint({"__name__": "m", "i": str(i)}, 1.0, AT * 1_000_000) for i in range(4)]
    with pytest.raises(WireLimitError, match=field):
        WriteDecoder(limits).decode_2(encode_2(points))
    if field != "symbols":
        with pytest.raises(WireLimitError, match=field):
            WriteDecoder(limits).decode_1(encode_1(points))


def test_label_cache_is_bounded() -> None:
    decoder = WriteDecoder(WriteLimits(kept=10))
    for number in range(50):
        points = [WritePoint({"__name__": "m", "i": f"{number}-{i}"}, 1.0, AT * 1_000_000) for i in range(8)]
        decoder.decode_1(encode_1(points))
        decoder.decode_2(encode_2(points))
        assert decoder.known.kept <= 10


@pytest.mark.parametrize("version", [1, 2])
def test_full_label_cache_keeps_its_entries(version: int) -> None:
    decoder = WriteDecoder(WriteLimits(kept=10))
    encode, decode = (encode_1, decoder.decode_1) if version == 1 else (encode_2, decoder.decode_2)
    points = [WritePoint({"__name__": "m", "i": str(i)}, float(i), AT * 1_000_000) for i in range(15)]
    first = decode(encode(points))
    for _ in range(5):
        again = decode(encode(points))
        assert [one.labels["i"] for one in again.series] == [str(i) for i in range(15)]
        assert decoder.known.missed == 5
        same = [one is before for one, before in zip(again.series, first.series, strict=True)]
        assert same == [True] * 10 + [False] * 5
    decoder.known.allow(4)
    decoder.known.trim()
    assert decoder.known.kept == 4
    assert [one is before for one, before in zip(decode(encode(points)).series, first.series, strict=True)][:5] == [
        *[True] * 4,
        False,
    ]


def test_ended_series_are_evicted_eventually() -> None:
    decoder = WriteDecoder(WriteLimits(kept=10))

    def missed(start: int) -> int:
        points = [WritePoint({"__name__": "m", "i": str(start + i)}, 1.0, AT * 1_000_000) for i in range(10)]
        decoder.decode_1(encode_1(points))
        return decoder.known.missed

    assert missed(0) == 0
    assert missed(100) == 10
    rounds = 0
    while missed(100):
        rounds += 1
    assert rounds == RENEWED_AFTER
    assert decoder.known.kept == 10


@pytest.mark.parametrize("second", [False, True])
def test_unwanted_series_are_cached_by_name(second: bool) -> None:
    decoder = WriteDecoder(WriteLimits(others=10), lambda name: name.startswith("DCGM_"))
    for number in range(50):
        points = [
            WritePoint({"__name__": "node_cpu", "i": f"{number}-{i}"}, float(i), AT * 1_000_000) for i in range(8)
        ]
        points += [
            WritePoint({"__name__": f"other_{number}", "Host": "x"}, 1.0, AT * 1_000_000)
        ]  # labels with capitals sort first
        points += [WritePoint({"__name__": f"more_{number}", "host": "x"}, 1.0, AT * 1_000_000)]
        points += [WritePoint({"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "1"}, 50.0, AT * 1_000_000)]
        read = decoder.decode_2(encode_2(points)) if second else decoder.decode_1(encode_1(points))
        decoded = [(one.name, one.labels, value) for one, value in zip(read.series, read.values, strict=True)]
        assert decoded == [
            *(("node_cpu", {}, float(i)) for i in range(8)),
            (f"other_{number}", {}, 1.0),
            (f"more_{number}", {}, 1.0),
            ("DCGM_FI_DEV_GPU_TEMP", {"gpu": "1"}, 50.0),
        ]
        assert decoder.known.kept == 1
        assert len(decoder.known.others) <= 12


@pytest.mark.parametrize("second", [False, True])
def test_unwanted_series_have_no_problems(second: bool) -> None:
    bad = [
        WritePoint({"__name__": "kube_pod_annotations", "annotation": "x" * 5000}, 1.0, AT * 1_000_000),
        WritePoint({"__name__": "kube_pod_labels", **{f"l{i}": "x" for i in range(299)}}, 1.0, AT * 1_000_000),
        WritePoint({"__name__": "x" * 300, "A": "b"}, 1.0, AT * 1_000_000),
        WritePoint({"__name__": "of_no_time"}, 1.0, 0),
    ]
    for is_wanted, problems in ((False, 0), (True, 3)):  # a long name is not a problem
        decoder = WriteDecoder(is_wanted=lambda _, wanted=is_wanted: wanted)  # type: ignore[misc]
        for _ in range(2):  # once decoded, once from the cache
            read = decoder.decode_2(encode_2(bad)) if second else decoder.decode_1(encode_1(bad))
            assert sum(read.problems.values()) == problems
            assert len(read.series) == len(read.values) == len(read.times) == 4 - problems


def test_unwanted_native_histogram_is_no_problem() -> None:
    body = request(
        1, timeseries=[{"labels": labels(name="rpc_seconds"), "histograms": [{"count": 3, "timestamp": AT}]}]
    )
    read = WriteDecoder(is_wanted=lambda _: False).decode_1(body)
    assert ([one.name for one in read.series], read.problems) == (["rpc_seconds"], {})
    assert WriteDecoder().decode_1(body).problems == {WriteProblem.HISTOGRAM: 1}


@given(st.binary(max_size=300), st.booleans())
def test_any_message_raises_at_most_a_wire_error(message: bytes, second: bool) -> None:
    decoder = WriteDecoder()
    try:
        found = decoder.decode_2(pack(message)) if second else decoder.decode_1(pack(message))
    except WireError:
        return
    assert len(found.series) == len(found.values) == len(found.times)


@given(st.data())
def test_damaged_request_raises_at_most_a_wire_error(data: st.DataObject) -> None:
    points = [WritePoint({"__name__": "m", "i": str(i)}, 1.0, AT * 1_000_000, "gauge") for i in range(3)]
    second = data.draw(st.booleans())
    message = bytearray(cramjam.snappy.decompress_raw(encode_2(points) if second else encode_1(points)))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(message)))
    try:
        body = pack(bytes(message[:cut]))
        found = WriteDecoder().decode_2(body) if second else WriteDecoder().decode_1(body)
    except WireError:
        return
    assert len(found.values) <= 3


@given(st.binary(max_size=100))
def test_any_body_raises_at_most_a_wire_error(body: bytes) -> None:
    try:
        found = WriteDecoder().decode_1(body)
    except WireError:
        return
    assert isinstance(found, WriteRequest)


def test_stale_marker_is_the_specified_nan() -> None:
    body = request(1, timeseries=[{"labels": labels(name="m"), "samples": [{"value": 1.0, "timestamp": AT}]}])
    message = bytearray(cramjam.snappy.decompress_raw(body))
    at = bytes(message).index(struct.pack("<d", 1.0))
    message[at : at + 8] = struct.pack("<Q", 0x7FF0000000000002)
    assert WriteDecoder().decode_1(pack(bytes(message))).stale == [0]


@pytest.mark.parametrize("version", [1, 2])
def test_overlong_unknown_names_are_not_cached(version: int) -> None:
    decoder = WriteDecoder(is_wanted=lambda _: False)
    encode, decode = (encode_1, decoder.decode_1) if version == 1 else (encode_2, decoder.decode_2)
    for length, kept in ((100_000, 0), (200, 1)):
        found = decode(encode([WritePoint({"__name__": "x" * length}, 1.0, AT * 1_000_000)]))
        assert [one.name for one in found.series] == ["x" * min(length, 256)]
        assert len(decoder.known.others) == kept


@pytest.mark.parametrize("version", [1, 2])
def test_series_with_long_labels_weigh_more_in_the_cache(version: int) -> None:
    decoder = WriteDecoder()
    encode, decode = (encode_1, decoder.decode_1) if version == 1 else (encode_2, decoder.decode_2)
    decode(encode([WritePoint({"__name__": "m"}, 1.0, AT * 1_000_000)]))
    assert decoder.known.kept == 1
    long = {f"label_{number}": "x" * 1000 for number in range(20)}
    decode(encode([WritePoint({"__name__": "m", **long, "n": str(n)}, 1.0, AT * 1_000_000) for n in range(10)]))
    assert 180 <= decoder.known.kept <= 220
    decoder.known.clear()
    assert decoder.known.kept == 0
