"""Response formats: JSON, CSV and Arrow, entity tags, and pagination of lists."""

import asyncio
import csv
import datetime as dt
import io
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from email.message import Message
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.batch import encode
from gpufleet.model.api.answer import MachinePage, MachineRecord
from gpufleet.model.api.sql import SqlAnswer
from gpufleet.model.event import Event
from gpufleet.model.liveness import State
from gpufleet.model.machine import Machine
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.web.hub.formats import PIECE_RECORDS, encode_json
from gpufleet.web.hub.tables import TableColumn, columns_of, encode_arrow, encode_csv, sql_columns
from tests.fakes.batches import body, gpu_view, make_batch
from tests.support.waiting import PATIENCE
from tests.web.hub.site import Site, now, running_site

ARROW = "application/vnd.apache.arrow.stream"
BARE = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-a"}}


class Reply(msgspec.Struct):
    status: int
    headers: Message
    content: bytes

    @property
    def document(self) -> Any:
        return msgspec.json.decode(self.content)

    @property
    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.content.decode(), newline="")))

    @property
    def table(self) -> Any:
        return pa.ipc.open_stream(self.content).read_all()


MACHINES = tuple(
    MachineRecord(
        id=f"m-{number}", cluster="local", machine=Machine(name=f"node-{number}"), sender="s",
        first_seen=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), last_seen=dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
    )
    for number in range(2 * PIECE_RECORDS + 1)
)  # fmt: skip


@pytest.mark.parametrize(
    "count", [0, 1, PIECE_RECORDS - 1, PIECE_RECORDS, PIECE_RECORDS + 1, 2 * PIECE_RECORDS, 2 * PIECE_RECORDS + 1]
)
def test_streamed_json_list_equals_one_encoding(count: int) -> None:
    some = MACHINES[:count]
    page = MachinePage(items=some, coverage=(), next="more")
    rows = [(number, "text", None) for number in range(count)]
    answer = SqlAnswer(columns=("a", "b", "c"), types=("UInt8", "String", "String"), rows=rows, seconds=0.5)
    for content in (some, page, answer):
        assert encode_json(content) == msgspec.json.encode(content)


async def test_long_json_list_is_complete_and_has_an_etag(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        nodes = (Machine(name=f"node-{number:03d}", machine_id=f"{number:032x}") for number in range(PIECE_RECORDS + 1))
        await site.post(*(body(number, now(), machine=node) for number, node in enumerate(nodes, 1)))
        reply = await get(site, "/v1/machines")
        assert [one["machine"]["name"] for one in reply.document["items"]] == [
            f"node-{number:03d}" for number in range(PIECE_RECORDS + 1)
        ]
        assert reply.headers["Content-Type"] == "application/json"
        assert (await get(site, "/v1/machines", if_none_match="*")).status == 304


async def get(site: Site, path: str, **headers: str) -> Reply:
    def fetch() -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(site.hub.url + path, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())

    return await asyncio.to_thread(fetch)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        names = ["=1+1", "node-b", "node-c"]
        bodies = [
            body(1, now(), sender=f"s{at}", machine=Machine(name=name, machine_id=f"{at:0>32}"))
            for at, name in enumerate(names)
        ]
        await site.post(*bodies)
        for number in range(5):
            await site.request(f"/v1/allocations/a{number}", "PUT", BARE)
            await site.request(f"/v1/clusters/c{number}", "PUT", {"team": "-x", "expected": {"H200": number}})
        await site.request("/v1/silences", "POST", {"rule": "gpu.lost", "duration": "1h", "note": "=1+1"})
        yield site


LISTS = (
    "/v1/nodes",
    "/v1/nodes/gpus",
    "/v1/machines",
    "/v1/gpus",
    "/v1/holders",
    "/v1/senders",
    "/v1/clusters",
    "/v1/allocations",
    "/v1/audit",
    "/v1/events",
    "/v1/findings",
    "/v1/silences",
)


async def test_lists_are_served_as_json_csv_and_arrow(site: Site) -> None:
    for path in LISTS:
        plain = await get(site, path)
        assert plain.headers["Content-Type"] == "application/json", path
        document = plain.document
        items = document if isinstance(document, list) else document.get("items", document.get("events"))
        for reply in (await get(site, path, Accept="text/csv"), await get(site, f"{path}?format=csv", Accept=ARROW)):
            assert (reply.status, reply.headers["Content-Type"]) == (200, "text/csv; charset=utf-8"), path
            assert len(reply.rows) == len(items), path
        arrow = await get(site, path, Accept=f"text/csv;q=0.5, {ARROW}")
        assert arrow.headers["Content-Type"] == ARROW, path
        assert arrow.table.num_rows == len(items), path
        assert arrow.table.column_names == next(csv.reader(io.StringIO(reply.content.decode()))), path
        assert (await get(site, path, Accept="text/html, */*")).headers["Content-Type"] == "application/json", path
        for wrong in ("xml", "CSV", ""):
            refused = await get(site, f"{path}?format={wrong}")
            assert (refused.status, refused.document["field"]) == (400, "format"), path


async def test_csv_and_arrow_cells_equal_the_json_values(site: Site) -> None:
    (first, *_) = (await get(site, "/v1/gpus")).document["items"]
    row = (await get(site, "/v1/gpus?format=csv")).rows[0]
    (table, *_) = (await get(site, "/v1/gpus?format=arrow")).table.to_pylist()
    for name, reading in first["device"]["readings"].items():
        assert table[f"device.readings.{name}"] == reading.get("value"), name
        assert table[f"device.readings.{name}.absent"] == reading.get("absent"), name
        assert row[f"device.readings.{name}"] == ("" if "value" not in reading else str(reading["value"])), name
    assert table["received_at"] == dt.datetime.fromisoformat(first["received_at"])
    assert row["received_at"] == first["received_at"]
    assert table["index"] == first["index"]


async def test_csv_escapes_formulas(site: Site) -> None:
    rows = (await get(site, "/v1/nodes?format=csv")).rows
    assert "'=1+1" in {row["machine.machine.name"] for row in rows}
    assert {row["cluster.spec.team"] for row in (await get(site, "/v1/clusters?format=csv")).rows} == {"", "'-x"}
    names = (await get(site, "/v1/nodes?format=arrow")).table.column("machine.machine.name").to_pylist()
    assert "=1+1" in names  # Arrow needs no escaping


async def test_usage_has_a_column_per_group_dimension(site: Site) -> None:
    whole = (await get(site, "/v1/usage?group_by=team")).document
    reply = await get(site, "/v1/usage?group_by=team", Accept="text/csv")
    assert len(reply.rows) == len(whole["rows"])
    header = reply.content.decode().splitlines()[0].split(",")
    assert {"group.team", "group.cluster", "held_gpu_hours"} <= set(header)
    assert (await get(site, "/v1/usage?format=arrow")).table.column_names == header


async def test_single_object_is_json_only(site: Site) -> None:
    assert (await get(site, "/v1/allocations/a1", Accept="text/csv")).headers["Content-Type"] == "application/json"
    refused = await get(site, "/v1/allocations/a1?format=csv")
    assert (refused.status, refused.document["field"]) == (400, "format")


@pytest.mark.parametrize("path", ["/v1/allocations", "/v1/allocations/a1", "/v1/allocations?format=csv", "/v1/audit"])
async def test_matching_etag_returns_304(site: Site, path: str) -> None:
    first = await get(site, path)
    tag = first.headers["ETag"]
    assert first.headers["Cache-Control"] == "private, no-cache"
    for known in (tag, f'"other", W/{tag}', "*"):
        again = await get(site, path, If_None_Match=known)
        assert (again.status, again.content, again.headers["ETag"]) == (304, b"", tag)
    assert (await get(site, path, If_None_Match='"other"')).status == 200
    await site.request("/v1/allocations/a1", "DELETE")
    changed = await get(site, path, If_None_Match=tag)
    assert changed.status == 200
    assert changed.headers["ETag"] != tag


async def test_each_format_has_its_own_etag(site: Site) -> None:
    tags = {(await get(site, f"/v1/allocations?format={label}")).headers["ETag"] for label in ("json", "csv", "arrow")}
    assert len(tags) == 3
    assert "Accept" in (await get(site, "/v1/allocations")).headers["Vary"]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/v1/allocations", lambda one: one["id"]),
        ("/v1/clusters", lambda one: one["cluster"]["id"]),
        ("/v1/senders", lambda one: one["sender"]),
        ("/v1/audit", lambda one: -one["number"]),
    ],
)
async def test_plain_lists_are_paginated(site: Site, path: str, key: Any) -> None:
    whole = (await get(site, path)).document
    found, query = [], f"{path}?limit=2"
    while query:
        reply = await get(site, query)
        found += reply.document
        assert len(reply.document) <= 2
        link = reply.headers["Link"]
        csv_link = (await get(site, f"{query}&format=csv")).headers["Link"]
        assert (link is None) == (csv_link is None)
        query = link.removeprefix("<").partition(">")[0] if link else ""
        assert not query or query.startswith(f"{path}?limit=2&cursor=")
        if query and path == "/v1/allocations":  # records inserted between pages are listed once
            await site.request("/v1/allocations/a00", "PUT", BARE)
            await site.request("/v1/allocations/z9", "PUT", BARE)
    keys = [key(one) for one in found]
    assert keys == sorted(set(keys))
    assert {key(one) for one in whole} <= set(keys)


async def test_cursor_of_another_query_is_refused(site: Site) -> None:
    cursors = {}
    for path in (
        "/v1/nodes",
        "/v1/machines",
        "/v1/machines?cluster=local",
        "/v1/gpus",
        "/v1/allocations",
        "/v1/senders",
    ):
        page = (await get(site, f"{path}{'&' if '?' in path else '?'}limit=1")).headers["Link"]
        cursors[path] = page.partition("cursor=")[2].partition(">")[0]
    for path in (*cursors, "/v1/clusters", "/v1/audit", "/v1/events"):
        for source, cursor in cursors.items():
            reply = await get(site, f"{path}{'&' if '?' in path else '?'}cursor={cursor}")
            if source == path:
                assert reply.status == 200
            else:
                assert (reply.status, reply.document["field"]) == (400, "cursor"), (path, source)
                assert "another query" in reply.document["detail"]
        for wrong in ("", "x", "%00", "====", "kaA", "A" * 5000, "%C3%A9"):
            reply = await get(site, f"{path}{'&' if '?' in path else '?'}cursor={wrong}")
            assert (reply.status, reply.document["field"]) == (400, "cursor"), (path, wrong)


async def test_events_are_filtered_by_code_and_gpu(site: Site) -> None:
    slot = View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:1b:00.0")
    views = {79: None, 31: gpu_view(0), 13: slot}
    events = [Event(view=view, kind="xid", code=code, at=now(), attributes={}) for code, view in views.items()]
    batch = make_batch(9, now())
    reports = tuple(msgspec.structs.replace(one, events=tuple(events)) for one in batch.reports)
    await site.post(encode(msgspec.structs.replace(batch, reports=reports)))
    for query, expected in (
        ("code=79", {79}),
        ("code=79&code=13", {79, 13}),
        ("code=1", set()),
        ("", {79, 31, 13}),
        ("gpu=GPU-0", {31}),
        ("gpu=00000000:1B:00.0", {13}),
        ("gpu=x", set()),
    ):
        assert {one["code"] for one in (await get(site, f"/v1/events?{query}")).document["events"]} == expected
    for wrong in (f"code={79 + 2**64}", "code=x", "gpu=GPU-0&view=machine"):
        assert (await get(site, f"/v1/events?{wrong}")).status == 400
    first = (await get(site, "/v1/events?limit=2")).document
    rest = (await get(site, f"/v1/events?limit=2&cursor={first['next']}")).document
    assert sorted(one["code"] for one in first["events"] + rest["events"]) == [13, 31, 79]
    assert (await get(site, f"/v1/events?limit=2&code=79&cursor={first['next']}")).status == 400


class Part(msgspec.Struct):
    label: str | None
    number: int | float
    counts: dict[str, int]


class Record(msgspec.Struct):
    id: int
    part: Part | None
    at: dt.datetime
    tags: tuple[str, ...] = ()


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))  # decoded text has no lone surrogates
records = st.builds(
    Record,
    id=st.integers(-(2**63), 2**63 - 1),
    part=st.none()
    | st.builds(Part, label=st.none() | texts, number=st.integers(0, 9) | st.floats(0, 1), counts=st.just({"a": 1})),
    at=st.integers(0, 2**52).map(
        lambda micros: dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=micros)
    ),
    tags=st.lists(texts, max_size=2).map(tuple),
)


@given(st.lists(records, max_size=4))
def test_any_record_survives_csv_and_arrow(rows: list[Record]) -> None:
    columns = columns_of(Record, rows)
    assert [(one.name, one.type) for one in columns] == [
        ("id", "int64"),
        ("part.label", "text"),
        ("part.number", "float64"),
        ("part.counts", "text"),
        ("at", "instant"),
        ("tags", "text"),
    ]
    table = pa.ipc.open_stream(encode_arrow(columns, rows)).read_all().to_pylist()
    lines = list(csv.DictReader(io.StringIO(encode_csv(columns, rows).decode(), newline="")))
    assert len(table) == len(lines) == len(rows)
    for row, arrow, line in zip(rows, table, lines, strict=True):
        label = row.part.label if row.part else None
        assert (arrow["id"], arrow["at"]) == (row.id, row.at)
        assert arrow["part.label"] == label
        assert line["id"] == str(row.id)
        cell = line["part.label"]
        assert cell == (
            f"'{label}" if (label or "").startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else label or ""
        )
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


def test_sql_numbers_keep_their_types() -> None:
    columns = sql_columns(
        ["a", "b", "c", "d"], ["UInt64", "LowCardinality(Nullable(Float32))", "Array(String)", "UInt256"]
    )
    rows = [(2**64 - 1, None, ["=x"], 2**200), (0, -1.5, [], 0)]
    table = pa.ipc.open_stream(encode_arrow(columns, rows)).read_all()
    assert [str(kind) for kind in table.schema.types] == ["uint64", "double", "string", "string"]
    assert table.to_pylist()[0] == {"a": 2**64 - 1, "b": None, "c": '["=x"]', "d": str(2**200)}
    assert encode_csv(columns, rows).decode().splitlines()[1:] == [f'{2**64 - 1},,"[""=x""]",{2**200}', "0,-1.5,[],0"]


class Counted(msgspec.Struct):
    machines: dict[State, int]


def test_map_of_a_closed_set_has_a_column_per_key() -> None:
    rows = [Counted({State.LIVE: 3}), Counted({})]
    columns = columns_of(Counted, rows)
    assert [one.name for one in columns] == [f"machines.{state.value}" for state in State]
    live = encode_csv(columns, rows).decode().splitlines()[1:]
    assert [line.replace(",", "") for line in live] == ["3", ""]


def test_empty_lists_have_a_header() -> None:
    assert encode_csv(columns_of(Record, []), []) == b"id,part.label,part.number,part.counts,at,tags\r\n"
    assert pa.ipc.open_stream(encode_arrow([TableColumn("=a", "text", lambda one: one)], [])).read_all().num_rows == 0
