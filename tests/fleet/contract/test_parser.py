"""Parser of the adoption contract: every problem has its line, item and field; hostile YAML is rejected."""

import copy
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.fleet.contract import parse_contract
from gpufleet.fleet.contract.document import MAX_BYTES, MAX_DEPTH, MAX_VALUES, DocumentError, read_document
from gpufleet.fleet.contract.parser import MAX_PROBLEMS
from gpufleet.fleet.contract.records import (
    ItemPhase,
)
from gpufleet.model.contract import Tier


class PlainDumper(yaml.SafeDumper):  # type: ignore[misc]
    """Dumper without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


ITEM: dict[str, Any] = {
    "id": "freshness.age",
    "title": "Values are new",
    "level": "MUST",
    "tiers": [0, 3],
    "on": "hub",
    "check": "sample_age",
    "limits": {"seconds": 300},
    "rationale": "r",
    "evidence": "e",
    "consequence": "c",
    "remedy": {"command": "gpufleet why", "page": "freshness.md#states"},
    "owner": "team",
    "since": "1.0",
}
TIERS = [{"tier": number, "name": "n", "installs": "i", "shows": "s"} for number in range(5)]
DOCUMENT: dict[str, Any] = {"contract": "title", "versions": ["1.0"], "tiers": TIERS, "items": [ITEM]}


def document(**changes: Any) -> bytes:
    """Return the document with changes; None removes a field."""
    found = {**copy.deepcopy(DOCUMENT), **changes}
    kept = {name: value for name, value in found.items() if value is not None}
    text: str = yaml.dump(kept, Dumper=PlainDumper, sort_keys=False)
    return text.encode()


def with_item(**changes: Any) -> bytes:
    """Return the document with a changed item; None removes a field."""
    item = {**ITEM, **changes}
    return document(items=[{name: value for name, value in item.items() if value is not None}])


def test_valid_contract_is_read() -> None:
    contract, problems = parse_contract(document())
    assert problems == ()
    assert contract is not None
    (item,) = contract.items
    assert (item.tiers, item.limits, item.area) == ((Tier.PULL, Tier.AGENT), {"seconds": 300.0}, "freshness")


def test_unquoted_version_stays_text() -> None:
    contract, _ = parse_contract(document().replace(b"'1.0'", b"1.10"))
    assert contract is not None
    assert contract.versions == ("1.10",)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": "Freshness"}, "id"),
        ({"id": "speed.age"}, "id"),
        ({"id": None}, "id"),
        ({"title": ""}, "title"),
        ({"title": ["a"]}, "title"),
        ({"level": "MOST"}, "level"),
        ({"tiers": []}, "tiers"),
        ({"tiers": [3, 0]}, "tiers"),
        ({"tiers": [0, 5]}, "tiers"),
        ({"on": "node"}, "on"),
        ({"check": "no_such_check"}, "check"),
        ({"limits": {}}, "limits"),
        ({"limits": {"seconds": -1}}, "limits"),
        ({"limits": {"seconds": "nan"}}, "limits"),
        ({"limits": {"seconds": "inf"}}, "limits"),
        ({"limits": {"minutes": 5}}, "limits"),
        ({"limits": {"seconds": "soon"}}, "limits"),
        ({"rationale": "r" * 1001}, "rationale"),
        ({"evidence": None}, "evidence"),
        ({"remedy": {}}, "remedy"),
        ({"remedy": {"command": "rm -r /"}}, "remedy"),
        ({"remedy": {"page": "https://example.com"}}, "remedy"),
        ({"remedy": {"text": "a"}}, "remedy"),
        ({"owner": "me"}, "owner"),
        ({"since": "1"}, "since"),
        ({"since": "2.0"}, "since"),
        ({"until": "1.0"}, "until"),
        ({"untill": "1.1"}, "untill"),
        ({"check": "api_permitted", "on": "cluster", "limits": None}, "tiers"),
    ],
)
def test_wrong_field_of_an_item_is_named(changes: dict[str, Any], field: str) -> None:
    contract, problems = parse_contract(with_item(**changes))
    assert contract is None
    assert field in {one.field for one in problems}
    lines = with_item(**changes).decode().splitlines()
    wrong = next(one for one in problems if one.field == field)
    assert wrong.item == (changes.get("id", ITEM["id"]) or "items[0]")
    assert 1 <= wrong.line <= len(lines)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"contract": None}, "contract"),
        ({"contract": []}, "contract"),
        ({"versions": []}, "versions"),
        ({"versions": ["1.0", "1.1", "1.2"]}, "versions"),
        ({"versions": ["1.1", "1.0"]}, "versions"),
        ({"versions": ["one"]}, "versions"),
        ({"tiers": TIERS[1:]}, "tiers"),
        ({"tiers": [*TIERS, {"tier": 1}]}, "name"),
        ({"items": []}, "items"),
        ({"items": "none"}, "items"),
        ({"items": ["text"]}, ""),
        ({"items": [ITEM, ITEM]}, "id"),
        ({"items": [{**ITEM, "id": f"freshness.a{number}"} for number in range(201)]}, "items"),
        ({"waivers": []}, "waivers"),
    ],
)
def test_wrong_field_of_the_file_is_named(changes: dict[str, Any], field: str) -> None:
    contract, problems = parse_contract(document(**changes))
    assert contract is None
    assert field in {one.field for one in problems}


def test_problem_has_the_line_of_its_field() -> None:
    content = with_item(level="MOST", owner="me")
    _, problems = parse_contract(content)
    lines = content.decode().splitlines()
    assert [lines[one.line - 1].strip() for one in problems] == ["level: MOST", "owner: me"]
    assert [one.reason for one in problems] == [
        "'MOST': not one of the permitted values: use MUST, SHOULD, MAY",
        "'me': not one of the permitted values: use team, cluster_admin, node_operator, hub_operator",
    ]


def test_number_of_problems_is_bounded() -> None:
    _, problems = parse_contract(document(items=[{"id": f"freshness.a{number}"} for number in range(100)]))
    assert len(problems) == MAX_PROBLEMS


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", 1),
        (b"# only a comment\n", 1),
        (b"a: 1\nb: 'open\n", 3),
        (b"a: 1\na: 2\n", 2),
        (b"a: &x [1]\nb: *x\n", 1),
        (b"a:\n- !!python/object/apply:os.system ['true']\n", 2),
        (b"a: !!binary aGk=\n", 1),
        (b"a: 1\n---\nb: 2\n", 2),
        (b"? [a]\n: b\n", 1),
        (b"a: \xff\n", 1),
        (b"x: 1\na: \xff\n", 2),
        (b"a: \x00\n", 1),
        (b'x: 1\na: "\\e[2J"\n', 2),
        ("a: \u202eabc\n".encode(), 1),
        (b"[" * (MAX_DEPTH + 1), 1),
        (b"[" * 100_000, 1),
        (b"{a: " * 100_000, 1),
        (b"- " * 100_000, 1),
        (b"a: " + b"x" * 5000, 1),
        (b"[" + b"1," * (MAX_VALUES + 1) + b"1]", 1),
        (b" " * (MAX_BYTES + 1), 1),
        (b"%TAG ! tag:x,2000:\n---\n!a b\n", 3),
    ],
)
def test_hostile_document_is_rejected_with_its_line(content: bytes, line: int) -> None:
    with pytest.raises(DocumentError) as caught:
        read_document(content)
    assert caught.value.line == line
    _, (problem,) = parse_contract(content)
    assert (problem.line, problem.reason) == (line, caught.value.reason)
    assert len(problem.reason) < 500


_CHARACTERS = st.text(alphabet="-[]{}:,&*!#|>%?\n\t ab1\"'\\\x00\x1b\u2028\u202e", max_size=150).map(str.encode)
_FIELDS = st.sampled_from([*ITEM, "contract", "versions", "items", "extra"])
_VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from(["MUST", "1.0", "hub", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_FIELDS | st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.binary(max_size=300) | _CHARACTERS)
@example(b"\xef\xbb\xbf")
@example(b"\xff\xfea\x00")
@example(b"---\n...\n---")
@example(b"a: \xed\xa0\x80")
def test_any_bytes_give_problems_with_lines(content: bytes) -> None:
    contract, problems = parse_contract(content)
    assert contract is None
    assert problems
    lines = content.count(b"\n") + content.count(b"\r") + content.decode(errors="replace").count("\u2028")
    assert all(1 <= one.line <= lines + 2 and len(one.reason) < 3000 for one in problems)


@given(st.dictionaries(_FIELDS, _VALUES, max_size=4), st.dictionaries(_FIELDS, _VALUES, max_size=2))
def test_any_fields_give_a_contract_or_problems(item: dict[str, Any], top: dict[str, Any]) -> None:
    content = yaml.dump({**DOCUMENT, "items": [{**ITEM, **item}], **top}, Dumper=PlainDumper).encode()
    contract, problems = parse_contract(content)
    assert (contract is None) == bool(problems)


def test_item_of_the_next_version_only_is_announced() -> None:
    items = [
        ITEM,
        {**ITEM, "id": "freshness.next", "since": "1.1"},
        {**ITEM, "id": "freshness.old", "until": "1.1"},
        {**ITEM, "id": "freshness.later", "until": "1.2"},
    ]
    contract, problems = parse_contract(document(versions=["1.0", "1.1"], items=items))
    assert problems == ()
    assert contract is not None
    phases = [contract.phase(one) for one in contract.items]
    assert phases == [ItemPhase.IN_FORCE, ItemPhase.ANNOUNCED, ItemPhase.ENDING, ItemPhase.IN_FORCE]


def test_item_that_no_valid_version_has_is_a_problem() -> None:
    _, (problem,) = parse_contract(document(versions=["1.1"], items=[{**ITEM, "until": "1.1"}]))
    assert (problem.item, problem.field) == ("freshness.age", "since")
