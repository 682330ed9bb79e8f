"""The screen: header and body lines of an observation, for a page, a sort order, a filter and a width. Pure."""

import enum
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import msgspec

from gpufleet.exporters.display import bytes_text, included_text, percent_text, seconds_text
from gpufleet.model.view import ViewKind
from gpufleet.top.columns import (
    device_head,
    device_line,
    memory_text,
    process_head,
    process_line,
    process_widths,
    vgpu_host_line,
)
from gpufleet.top.history import UtilizationHistory
from gpufleet.top.host import host_lines
from gpufleet.top.lines import NOTHING, Line, Span, cell, fitted, joined
from gpufleet.top.observation import Observation
from gpufleet.top.rows import DeviceRow, NodeRows, ObservedRows, ProcessRow
from gpufleet.top.summaries import SumRow, holder_groups, user_sums
from gpufleet.top.topology import (
    GpuLinks,
    down_line,
    gpu_links,
    links_line,
    numa_line,
    part_line,
    peers_line,
    slot_order,
    topology_head,
)

R = TypeVar("R", DeviceRow, ProcessRow, SumRow)


class BodyPage(enum.StrEnum):
    """Page of the body."""

    OVERVIEW = "overview"  # devices, then processes
    DEVICES = "devices"
    PROCESSES = "processes"
    HOLDERS = "holders"  # tree of holders, devices and processes
    SUMS = "sums"  # sums per user, and per holder
    TOPOLOGY = "topology"  # NUMA node, PCIe link, NVLinks and fabric of each GPU


class ViewState(msgspec.Struct, frozen=True, kw_only=True):
    """Choices of the user.

    Attributes:
        page: page of the body.
        device_sort, process_sort: names of sort orders.
        reverse: whether the order is reversed.
        filter: terms; only rows that have all of them are shown.
    """

    page: BodyPage = BodyPage.OVERVIEW
    device_sort: str = "index"
    process_sort: str = "memory"
    reverse: bool = False
    filter: str = ""


class PollStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the source.

    Attributes:
        age_seconds: time since the observation was received.
        error: why there is no newer one; empty if there is.
        mode: state of a replay; empty for a live source.
    """

    age_seconds: float = 0.0
    error: str = ""
    mode: str = ""


Subject = DeviceRow | ProcessRow | SumRow


class BodyLine:
    """Line of the body. It is made when it is drawn: most lines of a long list never are.

    Args:
        make: makes the line.
        width: its maximum width.
        subject: row that the line shows, which the search looks into; None for titles.
    """

    __slots__ = ("_make", "_subject", "_width")

    def __init__(self, make: Callable[[], Line], width: int, subject: Subject | None = None) -> None:
        self._make, self._width, self._subject = make, width, subject

    @property
    def line(self) -> Line:
        """The line."""
        return fitted(self._make(), self._width)

    def matches(self, text: str) -> bool:
        """Return whether the line shows a row with a text in lower case."""
        return self._subject is not None and text in self._subject.search_text


class Screen(msgspec.Struct, frozen=True):
    """Lines of a frame."""

    header: tuple[Line, ...]
    body: tuple[BodyLine, ...]


_Order = Callable[[Any], Any]

DEVICE_SORTS: dict[str, _Order] = {
    "index": lambda row: None,
    "utilization": lambda row: _most_first(row.utilization),
    "memory": lambda row: _most_first(row.memory_used),
    "temperature": lambda row: _most_first(row.temperature),
    "power": lambda row: _most_first(row.power),
    "holder": lambda row: (row.holder == "", row.holder),
}
"""Sort orders of GPUs. Parts stay under their GPU. `index` is the order of the source."""

PROCESS_SORTS: dict[str, _Order] = {
    "memory": lambda row: _most_first(row.memory),
    "utilization": lambda row: _most_first(row.utilization),
    "device": lambda row: None,
    "pid": lambda row: row.pid,
    "user": lambda row: (row.user == "", row.user),
    "holder": lambda row: (row.holder == "", row.holder),
}
"""Sort orders of processes. `device` is the order of the devices."""


def render_screen(
    listed: ObservedRows, history: UtilizationHistory, state: ViewState, status: PollStatus, width: int
) -> Screen:
    """Return the lines of a frame, each at most `width` columns wide."""
    return Screen(
        tuple(fitted(line, width) for line in _header(listed.observation, listed.devices, status)),
        tuple(_Body(listed, history, state, width).lines()),
    )


def _header(observation: Observation, devices: Sequence[DeviceRow], status: PollStatus) -> list[Line]:
    at = observation.measured_at
    times = [f"{at:%Y-%m-%d %H:%M:%S %Z}"] if at is not None else []
    if status.age_seconds >= 1:
        times.append(f"received {seconds_text(round(status.age_seconds))} ago")
    spans = [cell(observation.title, style="title")]
    spans += [cell(status.mode, style="warn")] if status.mode else []
    spans += [cell(text, style="dim") for text in (*times, *observation.facts)]
    lines = [joined(spans, "  ")]
    if status.error:
        lines.append((cell(f"no new data: {status.error}", style="bad"),))
    first = observation.nodes[0] if observation.nodes else None
    if first is not None and first.host is not None:
        lines += host_lines(first.host)
        devices = [row for row in devices if row.node == first.name]
    lines.append(_totals(devices))
    lines += [(cell(problem, style="bad"),) for problem in observation.problems]
    return lines


def _totals(devices: Iterable[DeviceRow]) -> Line:
    """Return the line of sums over GPUs, each with the number of GPUs that it includes unless these are all.

    GPUs that are passed through are counted apart: a hub lists them in their virtual machines too.
    """
    every = _distinct(row for row in devices if row.kind is ViewKind.GPU)
    if not every:
        return (cell("GPUs", 8, "dim"), cell("none"))
    gpus = [row for row in every if not row.is_passed_through]
    working = [row for row in gpus if not row.is_lost]
    busy = [row.utilization for row in working if row.utilization is not None]
    power = [row.power for row in working if row.power is not None]
    sized = [(row.memory_used, row.memory_total) for row in working]
    memory = [(used, total) for used, total in sized if used is not None and total is not None]

    def included(known: Sequence[object]) -> str:
        return included_text(len(known), len(gpus))

    used = memory_text(sum(one[0] for one in memory), sum(one[1] for one in memory)) if memory else NOTHING
    facts = [
        f"{len(gpus)}",
        *([f"{len(every) - len(gpus)} passed through"] if len(gpus) < len(every) else []),
        f"utilisation {percent_text(sum(busy) / len(busy)) if busy else NOTHING}{included(busy)}",
        f"memory {used}{included(memory)}",
        f"power {f'{sum(power):.0f} W' if power else NOTHING}{included(power)}",
    ]
    return (cell("GPUs", 8, "dim"), cell(", ".join(facts)))


def _distinct(rows: Iterable[DeviceRow]) -> list[DeviceRow]:
    """Return the rows with each UUID once: of machines that list the same GPU, the row with the most values.

    A hub lists a GPU on the machine that it left too, with stale readings.
    """
    found: dict[str, DeviceRow] = {}
    for row in rows:
        key = row.uuid or row.key
        other = found.get(key)
        if other is None or _count_values(row) > _count_values(other):
            found[key] = row
    return list(found.values())


def _count_values(row: DeviceRow) -> int:
    values = (row.utilization, row.memory_used, row.memory_total, row.temperature, row.power)
    return sum(value is not None for value in values)


class _Body:
    """Lines of the body of one frame."""

    def __init__(self, listed: ObservedRows, history: UtilizationHistory, state: ViewState, width: int) -> None:
        self._listed, self._history, self._state, self._width = listed, history, state, width

    def lines(self) -> list[BodyLine]:
        """Return the lines of the page."""
        page = self._state.page
        if page is BodyPage.DEVICES:
            return self._device_lines()
        if page is BodyPage.PROCESSES:
            return self._process_lines()
        if page is BodyPage.HOLDERS:
            return self._holder_lines()
        if page is BodyPage.TOPOLOGY:
            return self._topology_lines()
        if page is BodyPage.SUMS:
            users = self._sum_lines("users", user_sums(self._listed.processes))
            groups = holder_groups(self._listed)
            return [*users, self._fixed(()), *self._sum_lines("holders", [group.sums for group in groups])]
        processes = [self._fixed(()), *self._process_lines()] if self._listed.processes else []
        return [*self._device_lines(), *processes]

    def _fixed(self, line: Line) -> BodyLine:
        return BodyLine(lambda: line, self._width)

    def _nothing(self, what: str) -> BodyLine:
        if what in ("processes", "users") and not self._listed.lists_processes:
            what = "list of processes"
        return self._fixed((cell(f"no {what}", style="dim"),))

    def _device_lines(self) -> list[BodyLine]:
        state = self._state
        lines: list[BodyLine] = []
        headings = len(self._listed.nodes) > 1
        for one in self._listed.nodes:
            ordered = _sorted(one.devices, DEVICE_SORTS[state.device_sort], state)
            shown = [found for row in ordered if (found := _kept(row, state)) is not None]
            if headings and (shown or (one.node.state and not state.filter)):
                lines.append(self._node_heading(one))
            for row in shown:
                lines += self._lines_of(row)
        head = self._fixed(_titled(device_head(self._width), state.device_sort, state))
        return [head, *(lines or [self._nothing("devices")])]

    def _node_heading(self, rows: NodeRows) -> BodyLine:
        return self._fixed((cell(rows.node.name, style="title"), Span("  "), cell(rows.node.state, style="bad")))

    def _topology_lines(self) -> list[BodyLine]:
        state = self._state
        lines: list[BodyLine] = []
        for one in self._listed.nodes:
            links = gpu_links(one.node)
            shown = [kept for row in one.devices if (kept := _kept(row, state)) is not None]
            if shown and len(self._listed.nodes) > 1:
                lines.append(self._node_heading(one))
            gpus = [(links[row.key], row) for row in shown if row.key in links]
            gpus.sort(key=lambda found: slot_order(found[0]), reverse=state.reverse)
            is_known = any(found.numa_node is not None for found in links.values())
            for numa, members in groupby(gpus, lambda found: found[0].numa_node):
                lines += [self._fixed(numa_line(numa))] if is_known else []
                for found, row in members:
                    lines += self._links_of(row, found)
            parts = [row for row in shown if row.key not in links]  # their GPU is not listed
            lines += [BodyLine(partial(part_line, row), self._width, row) for row in parts]
        head = self._fixed(_titled(topology_head(self._width), "index", state))
        return [head, *(lines or [self._nothing("devices")])]

    def _links_of(self, row: DeviceRow, links: GpuLinks) -> list[BodyLine]:
        lines = [BodyLine(partial(links_line, row, links, self._width), self._width, row)]
        if links.peers:
            lines.append(BodyLine(partial(peers_line, links, self._width), self._width, row))
        if links.down:
            lines.append(BodyLine(partial(down_line, links), self._width, row))
        return [*lines, *(BodyLine(partial(part_line, part), self._width, part) for part in row.parts)]

    def _lines_of(self, row: DeviceRow, indent: int = 0) -> list[BodyLine]:
        """Return the lines of a GPU, of its vGPU host, and of its parts."""
        lines = [self._device_line(row, indent)]
        if row.host:
            lines.append(BodyLine(partial(vgpu_host_line, row), self._width, row))
        return [*lines, *(self._device_line(part, indent) for part in row.parts)]

    def _device_line(self, row: DeviceRow, indent: int) -> BodyLine:
        def make() -> Line:
            return (Span(" " * indent), *device_line(row, self._history, self._width - indent))

        return BodyLine(make, self._width, row)

    def _process_lines(self) -> list[BodyLine]:
        state, widths = self._state, process_widths(self._width)
        ordered = _sorted(self._listed.processes, PROCESS_SORTS[state.process_sort], state)
        lines = [
            BodyLine(partial(process_line, row, widths), self._width, row) for row in ordered if _matches(row, state)
        ]
        head = self._fixed(_titled(process_head(widths), state.process_sort, state))
        return [head, *(lines or [self._nothing("processes")])]

    def _holder_lines(self) -> list[BodyLine]:
        state, widths = self._state, process_widths(self._width - 4)
        lines: list[BodyLine] = []
        for group in holder_groups(self._listed):
            whole = _matches(group.sums, state)
            inside = [
                (device, [process for process in processes if whole or _matches(process, state)])
                for device, processes in group.devices
            ]
            inside = [(device, found) for device, found in inside if whole or found or _matches(device, state)]
            if not whole and not inside:
                continue
            lines.append(BodyLine(partial(_sum_line, group.sums), self._width, group.sums))
            for device, processes in inside:
                lines += self._lines_of(msgspec.structs.replace(device, parts=(), host="", holder=""), 2)
                lines += [self._indented_process(process, widths) for process in processes]
        head = self._fixed((cell("holder, its devices and their processes", style="head"),))
        return [head, *(lines or [self._nothing("devices")])]

    def _indented_process(self, row: ProcessRow, widths: tuple[int, ...]) -> BodyLine:
        return BodyLine(lambda: (Span("    "), *process_line(row, widths)), self._width, row)

    def _sum_lines(self, what: str, rows: Sequence[SumRow]) -> list[BodyLine]:
        head = joined([*(cell(name, width, "head") for name, width in (("kind", 9), (what, 24))), *_sum_head()])
        shown = [BodyLine(partial(_sum_line, row), self._width, row) for row in rows if _matches(row, self._state)]
        return [self._fixed(head), *(shown or [self._nothing(what)])]


def _sum_head() -> list[Span]:
    return [
        *(cell(name, 7, "head", right=True) for name in ("devices", "procs")),
        cell("memory", 9, "head", right=True),
        cell("user", 10, "head"),
        cell("owner", style="head"),
    ]


def _sum_line(row: SumRow) -> Line:
    return joined(
        [
            cell(row.kind, 9, "dim"),
            cell(row.name, 24, "title"),
            cell(str(row.devices), 7, right=True),
            cell(NOTHING if row.processes is None else str(row.processes), 7, right=True),
            cell(NOTHING if row.memory is None else bytes_text(row.memory), 9, right=True),
            cell(row.user, 10),
            cell(row.owner),
        ]
    )


def _titled(head: Line, sort: str, state: ViewState) -> Line:
    """Return the titles of columns with the sort order and the filter."""
    facts = [f"by {sort}{' (reversed)' if state.reverse else ''}"] if sort not in ("index", "device") else []
    facts += [f"filter: {state.filter}"] if state.filter else []
    return (*head, Span("  "), cell(", ".join(facts), style="warn")) if facts else head


def _sorted(rows: Sequence[R], order: _Order, state: ViewState) -> list[R]:
    found = list(rows) if not rows or order(rows[0]) is None else sorted(rows, key=order)
    return found[::-1] if state.reverse else found


def _most_first(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0)


def _matches(row: Subject, state: ViewState) -> bool:
    if not state.filter:
        return True
    text = row.search_text
    return all(term in text for term in state.filter.lower().split())


def _kept(row: DeviceRow, state: ViewState) -> DeviceRow | None:
    """Return a device as the filter shows it: with all parts if it matches, else with the parts that match."""
    if _matches(row, state):
        return row
    parts = tuple(part for part in row.parts if _matches(part, state))
    return msgspec.structs.replace(row, parts=parts) if parts else None
