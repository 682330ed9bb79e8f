"""Rules about identity: duplicates, clones, replaced GPUs, and contradicting holders or tenants. Pure.

Evidence has numbers only: a duplicate or a holder on another machine can belong to another tenant.
"""

from gpufleet.fleet.rules.logic import DAY_SECONDS, at_least, in_window, over, under
from gpufleet.fleet.rules.rule import FindingRule, RuleFamily, Threshold
from gpufleet.model.finding import RuleScope, Severity

_FAMILY = RuleFamily.IDENTITY

IDENTITY_RULES = (
    FindingRule(
        id="cluster.identity_conflict",
        scope=RuleScope.CLUSTER,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("kubernetes_uids",),
        condition=lambda facts, _: over(facts["kubernetes_uids"], 1),
        pending_seconds=360,
        explanation="Collectors of several Kubernetes clusters report as one cluster: the UIDs of their namespaces "
        "`kube-system` differ. A cluster that was rebuilt under the same name does not fire: the old collector stops.",
        action="Compare the UIDs in `/v1/clusters`, and give each Kubernetes cluster its own id and token.",
        unknown_when="No collector reported within 5 min, none could read the UID, or the store does not answer.",
    ),
    FindingRule(
        id="node.identity_conflict",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("identity_conflict",),
        condition=lambda facts, _: at_least(facts["identity_conflict"], 1),
        explanation="The machine and another machine of the cluster have the same id, such as the machine-id, and both "
        "report: a copied image or a shared id.",
        action="Give the clone a machine-id of its own, then restart its agent.",
        unknown_when="No machine with the id reports.",
        can_be_hidden=False,  # the finding about the clone closes when the clone no longer reports
    ),
    FindingRule(
        id="node.duplicate_agent",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("agents",),
        condition=lambda facts, _: over(facts["agents"], 1),
        pending_seconds=120,
        explanation="Several senders report the same boot of the same machine under different names.",
        action="Stop the agents that are not needed, and keep the spool of the remaining agent.",
        unknown_when="The machine reports no machine-id or no boot id.",
    ),
    FindingRule(
        id="sender.identity_conflict",
        scope=RuleScope.SENDER,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("shared_epoch_batches", "uptime_seconds"),
        condition=lambda facts, limits: in_window(
            at_least(facts["shared_epoch_batches"], limits["batches"]), facts["uptime_seconds"], DAY_SECONDS
        ),
        thresholds=(Threshold("batches", 3, "batches", "Rejected batches within 24 h."),),
        explanation="Two machines number their batches under one epoch: a copied image with a spool, or a restored "
        "snapshot.",
        action="Remove the spool folder from the image, and restart the agent of the clone.",
        unknown_when="The hub started less than 24 h before, and has rejected fewer batches since.",
    ),
    FindingRule(
        id="gpu.duplicate_uuid",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("machines",),
        condition=lambda facts, _: over(facts["machines"], 1),
        pending_seconds=120,
        explanation="Several machines report the same GPU at the same time. A move does not fire: the old machine "
        "stops reporting the GPU.",
        action="Look for a cloned virtual machine, or an exporter that reports another host's GPUs.",
        unknown_when="The GPU has no UUID.",
    ),
    FindingRule(
        id="gpu.replaced",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.INFO,
        inputs=("replaced_seconds",),
        condition=lambda facts, limits: under(facts["replaced_seconds"], limits["window_seconds"]),
        thresholds=(Threshold("window_seconds", 86400, "s", "Time for which the finding stays open."),),
        explanation="Another GPU was reported in this slot before.",
        action="Confirm the replacement with the hardware team. `/v1/gpus/changes` has the earlier GPU.",
        unknown_when="The inventory of the slot is unknown.",
    ),
    FindingRule(
        id="gpu.holder_conflict",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("contradicting_holders",),
        condition=lambda facts, _: at_least(facts["contradicting_holders"], 1),
        pending_seconds=120,
        explanation="A process uses the GPU that a scheduler declares for another holder.",
        action="Run `gpufleet who` on the machine: it names the process and the declared holder.",
        unknown_when="The holders of the GPU are unknown.",
    ),
    FindingRule(
        id="allocation.tenant_overlap",
        scope=RuleScope.ALLOCATION,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("overlapping_tenants",),
        condition=lambda facts, _: over(facts["overlapping_tenants"], 0),
        explanation="A device or machine of the allocation is allocated to another tenant at the same time.",
        action="Close the wrong allocation. Until then neither tenant sees the events of the shared device.",
        unknown_when="The devices of the allocation are unknown.",
    ),
)
