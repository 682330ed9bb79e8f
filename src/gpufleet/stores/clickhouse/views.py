"""How readers describe the views of machines."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.few import fetch_newest
from gpufleet.stores.clickhouse.remembered import Remembered

Views = dict[tuple[str, str, str], View]
"""By machine, key and reader."""

_SELECT = """
SELECT machine, view, reader, kind, side, uuid, pci_address, instance, parent, index,
    toUnixTimestamp64Nano(reported_at)
"""


def fetch_views(handle: Handle, parameters: Mapping[str, Any]) -> Views:
    """Ask how each reader describes the views of `machines` of a `cluster`."""
    return {
        (machine, key, reader): View(
            kind=ViewKind(kind),
            side=Side(side),
            uuid=uuid,
            pci_address=pci_address,
            instance=instance,
            parent=parent,
            index=index,
        )
        for machine, key, reader, kind, side, uuid, pci_address, instance, parent, index, _ in fetch_newest(
            handle, _SELECT, "views", parameters, key=3, rank=itemgetter(-1)
        )
    }


def known_views(
    handle: Handle, remembered: Remembered[Views], may_keep: set[tuple[str, str]], cluster: str, machines: Iterable[str]
) -> Views:
    """Return the same, asking for the machines that are not remembered."""
    subjects = {(cluster, machine) for machine in machines}
    found = remembered.known(subjects)
    wanted = sorted(machine for _, machine in subjects - found.keys())
    if wanted:
        asked: dict[str, Views] = defaultdict(dict)
        for place, view in fetch_views(handle, {"cluster": cluster, "machines": wanted}).items():
            asked[place[0]][place] = view
        for machine, views in asked.items():
            found[cluster, machine] = views
            remembered.keep(may_keep, (cluster, machine), views, len(views))
    return {place: view for views in found.values() for place, view in views.items()}
