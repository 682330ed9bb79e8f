"""Who holds the devices of machines, as it was told last."""

from collections.abc import Sequence

from gpufleet.model.holding import Holder, HolderKind, Holding, Share, Verdict
from gpufleet.stores.clickhouse.client import Handle

_OPEN = """
SELECT machine, view, holder_kind, holder_id, holder_name, holder_namespace, parent_kind, parent_id, parent_name,
    parent_namespace, share, toUnixTimestamp64Nano(since), methods, verdict
FROM holdings FINAL
WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND until IS NULL
ORDER BY machine, view, since, holder_id
"""


def fetch_holdings(handle: Handle, cluster: str, machines: Sequence[str]) -> dict[str, tuple[Holding, ...]]:
    """Ask for every holding of each machine that has not ended."""
    found: dict[str, list[Holding]] = {}
    rows = handle.query(_OPEN, parameters={"cluster": cluster, "machines": list(machines)}).result_rows
    for machine, view, *words, share, since, methods, verdict in rows:
        holding = Holding(
            view=view,
            holder=_holder(words[:4]),
            parent=_holder(words[4:]) if words[4] else None,
            share=Share(share),
            since=since,
            methods=tuple(methods),
            verdict=Verdict(verdict),
        )
        found.setdefault(machine, []).append(holding)
    return {machine: tuple(holdings) for machine, holdings in found.items()}


def _holder(words: Sequence[str]) -> Holder:
    kind, id_, name, namespace = words
    return Holder(kind=HolderKind(kind), id=id_, name=name, namespace=namespace)
