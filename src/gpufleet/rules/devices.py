"""Series of devices under gpufleet's own names, without duplicates of scrapers."""

import msgspec

from gpufleet.dialects.native import PREFIX
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.rules.promql import Sources, max_by, scraped

DEVICE = ("cluster", "node", "uuid", "pci_address", "kind", "side", "device_instance")
"""Labels that identify a device of a node."""

SUBJECT = (*DEVICE, "namespace", "name")
"""Labels that identify a device of a node, or of a virtual machine `namespace`/`name`."""

VM_NAME = {"name": ("vm_name",)}
"""Source of the name of a virtual machine."""

STATIC_WINDOW = "15m"
"""Range for readings that are pushed every ten minutes."""


class AgentSeries(msgspec.Struct, frozen=True):
    """Queries of agents' series.

    Attributes:
        honor_labels: whether all scrapes keep the agents' labels, so that no label is renamed to `exported_*`.
    """

    honor_labels: bool = False

    def scraped(self, *labels: str) -> dict[str, tuple[str, ...]]:
        """Return the sources of labels that a scrape can rename; none if all scrapes keep them."""
        return {} if self.honor_labels else scraped(*labels)

    def per_device(
        self,
        family: str,
        matchers: str = "",
        *labels: str,
        window: str = "",
        function: str = "last_over_time",
        offset: str = "",
        sources: Sources | None = None,
    ) -> str:
        """Return the greatest value of a family for each device.

        Devices of virtual machines get the labels `namespace` and `name`. On other devices, these labels would be those
        of a target, a holder or a product, and are removed.

        Args:
            family: name of the family.
            matchers: matchers of the selector.
            labels: further labels of the result.
            window: range of `function`; empty for present values.
            function: function of a range.
            offset: age of the values; empty for present values.
            sources: sources of further labels that have another name in the family.
        """

        def select(own: str) -> str:
            selector = f"{family}{{{','.join(filter(None, (own, matchers)))}}}"
            if window:
                return f"{function}({selector}[{window}])"
            return f"{selector} offset {offset}" if offset else selector

        device = (*DEVICE, *labels)
        renamed = dict(sources or {})
        if self.honor_labels:
            outside = [max_by(device, select('vm_name=""'), renamed)]
        else:  # Replacing labels is the most expensive part of a rule: most series do without.
            outside = [
                max_by(device, select('vm_name="",exported_node=""'), renamed),
                max_by(device, select('vm_name="",exported_node!=""'), renamed | self.scraped("node")),
            ]
        names = renamed | self.scraped("node", "namespace") | VM_NAME  # `name` is read before it is replaced
        inside = max_by((*SUBJECT, *labels), select('vm_name!=""'), names)
        return "\nor\n".join((*outside, inside))

    def metric_per_device(self, metric: str, matchers: str = "", *labels: str) -> str:
        """Return `per_device` of a metric of the catalogue."""
        window = STATIC_WINDOW if CATALOGUE[metric].lane is Lane.STATIC else ""
        return self.per_device(PREFIX + metric, matchers, *labels, window=window)


def device_series(metric: str) -> str:
    """Return the name of the recorded series of each device."""
    return f"gpu:{PREFIX}{metric}:max"
