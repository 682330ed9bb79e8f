"""The metrics page of the cluster collector: leadership, state of its copies, and its sending to the hub."""

from gpufleet.delivery.export import QueueStats, SendStats
from gpufleet.exporters.agent_page import add_queue_stats, add_send_stats
from gpufleet.exporters.exposition import MetricsPage, PageFormat, format_labels
from gpufleet.model.collector import CollectorStatus
from gpufleet.model.kubernetes import CopyState
from gpufleet.model.time import NANOS

_START = "gpufleet_cluster_agent_start_timestamp_seconds"

_COPIES = (
    ("gpufleet_cluster_agent_copy_objects", "Objects in the copy of a resource"),
    ("gpufleet_cluster_agent_copy_rejected_objects", "Present objects of a resource that could not be decoded"),
    ("gpufleet_cluster_agent_copy_state", "1 for the present state of the copy of a resource, 0 for other states"),
    (
        "gpufleet_cluster_agent_copy_current_timestamp_seconds",
        "Last time at which the copy of a resource was known to be current, since 1970; now for a synced copy",
    ),
)


def render_cluster_page(
    status: CollectorStatus,
    send: SendStats | None,
    queue: QueueStats | None,
    *,
    now_ns: int,
    syntax: PageFormat = PageFormat.TEXT,
) -> bytes:
    """Return the page.

    Args:
        status: state of the collector.
        send, queue: of its delivery; None without a hub.
        now_ns: time of the page, nanoseconds since 1970.
        syntax: format of the page.
    """
    page = MetricsPage()
    own = format_labels({"replica": status.replica})
    for family, help_, value in (
        (_START, "When the collector started, since 1970", status.started_at / NANOS),
        ("gpufleet_cluster_agent_leader", "Whether this replica reports objects", int(status.is_leader)),
        ("gpufleet_cluster_agent_queued_walks", "Pods whose owner chain is being resolved", status.queued_walks),
    ):
        page.declare(family, "gauge", help_, "seconds" if family.endswith("_seconds") else "")
        page.add(family, own, value)
    objects, rejected, state, current = (family for family, _ in _COPIES)
    for family, help_ in _COPIES:
        page.declare(family, "gauge", help_, "seconds" if family.endswith("_seconds") else "")
    for copy in status.copies:
        names = {"replica": status.replica, "resource": copy.resource}
        labels = format_labels(names)
        page.add(objects, labels, copy.objects)
        page.add(rejected, labels, copy.rejected)
        for one in CopyState:
            page.add(state, format_labels({**names, "state": one.value}), int(one is copy.state))
        if copy.state is not CopyState.STARTING:
            page.add(current, labels, (now_ns if copy.state is CopyState.SYNCED else copy.since) / NANOS)
    if send is not None:
        add_send_stats(page, own, send)
    if queue is not None:
        add_queue_stats(page, own, queue)
    return page.encode(syntax)
