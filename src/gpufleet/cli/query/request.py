"""Requests of `gpufleet query`: options of a table, one answer or all pages of a list, printed as JSON or tables."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer

from gpufleet.cli.fetch import Access, command_errors, get, get_pages
from gpufleet.cli.lookup import check_names
from gpufleet.cli.options import OptionError
from gpufleet.cli.output import print_tables, repeat, write_json
from gpufleet.cli.table import Layout, TextTable
from gpufleet.model.liveness import State
from gpufleet.web import client
from gpufleet.web.client import with_query

T = TypeVar("T")

Tables = Callable[[T], list[TextTable | str]]
"""Function from an answer to tables and notes."""

Parameters = Mapping[str, str | Sequence[str] | None]
"""Parameters of a request by name; a sequence repeats a parameter, and None leaves it out."""

ClusterFilter = Annotated[str | None, typer.Option(metavar="ID", help="Only entries of this cluster.")]

MachineFilter = Annotated[str | None, typer.Option(metavar="ID", help="Only entries of this machine, by id or name.")]

DeviceFilter = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Only this device: UUID or its prefix, MACHINE/PCI_ADDRESS, or key."),
]

LIVENESS_STATES = tuple(one.value for one in State)

SECONDS = 60.0
"""Timeout of a query: the time limit of a statement of the store. Those of `query sql` are limited to less."""

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
    timeout_seconds: float = SECONDS,
) -> None:
    """Query a hub and print the answer as JSON or tables; `query` is called before each request if it is a function."""

    def once() -> None:
        given = query() if callable(query) else query
        body = get(hub, with_query(path, given), access, timeout_seconds=timeout_seconds)
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
        body = get_pages(hub, path, given, access, most)
        _check_empty(hub, body, given, access)
        show(body, hub, page_type, tables, layout, as_json)

    repeat(once, _watched(watch, as_json))


def _watched(watch: str | None, as_json: bool) -> str | None:
    if watch is not None and as_json:
        raise OptionError("--watch", "repeats a table: leave it out, or leave out --json")
    return watch


def _check_empty(hub: str, body: bytes, query: Parameters, access: Access) -> None:
    """Check that the cluster and machine of a query exist if its answer has no entries."""
    given = [query.get(name) for name in ("cluster", "machine")]
    cluster, machine = (one if isinstance(one, str) else None for one in given)
    if (cluster is None and machine is None) or len(body) > SMALL_ANSWER:
        return
    document = decode_answer(body, Any, hub)
    entries = document if isinstance(document, list) else document.get("items", document.get("events"))
    if not entries:
        check_names(hub, cluster, machine, access)


def decode_answer(body: bytes, answer_type: Any, hub: str) -> Any:
    """Return a decoded answer. Raises CommandError if it is not one of a gpufleet hub."""
    with command_errors():
        return client.decode_answer(body, answer_type, hub)


def show(body: bytes, hub: str, answer_type: type[T], tables: Tables[T], layout: Layout | None, as_json: bool) -> None:
    """Print an answer as JSON or tables."""
    if as_json:
        write_json(body)
        return
    print_tables(tables(decode_answer(body, answer_type, hub)), layout)
