"""How things stand with many machines at once: which views were told of when, and whether they told a number."""

from collections.abc import Sequence

from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import PCI_READER
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import Sample
from gpufleet.model.stored import KnownGpus, Standing, StoredSample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.declared import ON_BUS
from gpufleet.stores.clickhouse.views import fetch_views

UNNAMED = View(kind=ViewKind.GPU, side=Side.HOST, instance="").key
"""How the key of a GPU begins that is known by its place in a list only."""


_STANDINGS = """
SELECT machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), toUnixTimestamp64Nano(received_at), provenance,
    tells
FROM latest FINAL WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
ORDER BY machine, view, reader, lane
"""


_VIEW = "cityHash64(view)"
"""Views of one machine are told apart by 64 bits of their keys: counting millions of texts takes longer."""

_REPORTING = f"""
SELECT cluster, sum(if(named > 0, named, unnamed)) FROM (
    SELECT cluster, uniqExactIf({_VIEW}, NOT startsWith(view, '{UNNAMED}')) AS named,
        uniqExactIf({_VIEW}, startsWith(view, '{UNNAMED}')) AS unnamed
    FROM latest
    WHERE startsWith(view, '{ViewKind.GPU}/') AND received_at >= fromUnixTimestamp64Nano({{since:Int64}}, 'UTC')
        AND received_at <= fromUnixTimestamp64Nano({{until:Int64}}, 'UTC') AND tells
    GROUP BY cluster, machine)
GROUP BY cluster
"""  # noqa: S608 - the names are ours; what is asked for is bound


TOLD_TOGETHER_SECONDS = 1200
"""What a machine told of longer before what it told last is not there any more: twice the longest usual lane."""

_KNOWN = f"""
SELECT cluster, sum(if(named > 0, named, unnamed)) FROM (
    SELECT cluster, machine, groupArray({_VIEW}) AS views, groupArray(toUnixTimestamp(received_at)) AS at,
        groupArray(startsWith(view, '{UNNAMED}')) AS bare, arrayMax(at) - {TOLD_TOGETHER_SECONDS} AS since,
        arrayUniq(arrayFilter((v, t, b) -> t >= since AND NOT b, views, at, bare)) AS named,
        arrayUniq(arrayFilter((v, t, b) -> t >= since AND b, views, at, bare)) AS unnamed
    FROM latest
    WHERE startsWith(view, '{ViewKind.GPU}/') AND reader != '{PCI_READER}'
        AND machine NOT IN {{without:Array(String)}}
    GROUP BY cluster, machine)
GROUP BY cluster
"""  # noqa: S608 - as above


_ON_BUSES = f"""
SELECT cluster, sum(gpus) FROM (
    SELECT cluster, machine, {ON_BUS} AS gpus
    FROM inventory WHERE machine NOT IN {{without:Array(String)}}
    GROUP BY cluster, machine)
GROUP BY cluster
"""  # noqa: S608 - as above


_ON_BUSES_OF = f"""
SELECT machine, {ON_BUS} FROM inventory WHERE cluster = {{cluster:String}} AND machine IN {{machines:Array(String)}}
GROUP BY machine
"""  # noqa: S608 - as above


def fetch_gpus_on_buses(handle: Handle, cluster: str, machines: Sequence[str]) -> dict[str, int]:
    """Ask how many GPUs are on the buses of machines; one that never told of its buses is left out."""
    parameters = {"cluster": cluster, "machines": list(machines)}
    return dict(handle.query(_ON_BUSES_OF, parameters=parameters).result_rows)


def fetch_known_gpus(handle: Handle, without: Sequence[str]) -> dict[str, KnownGpus]:
    """Ask how many GPUs the machines of each cluster have, as drivers and as buses tell, but for some machines."""
    parameters = {"without": list(without)}
    nvml = dict(handle.query(_KNOWN, parameters=parameters).result_rows)
    pci = dict(handle.query(_ON_BUSES, parameters=parameters).result_rows)
    return {cluster: KnownGpus(pci=pci.get(cluster), nvml=nvml.get(cluster, 0)) for cluster in sorted({*nvml, *pci})}


def fetch_reporting_gpus(handle: Handle, since: int, until: int) -> dict[str, int]:
    """Ask how many GPUs of each cluster told a number between the two; a row that a newer one replaces has told it too.

    GPUs known by their place in a list only count where no GPU with a name told a number: they may be the same.
    """
    return dict(handle.query(_REPORTING, parameters={"since": since, "until": until}).result_rows)


def fetch_standings(handle: Handle, cluster: str, machines: Sequence[str]) -> dict[str, tuple[Standing, ...]]:
    """Ask how things stand with machines of a cluster; one that was never stored is left out."""
    parameters = {"cluster": cluster, "machines": list(machines)}
    views = fetch_views(handle, parameters)
    found: dict[str, list[Standing]] = {}
    for machine, key, reader, lane, measured_at, received_at, provenance, tells in handle.query(
        _STANDINGS, parameters=parameters
    ).result_rows:
        sample = Sample(
            view=views[machine, key, reader] if key else None,
            reader=reader,
            lane=Lane(lane),
            measured_at=measured_at,
            values={},
            provenance=Provenance(provenance),
        )
        one = Standing(stored=StoredSample(sample=sample, received_at=received_at), tells=tells)
        found.setdefault(machine, []).append(one)
    return {machine: tuple(standings) for machine, standings in found.items()}
