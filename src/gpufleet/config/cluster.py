"""Configuration of the cluster collector."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpufleet.config.agent import HubClientConfig, Name, SpoolConfig, default_state, parse_listen
from gpufleet.config.kubernetes import ApiConfig, Patterns
from gpufleet.config.load import InvalidValueError
from gpufleet.config.tls import TlsConfig, check_exposure

ENV_PREFIX = "GPUFLEET_CLUSTER_AGENT_"
"""Prefix of the collector's environment variables."""

ObjectName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")]


def default_replica(env: Mapping[str, str], host_name: str) -> str:
    """Return the default name of a replica: its pod's name.

    Outside a pod it has a suffix: the agent of the same machine has the plain host name.
    """
    if "KUBERNETES_SERVICE_HOST" in env:
        return env.get("POD_NAME") or host_name
    return f"{host_name}-cluster-agent"


class LeaseConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Leader election among several replicas by a Lease, the only object that the collector writes.

    Attributes:
        enabled: whether the replicas elect a leader. Without it there must be only one replica.
        namespace: namespace of the Lease, such as `gpufleet`. None means the namespace of the collector's pod.
        name: name of the Lease.
    """

    enabled: bool = True
    namespace: ObjectName | None = None
    name: ObjectName = "gpufleet-cluster-agent"


class CollectConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Collected objects, and the labels and annotations that are sent with them.

    A name that ends with `*` stands for all names with this beginning. Values are cut after 256 characters; an object
    has at most 64 labels and 64 annotations.

    Attributes:
        pods: collect pods with GPU requests or resource claims.
        owners: resolve the owners of pods.
        resource_slices: collect ResourceSlices of GPU drivers (DRA).
        resource_claims: collect ResourceClaims with allocated GPUs (DRA).
        virtual_machines: collect VirtualMachineInstances of KubeVirt with devices.
        node_labels: labels of nodes in addition to the default ones, such as `team.example.com/*`.
        pod_labels: labels of pods in addition to the default ones, such as `cost-centre`.
        pod_annotations: annotations of pods, such as `example.com/project`.
        vmi_labels: labels of virtual machines in addition to the default ones, such as `cost-centre`.
        vmi_annotations: annotations of virtual machines in addition to the default ones, such as `example.com/project`.
    """

    pods: bool = True
    owners: bool = True
    resource_slices: bool = True
    resource_claims: bool = True
    virtual_machines: bool = True
    node_labels: Patterns = ()
    pod_labels: Patterns = ()
    pod_annotations: Patterns = ()
    vmi_labels: Patterns = ()
    vmi_annotations: Patterns = ()


class ClusterAgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cluster collector.

    Attributes:
        cluster: id of the cluster, such as `prod-1`: that of its agents and of its registration at the hub. Required
            with a hub.
        replica: name of this replica, unique among the senders of the cluster. By default the pod's name (`POD_NAME`,
            or the host name), and outside a pod the host name with `-cluster-agent`.
        listen: address and port of the HTTP API with `/metrics`; with port 0 the kernel chooses.
        insecure_listen: allow listening beyond loopback without TLS or token.
        token_file: file with the token that clients must send, such as `/etc/gpufleet/cluster-agent.token`; None means
            that no token is required.
        state: state folder; the collector uses `cluster-agent/` in it.
        log_level: minimum severity of logged messages.
        tls, api, lease, collect, hub, spool: each a table of its own.
    """

    cluster: Name | None = None
    replica: Name = msgspec.field(default_factory=lambda: default_replica(os.environ, socket.gethostname()))
    listen: str = "127.0.0.1:9480"
    insecure_listen: bool = False
    token_file: str | None = None
    state: str = msgspec.field(default_factory=lambda: default_state(os.environ, os.getuid()))
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tls: TlsConfig = TlsConfig()
    api: ApiConfig = ApiConfig()
    lease: LeaseConfig = LeaseConfig()
    collect: CollectConfig = CollectConfig()
    hub: HubClientConfig = HubClientConfig()
    spool: SpoolConfig = SpoolConfig()

    def __post_init__(self) -> None:
        """Refuse a hub without a cluster id, unprotected listening beyond loopback, and an empty state folder."""
        host, _ = parse_listen(self.listen)
        if not self.insecure_listen:
            missing = [] if self.token_file else ["token_file"]
            check_exposure(self.listen, host, missing + ([] if self.tls.is_on else ["[tls]"]))
        if self.hub.url is not None and self.cluster is None:
            raise InvalidValueError("cluster", "must be set with hub.url: the id that the cluster's agents use")
        if not self.state:
            raise InvalidValueError("state", "must be the path of a folder")

    @property
    def folder(self) -> Path:
        """Folder of the collector's own files."""
        return Path(self.state, "cluster-agent")
