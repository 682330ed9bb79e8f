"""Removal of deep values from JSON."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.holders.kubernetes.parse.nesting import decode_json, without_deep_values

DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\[]{}é\n', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='b"\\[}', max_size=3), inner),
    max_leaves=20,
)


class Named(msgspec.Struct):
    name: str
    other: msgspec.Raw = msgspec.Raw()


NAMED = msgspec.json.Decoder(Named)


def cut(document: Any, levels: int) -> Any:
    """Return a document as `without_deep_values` does, on values."""
    if not isinstance(document, list | dict):
        return document
    if levels == 0:
        return None
    if isinstance(document, list):
        return [cut(one, levels - 1) for one in document]
    return {name: cut(one, levels - 1) for name, one in document.items()}


@given(DOCUMENTS, st.integers(0, 3), st.sampled_from([None, 2]))
def test_values_below_the_limit_are_null(document: Any, levels: int, indent: int | None) -> None:
    written = json.dumps(document, indent=indent).encode()
    assert json.loads(without_deep_values(written, levels)) == cut(document, levels)


def test_object_with_a_deep_value_is_decoded() -> None:
    found = decode_json(NAMED, b'{"other":' + DEEP + b',"name":"n"}')
    assert found.name == "n"
    assert len(bytes(found.other)) < 1_000


@pytest.mark.parametrize("data", [b'{"name":"n","other":' + DEEP[:-5_001], b"[" * 50_000, b'{"name":"' + b"[" * 9])
def test_incomplete_json_is_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_json(NAMED, data)
