"""From groups of targets to machines: which cluster, which node, which page. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.codecs.target_files import TargetGroup
from gpufleet.config.hub_url import check_http_root, check_page_url
from gpufleet.config.load import ImpossibleValueError
from gpufleet.config.pull import ClusterId, DiscoveryConfig
from gpufleet.hub.imported.series import host_of
from gpufleet.hub.imported.written import can_be_called

MAX_TARGETS = 1000
"""Of one list; a hub asks each of them every ten seconds."""

_SCHEMES = ("http", "https")


class Target(msgspec.Struct, frozen=True):
    """A machine's page.

    Attributes:
        cluster, node: whose it is.
        url: of the page, or root of the Netdata.
    """

    cluster: str
    node: str
    url: str


def targets_of(config: DiscoveryConfig, groups: Iterable[TargetGroup]) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    """Return the targets that groups name, and words about each that is left out.

    Labels that are read: `cluster`, `node`, `__scheme__`, `__metrics_path__`. All others are Prometheus' business. A
    node is asked once: of several targets for it the first is taken.
    """
    found: dict[tuple[str, str], Target] = {}
    left_out: list[str] = []
    for group in groups:
        for address in group.targets:
            try:
                target = _target(config, address, group.labels)
            except ImpossibleValueError as error:
                left_out.append(f"{address}: {error.reason}")
                continue
            known = found.setdefault((target.cluster, target.node), target)
            if known.url != target.url:
                left_out.append(
                    f"{address}: node {target.node!r} is asked at {known.url} already: set another label node"
                )
            elif len(found) > MAX_TARGETS:
                del found[target.cluster, target.node]
                left_out.append(f"{address}: there are {MAX_TARGETS} targets already")
    return tuple(found.values()), tuple(left_out)


def _target(config: DiscoveryConfig, address: str, labels: Mapping[str, str]) -> Target:
    """Return one; raises ImpossibleValueError where it cannot be meant."""
    cluster = labels.get("cluster") or config.cluster
    if cluster is None:
        raise ImpossibleValueError("cluster", "neither its label cluster nor the configuration says whose it is")
    try:
        cluster = msgspec.convert(cluster, ClusterId)
    except msgspec.ValidationError:
        raise ImpossibleValueError("cluster", f"its label cluster is {cluster[:64]!r}: no id of a cluster") from None
    node = labels.get("node") or host_of(address)
    if not can_be_called(node):
        raise ImpossibleValueError("node", "it does not tell a name that a machine could have")
    if any(name.startswith("__param_") for name in labels):
        raise ImpossibleValueError("labels", "it has parameters (__param_...), which are not sent")
    scheme = labels.get("__scheme__") or config.scheme
    if scheme not in _SCHEMES or any(sign in address for sign in "/@?#"):
        raise ImpossibleValueError("targets", "it is no host:port of HTTP")
    if config.reads == "netdata":
        url = f"{scheme}://{address}"
        check_http_root("targets", url)
    else:
        path = labels.get("__metrics_path__") or config.path
        if not path.startswith("/"):
            raise ImpossibleValueError("labels", f"its label __metrics_path__ is {path[:64]!r}: no path")
        url = f"{scheme}://{address}{path}"
        check_page_url("targets", url, shows_token=bool(config.token_file) and not config.insecure)
    return Target(cluster, node, url)
