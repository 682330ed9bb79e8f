"""Faults of the hub, its registry and its imports by the rule that each of them shows. Pure.

No fault of the simulated fleet shows these rules. A test makes the faults on a hub with a simulated clock, which has
three agents that report every 30 s, and asserts the times.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class HubFault(msgspec.Struct, frozen=True, kw_only=True):
    """Fault of a hub, and the findings that it opens.

    Attributes:
        text: the fault, as a noun phrase.
        opens: minutes from its beginning to the opening of the finding of the rule.
        closes: minutes from its end to the closing.
        others: further rules whose findings it opens.
    """

    text: str
    opens: int
    closes: int
    others: tuple[str, ...] = ()


HUB_FAULTS: Mapping[str, HubFault] = MappingProxyType(
    {
        "hub.not_ingesting": HubFault(
            text="no flushes for 20 min, and a log that is full after 15 min",
            opens=17,
            closes=3,
            others=("hub.log_filling", "hub.flush_lag"),
        ),
        "hub.outage": HubFault(text="no process of the hub for 10 min", opens=11, closes=62),
        "hub.store_unreachable": HubFault(
            text="a store that does not answer for 10 min",
            opens=2,
            closes=3,
            others=("hub.flush_lag", "hub.flush_failing"),
        ),
        "hub.registry_unreachable": HubFault(
            text="a registry that does not answer for 10 min. The finding is visible once it answers again, with its "
            "own times",
            opens=2,
            closes=3,
        ),
        "hub.flush_lag": HubFault(text="no flushes for 5 min", opens=3, closes=3),
        "hub.flush_failing": HubFault(text="a store that fails writes for 1 min", opens=1, closes=62),
        "hub.log_filling": HubFault(
            text="no flushes for 9 min, and a log that is full after 15 min",
            opens=9,
            closes=3,
            others=("hub.flush_lag",),
        ),
        "hub.disk_filling": HubFault(text="a disk with 8 % of free space, for 5 min", opens=2, closes=3),
        "hub.quarantine": HubFault(
            text="a sender with batches that do not fit the store, for 1 min",
            opens=1,
            closes=62,
            others=("hub.flush_failing",),
        ),
        "hub.task_restarts": HubFault(text="a crash of a background task", opens=1, closes=62),
        "hub.rejecting": HubFault(text="4 invalid bodies per minute for 10 min", opens=8, closes=56),
        "hub.schema_drift": HubFault(text="a new metric of dcgm-exporter in remote write", opens=1, closes=62),
        "hub.series_churn": HubFault(
            text="twice as many imported series as the series cache has room for", opens=1, closes=62
        ),
        "cluster.identity_conflict": HubFault(
            text="collectors of two Kubernetes clusters that report as one cluster, until one of them stops",
            opens=7,
            closes=8,
        ),
        "cluster.machine_limit": HubFault(text="9 of at most 10 machines, until one is retired", opens=1, closes=3),
        "allocation.tenant_overlap": HubFault(
            text="two allocations of a machine to two tenants in the registry, as after the restore of a backup",
            opens=1,
            closes=3,
        ),
    }
)
"""Rule id to its fault."""
