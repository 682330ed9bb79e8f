"""Pages of agents, as an HTTP request gets them."""

from collections.abc import Collection

from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.snapshot import Snapshot
from gpufleet.runtime import run_to_end


def agent_page(
    snapshot: Snapshot, stats: AgentStats, dialects: Collection[str] = ("gpufleet",), *, openmetrics: bool = False
) -> bytes:
    """Return the page of one snapshot."""
    return shown(AgentPages(dialects), snapshot, stats, openmetrics=openmetrics)


def shown(pages: AgentPages, snapshot: Snapshot, stats: AgentStats, *, openmetrics: bool = False) -> bytes:
    """Update the pages and return one."""
    pages.take(snapshot)
    run_to_end(pages.update(snapshot, stats))
    return pages.page(openmetrics=openmetrics)
