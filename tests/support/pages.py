"""Pages of agents, as a request would get them."""

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
    """Bring pages up to date, and return one."""
    pages.take(snapshot)
    run_to_end(pages.update(snapshot, stats))
    return pages.page(openmetrics=openmetrics)
