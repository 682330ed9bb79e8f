"""The page that an agent serves."""

from collections.abc import Collection, Generator

from gpufleet.agent.stats import AgentStats
from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.exporters.agent_stats import add_stats
from gpufleet.exporters.all_smi import add_all_smi
from gpufleet.exporters.clock_counts import ClockCounts
from gpufleet.exporters.dcgm_exporter import add_dcgm
from gpufleet.exporters.exposition import Page, Section, Syntax, labelled, write_page
from gpufleet.exporters.kubevirt import add_kubevirt
from gpufleet.exporters.nvidia_gpu_exporter import add_nvidia_gpu_exporter
from gpufleet.exporters.prometheus import NativePage
from gpufleet.model.snapshot import Snapshot

WRITERS = {
    ALL_SMI.name: add_all_smi,
    NVIDIA_GPU_EXPORTER.name: add_nvidia_gpu_exporter,
    KUBEVIRT.name: add_kubevirt,
}
"""Dialects whose families need nothing but a snapshot."""


class AgentPages:
    """The snapshot under each dialect's names, and the agent's own figures; again and again.

    Attributes:
        remembers: whether every snapshot has to be taken in, asked for or not: some families count over a window.
    """

    def __init__(self, dialects: Collection[str] = (NATIVE.name,)) -> None:
        """Take the names of the dialects."""
        self._dialects = tuple(dialects)
        self._native = NativePage() if NATIVE.name in dialects else None
        self._clocks = ClockCounts() if DCGM_EXPORTER.name in dialects else None
        self.remembers = self._clocks is not None
        self._sections: list[Section] = []

    def take(self, snapshot: Snapshot) -> None:
        """Take note of a snapshot, which is not older than the one before."""
        if self._clocks is not None:
            self._clocks.take(snapshot)

    def update(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Write the newest snapshot, in small steps; until they are done, pages are as they were before."""
        sections: list[Section] = []
        if self._native is not None:
            yield from self._native.update(snapshot)
            sections += self._native.sections()
        page = Page()
        yield from add_others(page, snapshot, self._dialects, self._clocks)
        yield
        add_stats(page, labelled({"node": snapshot.node.name}), stats)
        self._sections = [*sections, *page.sections()]

    def page(self, *, openmetrics: bool) -> bytes:
        """Return the page."""
        return write_page(self._sections, Syntax.OPENMETRICS if openmetrics else Syntax.TEXT)


def add_others(
    page: Page, snapshot: Snapshot, dialects: Collection[str], clocks: ClockCounts | None
) -> Generator[None, None, None]:
    """Add a snapshot under other projects' names, in small steps."""
    if DCGM_EXPORTER.name in dialects:
        yield
        add_dcgm(page, snapshot, clocks)
    for name, add in WRITERS.items():
        if name in dialects:
            yield
            add(page, snapshot)
