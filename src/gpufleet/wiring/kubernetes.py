"""Construction of clients of the Kubernetes API, and of the agent's copy of the pods of its node."""

import functools
from collections.abc import Iterable

from gpufleet.agent.collect.enrichment import PodAccess, PodEnrichment
from gpufleet.cluster.owners import PodOwners
from gpufleet.config.kubernetes import ApiConfig, KubernetesConfig
from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.mirror import ResourceMirror
from gpufleet.holders.kubernetes.owners import OwnerWalk
from gpufleet.holders.kubernetes.parse.fields import LabelSelection
from gpufleet.holders.kubernetes.parse.pods import NO_LABELS, POD_LABELS, PodSelection, parse_pod
from gpufleet.holders.kubernetes.resources import PODS
from gpufleet.ports.clock import Clock

MAX_PODS = 4_096
"""Maximum pods of a node in memory, as for the kubelet's."""


def api_access(api: ApiConfig) -> ApiAccess:
    """Return the credentials of a cluster."""
    return ApiAccess(kubeconfig=api.kubeconfig or "", context=api.context or "", timeout_seconds=api.timeout_seconds)


def allow_list(default: LabelSelection, more: Iterable[str]) -> LabelSelection:
    """Return an allow-list of labels with further names."""
    added = LabelSelection.of(more)
    return LabelSelection(default.names | added.names, (*default.prefixes, *added.prefixes))


def make_enrichment(settings: KubernetesConfig, clock: Clock) -> PodEnrichment:
    """Return what completes the holdings of pods. It connects when it runs and the node's name is known."""
    return PodEnrichment(functools.partial(_open_pods, settings, clock))


def _open_pods(settings: KubernetesConfig, clock: Clock, node: str) -> PodAccess:
    """Return the access to the pods of a node. Only metadata is requested: it has owners, labels and queue.

    Raises:
        ConfigError: if the credentials cannot be read, or lightkube is not installed.
    """
    connection = ApiConnection(api_access(settings))
    selection = PodSelection(
        labels=allow_list(POD_LABELS, settings.pod_labels),
        annotations=allow_list(NO_LABELS, settings.pod_annotations),
        all_pods=True,
    )
    copy = ResourceMirror(
        connection,
        PODS,
        functools.partial(parse_pod, selection=selection),
        clock,
        query={"fieldSelector": f"spec.nodeName={node}"},
        metadata_only=True,
        max_objects=MAX_PODS,
    )
    return PodAccess(copy, PodOwners(OwnerWalk(connection, clock), clock), connection.close)
