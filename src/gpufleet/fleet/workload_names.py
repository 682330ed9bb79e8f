"""Names of the workload of a pod, from its owner chain."""

from collections.abc import Sequence

from gpufleet.model.holdings import Owner
from gpufleet.model.kubernetes import WorkloadNames

_FIELDS = {
    ("batch", "Job"): "job",
    ("apps", "StatefulSet"): "statefulset",
    ("apps", "Deployment"): "deployment",
}


def name_workload(owners: Sequence[Owner], queue: str = "") -> WorkloadNames:
    """Return the names of a workload.

    The nearest Job, StatefulSet or Deployment of the chain is named, and no other. The owner is the last of the chain:
    for a Job of a CronJob, `job` is the Job and the owner is the CronJob.

    Args:
        owners: the nearest first.
        queue: queue of a batch scheduler, or empty.
    """
    if not owners:
        return WorkloadNames(queue=queue)
    top = owners[-1]
    named = {}
    for owner in owners:
        group = owner.api_version.rpartition("/")[0]
        if (field := _FIELDS.get((group, owner.kind))) is not None:
            named = {field: owner.name}
            break
    return WorkloadNames(owner_kind=top.kind, owner_name=top.name, queue=queue, **named)
