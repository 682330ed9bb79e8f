"""Packed blocks: numbers of a block in one binary."""

import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.batch import Limits, decode, encode, encode_wire, to_rows
from gpufleet.codecs.batch.tables import TableCache
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Cell
from gpufleet.model.wire.matrix import Matrix
from tests.codecs.batch.batches import batches
from tests.fakes.batches import body
from tests.hub.flush.test_normalise import NOW, batch_of

BLOCK: dict[str, list[Cell]] = {
    "gpu_power_watts": [1.5, 2],
    "gpu_memory_used_bytes": [3, 2**63 - 1],
    "gpu_energy_joules_total": [None, 1.0],
    "gpu_state": ["ok", "lost"],
    "made_up": [1, 2],
}


def elements() -> list[Any]:
    found: list[Any] = msgspec.msgpack.decode(encode_wire(batch_of(BLOCK), compress=False))
    return found


def test_bytes_are_as_documented() -> None:
    *_, columns, codes, cells = elements()[11][0]
    assert codes == "dq---"
    assert columns == [[None, 1.0], ["ok", "lost"], [1, 2]]
    assert cells == struct.pack("<dqdq", 1.5, 3, 2.0, 2**63 - 1)


def test_numbers_stay_packed_on_request() -> None:
    content = encode_wire(batch_of(BLOCK))
    plain, packed = decode(content), decode(content, as_matrix=True)
    assert isinstance(packed.samples[0].columns, Matrix)
    assert plain == batch_of(BLOCK) == packed
    assert all(type(column) is list for column in plain.samples[0].columns)


@pytest.mark.parametrize(
    "column",
    [[2**63, 1], [math.inf, -0.0], [math.nan], [-(2**63), 0], [2**53 + 1, 0.5], [0.5, 1], [None, 1], ["x"], []],
)
@pytest.mark.parametrize("name", ["gpu_memory_used_bytes", "gpu_power_watts", "gpu_state", "made_up"])
def test_cells_survive_packing(name: str, column: list[Cell]) -> None:
    """Packed or listed, a cell keeps its value; an integer of a float metric may become the equal float."""
    as_floats = [[float(cell) if type(cell) is int else cell for cell in column]]
    found = decode(encode_wire(batch_of({name: column}))).samples[0].columns
    assert repr(found) in (repr([column]), repr(as_floats) if name == "gpu_power_watts" else "")
    assert 2**53 + 1 not in column or found == [column]


@given(batches, st.booleans())
def test_matrix_and_lists_give_equal_rows(batch: Any, compress: bool) -> None:
    content = encode(batch, compress=compress)
    assert to_rows(decode(content)) == to_rows(decode(content, as_matrix=True))


def test_unpacked_columns_are_accepted() -> None:
    """A simple sender may list every column: all codes are `-`, and `cells` is empty."""
    listed = elements()
    listed[11][0][9:] = [list(BLOCK.values()), "-" * len(BLOCK), b""]
    assert decode(msgspec.msgpack.encode(listed)) == batch_of(BLOCK)


def put(value: Any, *path: int | str) -> Callable[[list[Any]], None]:
    def change(elements: Any) -> None:
        for step in path[:-1]:
            elements = elements[step]
        elements[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (put("q" * 5, 11, 0, 10), "samples[0].columns: 3 columns, expected 0 by the codes"),
        (put("dq--", 11, 0, 10), "samples[0].codes: 4 codes for 5 metrics"),
        (put("dqx--", 11, 0, 10), "samples[0].codes: expected `str` matching regex"),
        (put("-" * 1025, 11, 0, 10), "samples[0].codes: expected `str` of length <= 1024"),
        (put(b"", 11, 0, 11), "samples[0].cells: 0 bytes for 2 rows of 2 numbers"),
        (put(bytes(40), 11, 0, 11), "samples[0].cells: 40 bytes for 2 rows of 2 numbers"),
        (put("x" * 32, 11, 0, 11), "samples[0].cells: "),
        (put([[None]] * 3, 11, 0, 9), "samples[0].columns[0]: 1 cells for 2 rows"),
        (put([True, 1], 11, 0, 9, 1), "samples[0].columns[1][0]: expected `int | float | str | null`, got `bool`"),
        (put(["a"] * 5, 11, 0, 3), "samples[0].metrics: a metric is there twice"),
        (put(["", "b", "c", "d", "e"], 11, 0, 3), "samples[0].metrics[0]: expected `str` of length >= 1"),
        (put({"name": "x", "kind": "toaster"}, 8, 0), "machines[0].kind: invalid enum value 'toaster'"),
        (put({"name": ""}, 8, 0), "machines[0].name: empty"),
        (put({"kind": "gpu", "side": "host"}, 9, 1), "views[1]: has neither uuid nor pci_address nor instance"),
        (put({"kind": "gpu", "side": "inside", "uuid": "x"}, 9, 1), "views[1].side: invalid enum value 'inside'"),
        (put([0, 9], 11, 0, 4), "samples[0].machine[1]: 9 points past the 1 machines"),
        (put([0], 11, 0, 5), "samples[0].view: 1 entries for 2 rows"),
    ],
)
def test_structural_error_names_the_field(change: Callable[[list[Any]], None], error: str) -> None:
    changed = elements()
    change(changed)
    for as_matrix in (False, True):
        with pytest.raises(WireError) as caught:
            decode(msgspec.msgpack.encode(changed), as_matrix=as_matrix)
        assert str(caught.value).startswith(error.split(":")[0] + ":")


@pytest.mark.parametrize("names", [["made_up", "gpu_memory_used_bytes"], ["gpu_power_watts", "gpu_state"]])
def test_numbers_of_the_wrong_type_become_lists(names: list[str]) -> None:
    """Unknown metrics and wrong types are checked per value by the hub, not here."""
    changed = elements()
    changed[11][0][3][:2] = names
    del changed[11][0][3][3:], changed[11][0][9][1:]
    changed[11][0][10] = "dq-"
    wire = decode(msgspec.msgpack.encode(changed), as_matrix=True)
    assert wire.samples[0].columns == [[1.5, 2.0], [3, 2**63 - 1], [None, 1.0]]
    assert not isinstance(wire.samples[0].columns, Matrix)


def test_additional_fields_are_ignored() -> None:
    changed = elements()
    changed[11][0].append(["new"])
    changed.append(5)
    changed[9][0]["new"] = 1
    assert decode(msgspec.msgpack.encode(changed)) == batch_of(BLOCK)


def test_numbers_count_as_items() -> None:
    with pytest.raises(WireLimitError) as caught:
        decode(encode_wire(batch_of(BLOCK)), limits=Limits(items=3))
    assert caught.value.field == "samples"


def test_repeated_lists_are_shared_on_request() -> None:
    first, second = (decode(body(seq, NOW), as_matrix=True) for seq in (1, 2))
    assert first.views is second.views
    assert first.machines is second.machines
    plain, again = (decode(body(seq, NOW)) for seq in (1, 2))
    plain.views.clear()
    plain.machines.clear()
    plain.samples[0].metrics.clear()
    assert again == decode(body(2, NOW)) == decode(body(2, NOW), as_matrix=True)


def test_shared_lists_in_use_stay_within_the_bound() -> None:
    made = 0

    def check(views: list[View]) -> None:
        nonlocal made
        made += 1

    tables = TableCache("views", View, check, most_bytes=64 << 10)
    raws = [
        msgspec.Raw(msgspec.msgpack.encode([View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}")]))
        for number in range(1000)
    ]
    for raw in raws:
        assert (tables.of(raw)[0].uuid or "").encode() in bytes(raw)
        tables.of(raws[0])
    assert made == 1000
    for raw in raws[-10:]:
        tables.of(raw)
    assert made == 1000
    tables.of(raws[1])
    assert made == 1001


def test_malformed_table_is_rejected_each_time() -> None:
    changed = elements()
    changed[9][0] = {"kind": "gpu", "side": "host"}
    for _ in range(2):
        with pytest.raises(WireError) as caught:
            decode(msgspec.msgpack.encode(changed))
        assert caught.value.field == "views[0]"
