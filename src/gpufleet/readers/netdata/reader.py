"""The Netdata reader: samples of a host and its GPUs from one page of charts."""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError, WireError
from gpufleet.model.reading import Provenance, Round, Sample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.clock import Clock
from gpufleet.readers.netdata.fetch import fetch
from gpufleet.readers.netdata.mapping import ChartReadings, GpuCharts, group_gpus, map_gpu, map_host, product_name
from gpufleet.readers.netdata.parse import ChartPage, parse

NAME = "netdata"
TIMEOUT_SECONDS = 5.0
MAX_AGE_SECONDS = 120
"""Maximum age of the newest chart."""

MAX_AHEAD_SECONDS = 600
"""Maximum lead of the other machine's clock, the same as the hub's limit for senders."""

SECOND = 1_000_000_000


class NetdataReader:
    """Reads a bare-metal host through its Netdata; never a guest.

    Samples have Netdata's own collection times. If Netdata stops collecting, its samples therefore age.
    """

    def __init__(self, url: str, clock: Clock, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Create the reader.

        Args:
            url: root of the Netdata, such as `http://127.0.0.1:19999`.
            clock: detects a Netdata that no longer collects.
            timeout_seconds: timeout of one page.
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
            ReaderError: if Netdata does not respond, has no chart, or has not collected for `MAX_AGE_SECONDS`.
        """
        try:
            page = self._without_future_charts(parse(await fetch(self._url, self._timeout)))
        except ChannelError as error:
            reason = Reason.TIMEOUT if error.problem is ChannelProblem.TIMEOUT else Reason.READER_FAILED
            raise ReaderError(reason, str(error)) from error
        except WireError as error:
            raise ReaderError(Reason.READER_FAILED, f"{self._url}: {error}") from error
        if not page.charts:
            raise ReaderError(Reason.NO_DATA, f"{self._url}: the page has no charts")
        if self._clock.now_ns() - _newest(page) * SECOND > MAX_AGE_SECONDS * SECOND:
            message = f"{self._url}: the newest chart is older than {MAX_AGE_SECONDS} s by this machine's clock"
            raise ReaderError(Reason.STALE, message)
        if lane is not Lane.STATIC:
            page = self._without_new_charts(page)
        try:
            return round_of(page, lane)
        except WireError as error:
            raise ReaderError(Reason.READER_FAILED, f"{self._url}: {error}") from error

    async def close(self) -> None:
        """Drop the state of the charts."""
        self._first.clear()

    def _without_future_charts(self, page: ChartPage) -> ChartPage:
        """Drop charts with a time in the future, because the newest chart is the reference for staleness."""
        latest = self._clock.now_ns() // SECOND + MAX_AHEAD_SECONDS
        ahead = [name for name, chart in page.charts.items() if chart.updated > latest]
        if not ahead:
            return page
        message = f"{len(ahead)} charts have a time in the future by this machine's clock, such as {ahead[0]!r}"
        charts = {name: chart for name, chart in page.charts.items() if chart.updated <= latest}
        return ChartPage(charts, [message, *page.errors])

    def _without_new_charts(self, page: ChartPage) -> ChartPage:
        """Drop charts that were not collected again since this reader saw them first.

        Netdata shows zeros in every dimension of a chart that was collected only once (seen on 1.37.1), and the page
        does not distinguish them from values.
        """
        seen, self._first = self._first, {}
        for name, chart in page.charts.items():
            self._first[name] = seen.get(name, chart.updated)
        charts = {name: chart for name, chart in page.charts.items() if chart.updated > self._first[name]}
        if not charts:
            message = f"{self._url}: no chart was collected again since the first pass; the next pass reads its charts"
            raise ReaderError(Reason.NO_DATA, message)
        return ChartPage(charts, page.errors)


def round_of(page: ChartPage, lane: Lane) -> Round:
    """Return the samples of a page and lane; pure."""
    newest = _newest(page)
    groups = group_gpus(page.charts)
    if lane is Lane.STATIC:
        samples = [
            _sample(_view(group), ChartReadings({"gpu_name": product_name(group)}, (), None), lane, newest)
            for group in groups
        ]
    else:
        samples = [_sample(None, map_host(page.charts, newest), lane, newest)]
        samples += [_sample(_view(group), map_gpu(group, newest), lane, newest) for group in groups]
    return Round(samples=tuple(samples), errors=tuple(page.errors[:20]))


def _newest(page: ChartPage) -> int:
    return max(chart.updated for chart in page.charts.values())


def _sample(view: View | None, found: ChartReadings, lane: Lane, newest: int) -> Sample:
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
    """Return the view of a GPU, identified by its UUID or, for Netdata only, by nvidia-smi's index."""
    if group.uuid:
        return View(kind=ViewKind.GPU, side=Side.HOST, uuid=group.name)
    index = int(group.name.removeprefix("gpu"))
    return View(kind=ViewKind.GPU, side=Side.HOST, instance=f"netdata/{group.name}", index=index)
