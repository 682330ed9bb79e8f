"""Labels of holders, for every exporter."""

import msgspec

from gpufleet.dialects.otel_holders import MAX_POD_LABELS
from gpufleet.exporters.exposition import prometheus_name
from gpufleet.fleet.attribution.reported import is_certain, may_label
from gpufleet.model.holdings import DeviceHolders, Holder, HolderKind, HolderState, Holding

HOLDER_INFO, HOLDER_STATE = "gpufleet_gpu_holder_info", "gpufleet_gpu_holder_state"

HOLDER_HELP = {
    HOLDER_INFO: "Holder of a device, one series per holder and container; always 1",
    HOLDER_STATE: "Whether the holders of a device are known: 1 for the current state, 0 for the others",
}

SERIES_LABELS = ("namespace", "pod", "container", "job_id")
"""Labels of `series_labels`."""


def holder_labels(holding: Holding) -> dict[str, str]:
    """Return the labels of a holding for `gpufleet_gpu_holder_info`; unknown ones are left out."""
    holder = holding.holder
    labels = {
        "holder_kind": str(holder.kind),
        "holder_id": holder.id,
        "holder_name": holder.name,
        **join_labels(holding),
        "user": holder.user,
        "account": holder.account,
        "queue" if holder.kind is HolderKind.POD else "partition": holder.queue,
        "qos": holder.qos,
        "array_job_id": holder.array_job,
        "array_task_id": holder.array_task,
        "slurm_cluster": holder.slurm_cluster,
        "owner_kind": holder.owners[-1].kind if holder.owners else "",
        "owner_name": holder.owners[-1].name if holder.owners else "",
        "share": str(holding.share),
        "claim": holding.claim,
        "verdict": str(holding.verdict),
    }
    return {name: value for name, value in labels.items() if value}


def join_labels(holding: Holding) -> dict[str, str]:
    """Return the labels that name a holder on other series: its pod, container, job or virtual machine."""
    labels: dict[str, str] = {}
    for holder in (holding.parent, holding.holder):
        if holder is not None:
            labels |= _names(holder)
    if holding.container:
        labels["container"] = holding.container
    return labels


def series_labels(holding: Holding) -> dict[str, str]:
    """Return the labels that `[metrics] holder_labels` adds to the series of a device; unknown ones are left out."""
    names = join_labels(holding)
    return {name: names[name] for name in SERIES_LABELS if names.get(name)}


def pod_metadata(holding: Holding) -> dict[str, str]:
    """Return the UID and the labels of a pod as dcgm-exporter does: `pod_uid`, and each label under its own name.

    Other characters than letters, digits and `_` become `_`. Of two labels with one name then, and of more than
    `MAX_POD_LABELS` labels, the first by their keys are kept.
    """
    if holding.holder.kind is not HolderKind.POD:
        return {}
    found = {"pod_uid": "" if "/" in holding.holder.id else holding.holder.id}
    for key, text in sorted(holding.holder.labels.items())[:MAX_POD_LABELS]:
        name = prometheus_name(key)
        if name and not name.startswith("__"):
            found.setdefault(f"_{name}" if name[0].isdigit() else name, text)
    return {name: text for name, text in found.items() if text}


def holder_at(holders: DeviceHolders | None, at: int) -> Holding | None:
    """Return the only holding of a device if it had begun at an instant in nanoseconds since 1970, or None."""
    holding = only_holder(holders)
    return holding if holding is not None and may_label(holding, at) else None


def only_holder(holders: DeviceHolders | None) -> Holding | None:
    """Return the holding of a device with exactly one holder that no evidence contradicts, or None.

    It is None as well if a source that does not answer could report another holder. Several containers of one pod are
    one holder; its holding then names no container.
    """
    if holders is None or holders.state is not HolderState.HELD:
        return None
    certain = [one for one in holders.holdings if is_certain(one)]
    if not certain or len({(one.holder.kind, one.holder.id) for one in holders.holdings}) > 1:
        return None
    if len(certain) == 1:
        return certain[0]
    since = min(one.since for one in certain)
    return msgspec.structs.replace(certain[0], container="", container_id="", since=since)


def _names(holder: Holder) -> dict[str, str]:
    match holder.kind:
        case HolderKind.POD:
            return {"namespace": holder.namespace, "pod": holder.name, "pod_uid": "" if "/" in holder.id else holder.id}
        case HolderKind.JOB:
            return {"job_id": holder.id, "job_name": holder.name}
        case HolderKind.VM:
            return {"vm_uid": "" if "/" in holder.id else holder.id, "vm_name": holder.name}
        case HolderKind.CONTAINER:
            return {"container_id": holder.id, "container": holder.name}
        case _:
            return {"allocation": holder.id}
