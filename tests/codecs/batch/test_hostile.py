"""Hostile bodies raise only WireError, in bounded time and memory."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.batch import Limits, decode, encode, encode_wire, to_rows, to_wire
from gpufleet.codecs.batch.compression import MAGIC
from gpufleet.model.errors import WireError, WireLimitError, WireVersionError
from gpufleet.model.wire.batch import WIRE_VERSION
from tests.codecs.batch.batches import EXAMPLE, NOW
from tests.codecs.batch.bombs import NAMED_BOMBS
from tests.fakes.batches import make_batch

PLAIN = encode(EXAMPLE, compress=False)
COMPRESSED = encode(EXAMPLE)
NODE = encode(make_batch(1, NOW), compress=False)
ELEMENTS: list[Any] = msgspec.msgpack.decode(PLAIN)


def decode_safely(body: bytes) -> None:
    """Decode a body. An accepted one converts to rows and can be encoded again."""
    try:
        wire = decode(body)
    except WireError as error:
        assert str(error)  # noqa: PT017 - either outcome is valid
        with pytest.raises(WireError, match=re.escape(str(error))):
            decode(body, as_matrix=True)
    else:
        to_rows(wire)
        encode_wire(wire)
        assert repr(to_rows(decode(body, as_matrix=True))) == repr(to_rows(wire))


@given(st.binary(max_size=400))
def test_random_bytes(body: bytes) -> None:
    decode_safely(body)
    decode_safely(MAGIC + body)


@given(st.data(), st.sampled_from([PLAIN, COMPRESSED, NODE]))
def test_flipped_bits(data: st.DataObject, body: bytes) -> None:
    changed = bytearray(body)
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        changed[at] ^= 1 << data.draw(st.integers(0, 7))
    decode_safely(bytes(changed))


@pytest.mark.parametrize("body", [PLAIN, COMPRESSED, NODE], ids=["plain", "zstd", "node"])
def test_every_truncation_is_rejected(body: bytes) -> None:
    for end in range(len(body)):
        with pytest.raises(WireError):
            decode(body[:end])


@pytest.mark.parametrize("body", [PLAIN, COMPRESSED, NODE], ids=["plain", "zstd", "node"])
def test_trailing_bytes_are_rejected(body: bytes) -> None:
    with pytest.raises(WireError):
        decode(body + b"\x00")


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data(), st.sampled_from([PLAIN, NODE]))
def test_any_element_replaced_by_anything(data: st.DataObject, body: bytes) -> None:
    elements = msgspec.msgpack.decode(body)
    place: Any = elements
    while True:
        keys = list(range(len(place)) if isinstance(place, list) else place)
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (list, dict)) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(json_like)
    decode_safely(msgspec.msgpack.encode(elements))


def changed(change: Callable[[list[Any]], None]) -> bytes:
    elements = msgspec.msgpack.decode(PLAIN)
    change(elements)
    return msgspec.msgpack.encode(elements)


def put(value: Any, *path: int | str) -> Callable[[list[Any]], None]:
    def change(elements: Any) -> None:
        for step in path[:-1]:
            elements = elements[step]
        elements[path[-1]] = value

    return change


TOO_MANY = {"resource": "r", "kind": "gpu", "count": 2**63}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (put("", 2), "cluster: expected `str` of length >= 1"),
        (put("x" * 254, 3), "sender: expected `str` of length <= 253"),
        (put("0" * 31, 4), "epoch: expected `str` of length >= 32"),
        (put("A" * 32, 4), "epoch: not 32 hexadecimal digits in lower case"),
        (put("0" * 31 + "\n", 4), "epoch: not 32 hexadecimal digits in lower case"),
        (put(0, 5), "seq: expected `int` >= 1"),
        (put(2**63, 5), "seq: expected `int` <= 9223372036854775807"),
        (put(0, 6), "sent_at: expected `int` >= 1"),
        (put(float("nan"), 7, "interval_seconds"), "heartbeat.interval_seconds: not a number of seconds"),
        (put(-1, 7, "dropped_total"), "heartbeat.dropped_total: -1 is not from 0 to"),
        (put({"name": ""}, 8, 0), "machines[0].name: empty"),
        (put({"name": "a\0b"}, 8, 0), "machines[0].name: a NUL character in a name"),
        (put("a\0b", 3), "sender: a NUL character in a name"),
        (put({"name": "x", "kind": "toaster"}, 8, 0), "machines[0].kind: invalid enum value 'toaster'"),
        (put({"kind": "gpu", "side": "host"}, 9, 0), "views[0]: has neither uuid nor pci_address nor instance"),
        (put(5, 10, 0, 0, 1), "absences[0][0].reason: expected `str`, got `int`"),
        (put("often", 11, 0, 1), "samples[0].lane: not one of event, fast, slow, static"),
        (put("hearsay", 11, 0, 2), "samples[0].provenance: not one of"),
        (put(["a"], 11, 0, 3), "samples[0].codes: 4 codes for 1 metrics"),
        (put(["a", "a", "b", "c"], 11, 0, 3), "samples[0].metrics: a metric is there twice"),
        (put([9], 11, 0, 4), "samples[0].machine[0]: 9 points past the 2 machines"),
        (put([-1], 11, 0, 4), "samples[0].machine[0]: expected `int` >= 0"),
        (put([5], 11, 0, 5), "samples[0].view[0]: 5 points past the 1 views"),
        (put([0, 0], 11, 0, 5), "samples[0].view: 2 entries for 1 rows"),
        (put([0], 11, 0, 6), "samples[0].measured_at[0]: expected `int` >= 1"),
        (put([], 11, 0, 7), "samples[0].driver_session: 0 entries for 1 rows"),
        (put([7], 11, 0, 8), "samples[0].absence[0]: 7 points past the 2 absences"),
        (put([1, 2, 3, 4, 5, 6, 7], 11, 0, 9, 2), "samples[0].columns[2]: 7 cells for 1 rows"),
        (put([True], 11, 0, 9, 0), "samples[0].columns[0][0]: expected `int | float | str | null`, got `bool`"),
        (put(["x" * 1025], 11, 0, 9, 0), "samples[0].columns[0][0]: expected `str` of length <= 1024"),
        (put([1], 12, 0, 9), "dims[0].values: 1 cells for 2 rows"),
        (put([["0"]], 12, 0, 8), "dims[0].labels[0]: 1 cells for 2 rows"),
        (put(5, 13, 0, 0), "parts[0].machine: 5 points past the 2 machines"),
        (put(0, 13, 1, 0), "parts[1].machine: machine 0 has a part already"),
        (put("", 13, 0, 1, 0, "kind"), "parts[0].events[0].kind: empty"),
        (put(0, 13, 0, 1, 0, "at"), "parts[0].events[0].at: 0 is not an instant"),
        (put("x" * 4097, 13, 0, 2, 0, "last_error"), "parts[0].readers[0].last_error: 4097 characters"),
        (put("", 13, 0, 3, 0, "holder", "id"), "parts[0].holdings[0].holder.id: empty"),
        (put("x" * 1025, 13, 0, 3, 0, "holder", "id"), "parts[0].holdings[0].holder.id: 1025 characters"),
        (put("x" * 1025, 13, 0, 3, 0, "holder", "user"), "parts[0].holdings[0].holder.user: 1025 characters"),
        (
            put({"a": "x" * 4097}, 13, 0, 3, 0, "holder", "labels"),
            "parts[0].holdings[0].holder.labels: 4097 characters",
        ),
        (put("x" * 1025, 13, 0, 3, 0, "container"), "parts[0].holdings[0].container: 1025 characters"),
        (put([{"view": "", "state": "free"}], 13, 0, 6), "parts[0].device_holders[0].view: empty"),
        (
            put([{"view": "v", "state": "free", "detail": "x" * 4097}], 13, 0, 6),
            "parts[0].device_holders[0].detail: 4097 characters",
        ),
        (put([{"view": "v", "state": "free"}] * 1025, 13, 0, 6), "parts[0].device_holders: 1025 devices, more than"),
        (put([{"source": "", "names": 1}], 13, 0, 7), "parts[0].unresolved[0].source: empty"),
        (put([{"source": "s", "names": -1}], 13, 0, 7), "parts[0].unresolved[0].names: expected `int` >= 0"),
        (put([{"source": "s"}], 13, 0, 7), "parts[0].unresolved[0]: "),
        (put([{"source": "s", "names": 9, "examples": ["x"] * 9}], 13, 0, 7), "parts[0].unresolved[0].examples: "),
        (put([{"source": "s", "names": 1, "examples": ["x" * 257]}], 13, 0, 7), "parts[0].unresolved[0].examples[0]: "),
        (put([{"source": "s", "names": 1}] * 17, 13, 0, 7), "parts[0].unresolved: 17 sources, more than"),
        (put([NOW, "", "", [], [{"uid": "", "name": "n"}]], 14), "cluster_part.nodes[0].uid: empty"),
        (
            put([NOW, "", "", [], [], [], [], [], [], [["", "u", NOW]]], 14),
            "cluster_part.removed[0].resource: x",
        ),
        (
            put([NOW, "", "", [], [{"uid": "u", "name": "n", "labels": {"a": "x" * 4097}}]], 14),
            "cluster_part.nodes[0].labels[...]: expected `str` of length <= 4096",
        ),
        (
            put([NOW, "", "", [], [{"uid": "u", "name": "n", "labels": {"x" * 321: "a"}}]], 14),
            "cluster_part.nodes[0].labels: expected `str` of length <= 320",
        ),
        (
            put([NOW, "", "", [], [], [{"uid": "u", "namespace": "n", "name": "n", "created": 2**63}]], 14),
            "cluster_part.pods[0].created: expected `int` <= 9223372036854775807",
        ),
        (
            put([NOW, "", "", [], [], [{"uid": "u", "namespace": "n", "name": "n", "requests": [TOO_MANY]}]], 14),
            "cluster_part.pods[0].requests[0].count: expected `int` <= 9223372036854775807",
        ),
        (
            put([NOW, "", "", [], [], [{"uid": "u", "namespace": "n", "name": "n", "owners": [{"kind": 5}]}]], 14),
            "cluster_part.pods[0].owners[0].kind: expected `str`, got `int`",
        ),
        (put(-5, 13, 0, 4, 0, "vendor"), "parts[0].inventory[0].vendor: -5 is not from 0 to"),
    ],
)
def test_structural_error_names_the_field(change: Callable[[list[Any]], None], error: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(changed(change))
    assert str(caught.value).startswith(error.split(":")[0] + ":")
    assert error.startswith(caught.value.field)


@pytest.mark.parametrize("version", [0, WIRE_VERSION + 1, 2**63])
def test_unsupported_version_is_rejected(version: int) -> None:
    body = msgspec.msgpack.encode([version, "an unknown layout"])
    with pytest.raises(WireVersionError, match=rf"version: {version} .* {WIRE_VERSION}$") as caught:
        decode(body)
    assert caught.value.field == "version"


def test_unknown_metrics_are_not_structural() -> None:
    assert decode(changed(put(["not", "in", "any", "catalogue"], 11, 0, 3))).samples[0].metrics[0] == "not"


def test_too_long_body_is_rejected_before_decoding() -> None:
    with pytest.raises(WireLimitError, match="body of 101 bytes, more than 100"):
        decode(bytes(101), limits=Limits(body_bytes=100))


def test_bomb_with_declared_size_is_rejected() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(65 << 20))
    with pytest.raises(WireLimitError, match=r"unpacks to \d+ bytes, more than"):
        decode(bomb)


def test_a_stream_without_declared_size_is_read() -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN)
    assert to_rows(decode(packed)) == EXAMPLE


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(machines=1), "machines"),
        (Limits(views=0), "views"),
        (Limits(absences=1), "absences"),
        (Limits(blocks=1), "samples"),
    ],
)
def test_counts_are_bounded(limits: Limits, field: str) -> None:
    with pytest.raises(WireLimitError) as caught:
        decode(PLAIN, limits=limits)
    assert caught.value.field == field


_IN_A_CHILD = """
import sys
from gpufleet.codecs.batch import decode
from gpufleet.model.errors import WireError
from tests.support.process_memory import memory_kib
body = sys.stdin.buffer.read()
before = memory_kib("VmHWM")
try:
    decode(body)
except WireError as error:
    print((memory_kib("VmHWM") - before) // 1024, error)
"""


@pytest.mark.parametrize("name", NAMED_BOMBS)
def test_memory_of_a_decoded_bomb_is_bounded(name: str) -> None:
    body = NAMED_BOMBS[name]()
    assert len(body) < 8 << 20
    done = subprocess.run([sys.executable, "-c", _IN_A_CHILD], input=body, capture_output=True, check=True, timeout=60)
    grown, _, error = done.stdout.decode().partition(" ")
    assert error, "was accepted"
    assert int(grown) < 400, error


def test_large_cluster_part_counts_as_items() -> None:
    pods = [{"uid": f"{n}", "namespace": "n", "name": "n", "claims": ["é"] * 256} for n in range(2000)]
    body = changed(put([NOW, "", "", [], [], pods], 14))
    assert len(decode(body).cluster_part.pods) == 2000  # type: ignore[union-attr]
    with pytest.raises(WireLimitError) as caught:
        decode(body, limits=Limits(items=300_000))
    assert caught.value.field == "cluster_part"


def test_a_large_batch_within_the_limits_is_read() -> None:
    wire = to_wire(EXAMPLE)
    block = wire.samples[0]
    rows = 100_000
    for field in ("machine", "view", "measured_at", "driver_session", "absence"):
        setattr(block, field, getattr(block, field) * rows)
    block.columns = [column * rows for column in block.columns]
    body = encode_wire(wire)
    assert decode(body) == wire


def test_encoder_rejects_a_lone_surrogate() -> None:
    with pytest.raises(WireError, match="lone surrogate"):
        encode(msgspec.structs.replace(EXAMPLE, sender="node-\ud800"))


def test_number_of_days_is_bounded() -> None:
    (report, *_) = EXAMPLE.reports
    sample = report.samples[0]
    day = 86_400 * 10**9

    def of_days(days: int) -> bytes:
        samples = tuple(msgspec.structs.replace(sample, measured_at=NOW - n * day) for n in range(days))
        return encode(msgspec.structs.replace(EXAMPLE, reports=(msgspec.structs.replace(report, samples=samples),)))

    assert len(decode(of_days(30)).samples[0].machine) == 30
    with pytest.raises(WireLimitError, match="different days"):
        of_days(40)
