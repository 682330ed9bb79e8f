"""`gpufleet cluster-agent`: runs the collector of a Kubernetes cluster."""

from typing import Annotated

import typer

from gpufleet.cli.cluster_agent_daemon import start_cluster_agent
from gpufleet.cli.options import CollectorConfigFile


def cluster_agent(
    config: CollectorConfigFile = None,
    hub: Annotated[
        str | None,
        typer.Option("--hub", "--hub-url", metavar="URL", help="Push to this hub, for example http://hub:8470."),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Credentials of the cluster [default: the pod's service account]."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address to listen on [default: 127.0.0.1:9480].")
    ] = None,
    insecure_listen: Annotated[
        bool | None,
        typer.Option("--insecure-listen", help="Allow listening beyond loopback without TLS or a token."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="ID", help="Id of the cluster.")] = None,
    replica: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of this replica [default: the pod's name].")
    ] = None,
    state: Annotated[str | None, typer.Option(metavar="FOLDER", help="Folder of the spool.")] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning or error.")
    ] = None,
) -> None:
    """Read the GPU objects of a Kubernetes cluster, and push them to a hub. Runs until stopped."""
    start_cluster_agent(
        {
            "config": str(config) if config is not None else None,
            "hub": hub,
            "kubeconfig": kubeconfig,
            "listen": listen,
            "insecure_listen": insecure_listen,
            "cluster": cluster,
            "replica": replica,
            "state": state,
            "log_level": log_level,
        }
    )
