"""Which pod a series says that its device is held by. Pure.

dcgm-exporter writes the workload's `pod`, `namespace` and `container` into the series of a GPU that is held. A
Prometheus that finds its targets in Kubernetes gives every series of a target the same labels, of the exporter's own
pod; unless it is told `honor_labels: true`, what the exporter wrote is then called `exported_pod`, and a series of a
GPU that nobody holds has the exporter's pod alone (seen with Prometheus 2.42).
"""

from collections.abc import Mapping

from gpufleet.model.holding import Holder, HolderKind
from gpufleet.model.text import clean

MAX_NAME = 253
"""Of a name in Kubernetes."""

_PLAIN, _EXPORTED = "", "exported_"


def pod_of(labels: Mapping[str, str], *, plain: bool) -> Holder | None:
    """Return the pod that holds the device, or None where the labels do not name one.

    Args:
        labels: of a series.
        plain: whether `pod` and `namespace` are the workload's, too; else they may be the exporter's own.
    """
    for prefix in (_EXPORTED, _PLAIN) if plain else (_EXPORTED,):
        name, namespace = labels.get(f"{prefix}pod", ""), labels.get(f"{prefix}namespace", "")
        if _is_name(name) and _is_name(namespace):
            uid = labels.get(f"{prefix}pod_uid", "")
            identity = uid if _is_name(uid) else f"{namespace}/{name}"
            return Holder(kind=HolderKind.POD, id=identity[:MAX_NAME], name=name, namespace=namespace)
    return None


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text == clean(text)
