"""Benchmark document: round trip, hostile bytes and schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.bench.document import MAX_BYTES, benchmark_schema, decode_benchmark, encode_benchmark
from gpufleet.model.errors import WireError, WireLimitError, WireVersionError
from tests.support.benchmarks import document, measured

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "benchmark.schema.json"


def example() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(encode_benchmark(document(measured(values=(1.0, 2.0)))))
    return content


def test_document_round_trips() -> None:
    one = document(measured(values=(1.0, 2.0, 4.0)), labels={"hugepages": "on"})
    assert decode_benchmark(encode_benchmark(one)) == one


def test_document_follows_the_published_schema() -> None:
    schema = json.loads(REFERENCE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(example(), schema, format_checker=jsonschema.FormatChecker())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**example(), "schema": "gpufleet.benchmark/2"}, schema)


def test_published_schema_is_current() -> None:
    assert json.loads(REFERENCE.read_text()) == json.loads(json.dumps(benchmark_schema()))


def test_document_of_another_schema_version_is_refused() -> None:
    with pytest.raises(WireVersionError):
        decode_benchmark(json.dumps({**example(), "schema": "gpufleet.benchmark/2"}).encode())


def test_document_above_the_size_limit_is_refused() -> None:
    with pytest.raises(WireLimitError):
        decode_benchmark(b" " * (MAX_BYTES + 1))


@pytest.mark.parametrize(
    "change",
    [
        {"repeats": 0},
        {"labels": {"Upper": "x"}},
        {"labels": {f"l{number}": "x" for number in range(33)}},
        {"name": "x" * 129},
        {"measurements": [{"name": "a", "unit": "", "better": "lower", "tool": "fio", "values": [-1.0]}]},
        {"measurements": [{"name": "a", "unit": "", "better": "lower", "tool": "fio", "values": [1e300]}]},
        {"measurements": [{"name": "a", "unit": "", "better": "lower", "tool": "fio"}] * 2},
        {"facts": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]},
        {"facts": [{"name": "../etc", "value": 1}]},
        {"facts": [{"name": "a", "value": 2**63}]},
        {"facts": [{"name": "a", "value": -(10**400)}]},
        {"facts": [{"name": "a", "value": "x" * 1025}]},
        {"outputs": {"zz": {"bytes": 0, "text": ""}}},
        {"started_at": "yesterday"},
    ],
)
def test_forged_field_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_benchmark(json.dumps({**example(), **change}).encode())


@given(st.data())
def test_damaged_document_raises_at_most_a_wire_error(data: st.DataObject) -> None:
    content = bytearray(encode_benchmark(document(measured(values=(1.0, 2.0)))))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_benchmark(bytes(content))
    except WireError:
        return
