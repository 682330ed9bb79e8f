"""Requests of `gpufleet query`: options of a table, one answer or all pages of a list, printed as JSON or tables."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

import msgspec
import typer

from gpufleet.cli.fetch import TIMEOUT_SECONDS, Access, get
from gpufleet.cli.lookup import check_names
from gpufleet.cli.options import CommandError, OptionError
from gpufleet.cli.output import print_tables, repeat, write_json
from gpufleet.cli.table import Layout, TextTable
from gpufleet.model.liveness import State

T = TypeVar("T")

Tables = Callable[[T], list[TextTable | str]]
"""Function from an answer to tables and notes."""

Parameters = Mapping[str, str | None]

ClusterFilter = Annotated[str | None, typer.Option(metavar="ID", help="Only entries of this cluster.")]

MachineFilter = Annotated[str | None, typer.Option(metavar="ID", help="Only entries of this machine, by id or name.")]

DeviceFilter = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Only this device: UUID or its first digits, MACHINE/PCI_ADDRESS, or key."),
]

LIVENESS_STATES = tuple(one.value for one in State)

SMALL_ANSWER = 100_000
"""Bytes up to which an answer is checked for being empty."""


def make_layout(
    wide: bool = False,
    columns: str | None = None,
    sort: str | None = None,
    limit: int | None = None,
    states: list[str] | None = None,
    known_states: tuple[str, ...] = (),
    *,
    as_json: bool,
) -> Layout:
    """Return the layout of a table from the options of a command.

    Raises:
        OptionError: for an unknown state, or an option that does not apply to JSON.
    """
    for option, value in (
        ("--wide", wide), ("--columns", columns), ("--sort", sort), ("--limit", limit), ("--state", states)
    ):  # fmt: skip
        if as_json and value:
            raise OptionError(option, "selects rows or columns of a table: leave it out, or leave out --json")
    for one in states or ():
        if one not in known_states:
            raise OptionError("--state", f"{one!r} is not one of {', '.join(known_states)}")
    names = tuple(name.strip() for name in (columns or "").split(",") if name.strip())
    return Layout(wide=wide, columns=names, sort=sort or "", limit=limit, states=tuple(states or ()))


def query_and_print(
    hub: str,
    path: str,
    query: Parameters | Callable[[], Parameters],
    answer_type: type[T],
    tables: Tables[T],
    access: Access,
    layout: Layout | None = None,
    as_json: bool = False,
    watch: str | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> None:
    """Query a hub and print the answer as JSON or tables; `query` is called before each request if it is a function."""

    def once() -> None:
        given = query() if callable(query) else query
        body = get(hub, _with_query(path, given), access, timeout_seconds=timeout_seconds)
        _check_empty(hub, body, given, access)
        show(body, hub, answer_type, tables, layout, as_json)

    repeat(once, _watched(watch, as_json))


def query_pages(
    hub: str,
    path: str,
    query: Parameters | Callable[[], Parameters],
    page_type: type[T],
    tables: Tables[T],
    access: Access,
    layout: Layout,
    as_json: bool,
    watch: str | None,
) -> None:
    """Query all pages of a list and print them as one; no more than the layout shows if it shows the first ones.

    `query` is called before each repetition if it is a function.
    """
    most = None if layout.sort or layout.states else layout.limit

    def once() -> None:
        given = query() if callable(query) else query
        body = fetch_pages(hub, path, given, access, most)
        _check_empty(hub, body, given, access)
        show(body, hub, page_type, tables, layout, as_json)

    repeat(once, _watched(watch, as_json))


def fetch_pages(
    hub: str,
    path: str,
    query: Parameters,
    access: Access,
    most: int | None = None,
    *,
    page_size: int | None = None,
) -> bytes:
    """Return all pages of a list as one; pages after the first `most` entries are not fetched."""
    items: list[msgspec.Raw] = []
    sizes = [one for one in (page_size, most) if one is not None]
    limit = str(min(1000, *sizes)) if sizes else None
    cursor: str | None = None
    while True:
        body = get(hub, _with_query(path, {**query, "limit": limit, "cursor": cursor}), access)
        page = decode_answer(body, _Page, hub)
        items += page.items
        if page.next is None or page.next == cursor or (most is not None and len(items) >= most):
            break
        cursor = page.next
    document: dict[str, Any] = {"items": items, "next": None}
    if page.coverage is not msgspec.UNSET:
        document = {"items": items, "coverage": page.coverage, "next": None}
    return msgspec.json.encode(document)


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    next: str | None
    coverage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _with_query(path: str, query: Parameters) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _watched(watch: str | None, as_json: bool) -> str | None:
    if watch is not None and as_json:
        raise OptionError("--watch", "repeats a table: leave it out, or leave out --json")
    return watch


def _check_empty(hub: str, body: bytes, query: Parameters, access: Access) -> None:
    """Check that the cluster and machine of a query exist if its answer has no entries."""
    cluster, machine = query.get("cluster"), query.get("machine")
    if (cluster is None and machine is None) or len(body) > SMALL_ANSWER:
        return
    document = decode_answer(body, Any, hub)
    entries = document if isinstance(document, list) else document.get("items", document.get("events"))
    if not entries:
        check_names(hub, cluster, machine, access)


def decode_answer(body: bytes, answer_type: Any, hub: str) -> Any:
    """Return a decoded answer. Raises CommandError if it is not one of a gpufleet hub."""
    try:
        return msgspec.json.decode(body, type=answer_type)
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} does not respond like a gpufleet hub: {error}") from error


def show(body: bytes, hub: str, answer_type: type[T], tables: Tables[T], layout: Layout | None, as_json: bool) -> None:
    """Print an answer as JSON or tables."""
    if as_json:
        write_json(body)
        return
    print_tables(tables(decode_answer(body, answer_type, hub)), layout)
