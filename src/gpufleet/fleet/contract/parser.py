"""Strict parser of the adoption contract: every problem has a line, an item, a field and a remedy. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gpufleet.fleet.contract.document import DocumentError, DocumentValue, read_document
from gpufleet.fleet.contract.records import (
    HOST_TIERS,
    MAX_ITEMS,
    MAX_VERSIONS,
    AdoptionContract,
    CheckPlace,
    ContractArea,
    ContractItem,
    ContractTier,
    ContractTitle,
    ItemOwner,
    Requirement,
    VersionText,
    version_number,
)
from gpufleet.fleet.contract.table import CHECKS
from gpufleet.model.contract import Tier

MAX_PROBLEMS = 100
"""Maximum number of problems that are returned."""

MAX_SHOWN = 60
"""Maximum length of a wrong value in a problem."""

FIELDS = ("contract", "versions", "tiers", "items")
"""Fields of the file."""

T = TypeVar("T", bound=msgspec.Struct)

_HINTS = {
    "id": f"write AREA.NAME in lower case; areas are {', '.join(ContractArea)}",
    "level": f"use {', '.join(Requirement)}",
    "tier": "use a number from 0 to 4",
    "tiers": "write a list with tiers from 0 to 4",
    "items": "write a list of items",
    "on": f"use {', '.join(CheckPlace)}",
    "check": "use a name of the table of checks: `gpufleet contract show --format json` lists the used ones",
    "limits": "write NAME: NUMBER, with a finite number of at least 0",
    "remedy": "give `command: gpufleet ...`, `page: NAME.md#anchor`, or both",
    "owner": f"use {', '.join(ItemOwner)}",
    "since": 'write a version such as "1.0"',
    "until": 'write a version such as "1.1", or leave the field out',
    "contract": "write a title",
    "versions": 'write a list of one or two versions, such as ["1.0"]',
}
"""Remedy for an invalid field by its name. All other fields are texts."""


class ContractProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Problem of a contract.

    Attributes:
        line: line of the file, counted from 1.
        item: id of the item, its position as `items[3]`, or empty for the file.
        field: name of the field, or empty.
        reason: what is wrong, and what to do.
    """

    line: int
    item: str
    field: str
    reason: str


def parse_contract(content: bytes) -> tuple[AdoptionContract | None, tuple[ContractProblem, ...]]:
    """Return the contract, or None and its problems in order of their lines.

    Args:
        content: a file such as `contract/v1.yaml`.

    Raises:
        ModuleNotFoundError: if PyYAML is not installed.
    """
    try:
        document = read_document(content)
    except DocumentError as error:
        return None, (ContractProblem(line=error.line, item="", field="", reason=error.reason),)
    parser = _Parser()
    contract = parser.parse(document)
    problems = sorted(parser.problems, key=lambda one: one.line)[:MAX_PROBLEMS]
    return (None if problems else contract), tuple(problems)


class _Parser:
    """Converts a document to the contract and collects the problems."""

    def __init__(self) -> None:
        self.problems: list[ContractProblem] = []

    def parse(self, document: DocumentValue) -> AdoptionContract | None:
        """Return the contract; None if a part of it cannot be read."""
        fields = self._table(document, FIELDS, FIELDS, "")
        if fields is None:
            return None
        title = self._convert(fields.get("contract"), ContractTitle, "", "contract")
        versions = self._convert(fields.get("versions"), tuple[VersionText, ...], "", "versions")
        tiers = [self._record(one, ContractTier, f"tiers[{at}]") for at, one in self._list(fields, "tiers")]
        items = [(one, self._item(one, at)) for at, one in self._list(fields, "items")]
        self._check_versions(fields.get("versions"), versions)
        self._check_tiers(fields.get("tiers"), [one for one in tiers if one is not None])
        read = [(value, item) for value, item in items if item is not None]
        if versions:
            self._check_items(read, versions)
        if title is None or not versions:
            return None
        return AdoptionContract(
            title=title,
            versions=versions,
            tiers=tuple([one for one in tiers if one is not None]),
            items=tuple([item for _, item in read]),
        )

    def _add(self, value: DocumentValue | None, item: str, field: str, reason: str) -> None:
        self.problems.append(ContractProblem(line=value.line if value else 1, item=item, field=field, reason=reason))

    def _table(
        self, value: DocumentValue, known: Sequence[str], required: Sequence[str], item: str
    ) -> Mapping[str, DocumentValue] | None:
        """Return the fields of a table, without unknown ones; None if it is no table."""
        if not isinstance(value.content, dict):
            self._add(value, item, "", f"{value.kind} where a table is needed: write {', '.join(required)}")
            return None
        for name, field in value.content.items():
            if name not in known:
                shown = name[:MAX_SHOWN]
                self._add(field, item, shown, f"the field {shown!r} does not exist: use {', '.join(known)}")
        for name in required:
            if name not in value.content:
                self._add(value, item, name, f"the field is missing: {_hint(name)}")
        return {name: field for name, field in value.content.items() if name in known}

    def _list(self, fields: Mapping[str, DocumentValue], name: str) -> list[tuple[int, DocumentValue]]:
        value = fields.get(name)
        if value is None:
            return []
        if not isinstance(value.content, list) or not value.content:
            self._add(value, "", name, f"{value.kind} where entries are needed: {_hint(name)}")
            return []
        if len(value.content) > MAX_ITEMS:
            self._add(value, "", name, f"the list has more than {MAX_ITEMS} entries: remove some")
        return list(enumerate(value.content[:MAX_ITEMS]))

    def _convert(self, value: DocumentValue | None, type_: Any, item: str, field: str) -> Any:
        """Return a value of a type; None and a problem if it is another one."""
        if value is None:
            return None
        try:
            return msgspec.convert(value.plain(), type_, strict=False)
        except msgspec.ValidationError as error:
            self._add(value, item, field, f"{_shown(value)}: {_cause(error)}: {_hint(field)}")
            return None

    def _record(self, value: DocumentValue, type_: type[T], item: str) -> T | None:
        """Return a record; its fields are converted one by one, so that each problem has its field."""
        fields = msgspec.structs.fields(type_)
        known = [one.encode_name for one in fields]
        required = [one.encode_name for one in fields if one.required]
        table = self._table(value, known, required, item)
        if table is None:
            return None
        before = len(self.problems)
        found: dict[str, Any] = {}
        for one in fields:
            field = table.get(one.encode_name)
            if field is not None:
                found[one.name] = self._convert(field, one.type, item, one.encode_name)
        if len(self.problems) > before or any(name not in table for name in required):
            return None
        return type_(**found)

    def _item(self, value: DocumentValue, at: int) -> ContractItem | None:
        name = f"items[{at}]"
        if isinstance(value.content, dict) and isinstance((id_ := value.content.get("id")), DocumentValue):
            name = id_.content[:MAX_SHOWN] if isinstance(id_.content, str) else name
        return self._record(value, ContractItem, name)

    def _check_versions(self, value: DocumentValue | None, versions: tuple[str, ...] | None) -> None:
        if versions is None:
            return
        numbers = [version_number(one) for one in versions]
        if not 1 <= len(versions) <= MAX_VERSIONS:
            self._add(value, "", "versions", f"{len(versions)} versions: {_hint('versions')}")
        elif numbers != sorted(set(numbers)):
            self._add(value, "", "versions", "the versions are not in order: write the older one first")

    def _check_tiers(self, value: DocumentValue | None, tiers: Sequence[ContractTier]) -> None:
        if value is not None and [one.tier for one in tiers] != list(Tier):
            self._add(value, "", "tiers", "the tiers are not 0, 1, 2, 3, 4: describe each once, in this order")

    def _check_items(self, items: Sequence[tuple[DocumentValue, ContractItem]], versions: Sequence[str]) -> None:
        lines: dict[str, int] = {}
        for value, item in items:
            if item.id in lines:
                reason = f"line {lines[item.id]} has the same id: choose another one"
                self._add(_field(value, "id"), item.id, "id", reason)
            lines.setdefault(item.id, value.line)
            for field, reason in _item_problems(item, versions):
                self._add(_field(value, field), item.id, field, reason)


def _item_problems(item: ContractItem, versions: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield field and reason of each problem between fields of an item."""
    if item.id.partition(".")[0] not in set(ContractArea):
        yield "id", f"{item.id.partition('.')[0]!r} is no area: use {', '.join(ContractArea)}"
    if list(item.tiers) != sorted(set(item.tiers)):
        yield "tiers", "the tiers are not in order: write each once, lowest first"
    if item.remedy.command is None and item.remedy.page is None:
        yield "remedy", f"there is neither a command nor a page: {_hint('remedy')}"
    if item.until is not None and version_number(item.until) <= version_number(item.since):
        yield "until", f"{item.until} is not after {item.since}: write a later version, or remove the item"
    elif not any(item.is_in(one) for one in versions):
        yield "since", f"no valid version ({', '.join(versions)}) has the item: remove it, or correct since and until"
    check = CHECKS.get(item.check)
    if check is None:
        yield "check", f"{item.check!r} is no check: use one of {', '.join(sorted(CHECKS))}"
        return
    if check.place is not item.on:
        yield "on", f"the check {item.check} runs on: {check.place}: write {check.place}"
    if item.limits.keys() != check.limits.keys():
        needed = ", ".join(f"{name} ({unit})" for name, unit in check.limits.items()) or "none"
        yield "limits", f"the check {item.check} has the limits {needed}: write exactly these"
    if item.on is CheckPlace.CLUSTER and any(tier in HOST_TIERS for tier in item.tiers):
        yield "tiers", "tiers 0 and 4 have no collector: remove them, or use another check"


def _field(value: DocumentValue, name: str) -> DocumentValue:
    found = value.content.get(name) if isinstance(value.content, dict) else None
    return value if found is None else found


def _shown(value: DocumentValue) -> str:
    if not isinstance(value.content, str):
        return value.kind
    text = value.content
    return repr(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…")


def _cause(error: msgspec.ValidationError) -> str:
    """Return the message of msgspec in lower case, without values and regular expressions."""
    text = re.sub(r"Invalid enum value (?:'.*'|\S+)", "not one of the permitted values", str(error))
    text = re.sub(r"Expected `str` matching regex .*", "not of the permitted form", text)
    return text[:1].lower() + text[1:][:200]


def _hint(field: str) -> str:
    return _HINTS.get(field, "write a text")
