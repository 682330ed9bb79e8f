"""Target files in the format of Prometheus, and invalid files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.target_files import MAX_BYTES, TargetGroup, read_groups
from gpufleet.model.errors import WireError

YAML = b"""
# written by a tool
- targets: ["gpu-1:9400", 'gpu-2:9400']
  labels:
    cluster: east
    port: 9400
- targets:
    - gpu-3
"""
GROUPS = (
    TargetGroup(("gpu-1:9400", "gpu-2:9400"), {"cluster": "east", "port": "9400"}),
    TargetGroup(("gpu-3",)),
)


def test_yaml_and_json_are_equivalent() -> None:
    document = [{"targets": list(one.targets), "labels": dict(one.labels)} for one in GROUPS]
    assert read_groups(YAML, yaml=True) == GROUPS
    assert read_groups(json.dumps(document).encode(), yaml=False) == GROUPS
    assert read_groups(json.dumps(document).encode(), yaml=True) == GROUPS  # JSON is YAML
    assert read_groups(b"[]", yaml=False) == read_groups(b"[]", yaml=True) == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"- targets: [gpu-1:9400", "not YAML"),
        (b"targets: [a]", "Expected `array`"),
        (b"- [a, b]", r"Expected `object`.*\$\[0\]"),
        (b"- targets: [[a]]", r"\$\[0\]\.targets\[0\]"),
        (b"- {targets: [a], lables: {x: y}}", "lables"),
        (b"- {targets: [a], labels: {x: [y]}}", r"\$\[0\]\.labels"),
        (b"- targets: &a [x]\n- targets: *a", "aliases"),
        (b"[" * 5000, "nested too deeply"),
        (b"- {targets: [a]}\n---\n- {targets: [b]}", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"- !!python/object/apply:os.system ['true']", r"Expected `object`.*\$\[0\]"),
        (b"x" * (MAX_BYTES + 1), "more than"),
    ],
)
def test_invalid_yaml_target_file_is_rejected(content: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        read_groups(content, yaml=True)


@pytest.mark.parametrize(
    "content",
    [b"{", b'{"targets": []}', b'[{"targets": [1]}]', b'[{"other": 1}]', b"[" * 100_000, b"\xff", b'["\\ud800"]'],
)
def test_invalid_json_target_file_is_rejected(content: bytes) -> None:
    with pytest.raises(WireError):
        read_groups(content, yaml=False)


@given(st.binary(max_size=300) | st.text(alphabet='-[]{}:,&*!#|>\n ab"', max_size=120).map(str.encode), st.booleans())
def test_any_bytes_raise_at_most_a_wire_error(content: bytes, yaml: bool) -> None:
    try:
        groups = read_groups(content, yaml=yaml)
    except WireError:
        return
    assert all(isinstance(one, TargetGroup) for one in groups)
