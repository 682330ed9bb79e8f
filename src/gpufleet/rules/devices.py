"""Series of devices under gpufleet's own names, without duplicates of scrapers."""

from gpufleet.dialects.native import PREFIX
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.rules.promql import max_by, scraped

DEVICE = ("cluster", "node", "uuid", "pci_address", "kind", "side", "device_instance")
"""Labels that identify a device of a node."""

SUBJECT = (*DEVICE, "namespace", "name")
"""Labels that identify a device of a node, or of a virtual machine `namespace`/`name`."""

VM_NAME = {"name": ("vm_name",)}
"""Source of the name of a virtual machine."""

STATIC_WINDOW = "15m"
"""Range for readings that are pushed every ten minutes."""


def per_device(
    family: str,
    matchers: str = "",
    *labels: str,
    window: str = "",
    function: str = "last_over_time",
    offset: str = "",
) -> str:
    """Return the greatest value of a family for each device.

    Devices of virtual machines get the labels `namespace` and `name`. On other devices, these labels would be those of
    a target, a holder or a product, and are removed.

    Args:
        family: name of the family.
        matchers: matchers of the selector.
        labels: further labels of the result.
        window: range of `function`; empty for present values.
        function: function of a range.
        offset: age of the values; empty for present values.
    """

    def select(own: str) -> str:
        selector = f"{family}{{{','.join(filter(None, (own, matchers)))}}}"
        if window:
            return f"{function}({selector}[{window}])"
        return f"{selector} offset {offset}" if offset else selector

    device = (*DEVICE, *labels)
    # Replacing labels is the most expensive part of a rule: most series do without.
    outside = max_by(device, select('vm_name="",exported_node=""'))
    renamed = max_by(device, select('vm_name="",exported_node!=""'), scraped("node"))
    inside = max_by((*SUBJECT, *labels), select('vm_name!=""'), scraped("node", "namespace") | VM_NAME)
    return f"{outside}\nor\n{renamed}\nor\n{inside}"


def metric_per_device(metric: str, matchers: str = "", *labels: str) -> str:
    """Return `per_device` of a metric of the catalogue."""
    window = STATIC_WINDOW if CATALOGUE[metric].lane is Lane.STATIC else ""
    return per_device(PREFIX + metric, matchers, *labels, window=window)


def device_series(metric: str) -> str:
    """Return the name of the recorded series of each device."""
    return f"gpu:{PREFIX}{metric}:max"
