"""The Netdata reader: one page of charts becomes the samples of a host and its GPUs."""

import re

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError, WireError
from gpufleet.model.reading import Provenance, Round, Sample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.clock import Clock
from gpufleet.readers.netdata.fetch import fetch
from gpufleet.readers.netdata.mapping import Found, GpuCharts, group_gpus, map_gpu, map_host
from gpufleet.readers.netdata.parse import Chart, Page, parse

NAME = "netdata"
TIMEOUT_SECONDS = 5.0
SILENT_SECONDS = 120
"""How old the newest chart may be."""

AHEAD_SECONDS = 600
"""How far the other machine's clock may be ahead, as a hub allows its senders."""

SECOND = 1_000_000_000

_NAME = re.compile(r"gpu\d+ (.{1,200})\Z")


class NetdataReader:
    """Reads a bare-metal host through its Netdata; never a guest.

    Every value keeps Netdata's own time of collection. A Netdata that has stopped collecting therefore gives samples
    that grow old, not new ones.
    """

    def __init__(self, url: str, clock: Clock, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Prepare it.

        Args:
            url: root of the Netdata, such as `http://127.0.0.1:19999`.
            clock: by which a Netdata that collects nothing any more is found out.
            timeout_seconds: for one page.
        """
        self._url, self._clock, self._timeout = url, clock, timeout_seconds
        self._first: dict[str, int] = {}

    @property
    def name(self) -> str:
        """Return `netdata`."""
        return NAME

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return static and fast."""
        return (Lane.STATIC, Lane.FAST)

    async def read(self, lane: Lane) -> Round:
        """Make a pass.

        Raises:
            ReaderError: if Netdata does not answer, shows no chart, or has not collected for `SILENT_SECONDS`.
        """
        try:
            page = self._of_now(parse(await fetch(self._url, self._timeout)))
        except ChannelError as error:
            reason = Reason.TIMEOUT if error.problem is ChannelProblem.TIMEOUT else Reason.READER_FAILED
            raise ReaderError(reason, str(error)) from error
        except WireError as error:
            raise ReaderError(Reason.READER_FAILED, f"{self._url}: {error}") from error
        if not page.charts:
            raise ReaderError(Reason.NO_DATA, f"{self._url}: it shows no chart")
        if self._clock.now_ns() - _newest(page) * SECOND > SILENT_SECONDS * SECOND:
            words = f"{self._url}: by this machine's clock it has collected nothing for {SILENT_SECONDS} s and more"
            raise ReaderError(Reason.STALE, words)
        if lane is not Lane.STATIC:
            page = self._collected_again(page)
        try:
            return round_of(page, lane)
        except WireError as error:
            raise ReaderError(Reason.READER_FAILED, f"{self._url}: {error}") from error

    async def close(self) -> None:
        """Forget the charts that were seen."""
        self._first.clear()

    def _of_now(self, page: Page) -> Page:
        """Return the page without charts of times to come: the newest chart is what the others are judged by."""
        latest = self._clock.now_ns() // SECOND + AHEAD_SECONDS
        ahead = [name for name, chart in page.charts.items() if chart.updated > latest]
        if not ahead:
            return page
        words = f"{len(ahead)} charts are of a time that has not come by this machine's clock, such as {ahead[0]!r}"
        charts = {name: chart for name, chart in page.charts.items() if chart.updated <= latest}
        return Page(charts, [words, *page.errors])

    def _collected_again(self, page: Page) -> Page:
        """Return the page without charts that were not collected since they were first seen here.

        Netdata shows zeros in every dimension of a chart that it has collected only once (seen on 1.37.1): whoever
        looks at that moment cannot tell them from values.
        """
        seen, self._first = self._first, {}
        for name, chart in page.charts.items():
            self._first[name] = seen.get(name, chart.updated)
        charts = {name: chart for name, chart in page.charts.items() if chart.updated > self._first[name]}
        if not charts:
            words = f"{self._url}: its charts are seen for the first time; the next pass reads what it collects by then"
            raise ReaderError(Reason.NO_DATA, words)
        return Page(charts, page.errors)


def round_of(page: Page, lane: Lane) -> Round:
    """Return what a page says; pure."""
    newest = _newest(page)
    groups = group_gpus(page.charts)
    if lane is Lane.STATIC:
        samples = [_sample(_view(group), Found({"gpu_name": _name(group)}, (), None), lane, newest) for group in groups]
    else:
        samples = [_sample(None, map_host(page.charts, newest), lane, newest)]
        samples += [_sample(_view(group), map_gpu(group, newest), lane, newest) for group in groups]
    return Round(samples=tuple(samples), errors=tuple(page.errors[:20]))


def _newest(page: Page) -> int:
    return max(chart.updated for chart in page.charts.values())


def _sample(view: View | None, found: Found, lane: Lane, newest: int) -> Sample:
    return Sample(
        view=view,
        reader=NAME,
        lane=lane,
        measured_at=(newest if found.updated is None else found.updated) * SECOND,
        values=found.values,
        dims=found.dims,
        provenance=Provenance.HOST_NETDATA,
    )


def _view(group: GpuCharts) -> View:
    """Return what names a GPU: its UUID, or only the place in nvidia-smi's list, which names it for Netdata alone."""
    if group.uuid:
        return View(kind=ViewKind.GPU, side=Side.HOST, uuid=group.name)
    index = int(group.name.removeprefix("gpu"))
    return View(kind=ViewKind.GPU, side=Side.HOST, instance=f"netdata/{group.name}", index=index)


def _name(group: GpuCharts) -> str | Absent:
    """Return the product's name, which python.d writes into the charts' family."""
    chart: Chart = next(iter(group.charts.values()))
    match = _NAME.match(chart.family)
    return match[1] if match else Absent(Reason.NOT_REPORTED, "this generation of charts does not tell it")
