"""`gpufleet doctor`: checks a node, a hub on this host or a DCGM host engine, and suggests fixes."""

import asyncio
import contextlib
import datetime as dt
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from gpufleet.cli.fetch import Access, get
from gpufleet.cli.options import (
    CaOption,
    CollectorConfigFile,
    CommandError,
    ConfigFile,
    HubConfigFile,
    HubState,
    Json,
    TokenFileOption,
)

if TYPE_CHECKING:
    from gpufleet.config.agent import AgentConfig
    from gpufleet.doctor import CheckResult
    from gpufleet.doctor.access import LocalAccess
    from gpufleet.doctor.facts import NodeFacts
    from gpufleet.model.snapshot import Snapshot

doctor_app = typer.Typer(
    rich_markup_mode=None,
    invoke_without_command=True,
    help="Check the requirements of this node; `doctor hub` checks a hub or relay, `doctor dcgm` a DCGM host engine, "
    "`doctor cluster-agent` the permissions of a cluster collector.",
)

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what each check proves.")]


@doctor_app.callback()
def node(
    context: typer.Context,
    json: Json = False,
    verbose: Verbose = False,
    config: ConfigFile = None,
    root: Annotated[Path, typer.Option("--root", hidden=True, help="Folder to use as / (for tests).")] = Path("/"),
) -> None:
    """Check the requirements of this node and its agent's access to virtual machines, and suggest fixes.

    Exits with 1 if a check failed. A check that could not run is unknown, not failed.
    """
    if context.invoked_subcommand is None:
        _show(examine_node(root, config), json, verbose)


@doctor_app.command()
def hub(
    json: Json = False,
    verbose: Verbose = False,
    config: HubConfigFile = None,
    state: HubState = None,
    hub: Annotated[
        str | None,
        typer.Option("--hub", metavar="URL", help="URL of the hub [default: the address of the running process]."),
    ] = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Check a running or stopped hub or relay; run this on its host as its user.

    Exits with 1 if a check failed. A check that could not run is unknown, not failed.
    """
    from gpufleet.config.hub import ENV_PREFIX, HubConfig
    from gpufleet.config.load import load
    from gpufleet.doctor.access import LocalAccess
    from gpufleet.doctor.hub import configured_listener, examine_hub, gather_hub, running_listener
    from gpufleet.hub.receive.listener import Listener

    settings = load(HubConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={"state": state})
    listener = running_listener(settings)
    known = listener if isinstance(listener, Listener) else configured_listener(settings)
    url = hub or _url_of(known.address, secure=known.tls)
    access = Access(token_file, ca)
    name = urlsplit(url).hostname if hub else None
    now = dt.datetime.now(dt.UTC)
    facts = gather_hub(settings, lambda path: get(url, path, access), LocalAccess(), now, name, listener)
    _show(examine_hub(facts), json, verbose)


@doctor_app.command()
def dcgm(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="tcp://HOST:PORT, unix:///PATH, vsock://CID:PORT or hybrid-vsock:///PATH:PORT."
        ),
    ],
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check read-only which functions of a DCGM host engine are usable.

    Exits with 1 if a check failed.
    """
    from gpufleet.channels.stream.dialers import make_dialer
    from gpufleet.doctor.dcgm import examine_engine
    from gpufleet.runtime import SystemClock

    try:
        dialer = make_dialer(address)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _show(asyncio.run(examine_engine(address, dialer, SystemClock())), json, verbose)


@doctor_app.command("cluster-agent")
def cluster_agent(
    json: Json = False,
    verbose: Verbose = False,
    config: CollectorConfigFile = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Credentials of the cluster [default: the pod's service account]."),
    ] = None,
) -> None:
    """Check read-only which permissions the collector of a Kubernetes cluster has, with its own credentials.

    Exits with 1 if a check failed. A check that could not run is unknown, not failed.
    """
    _show(examine_cluster(config, kubeconfig), json, verbose)


def examine_cluster(config: Path | None, kubeconfig: str | None) -> "Sequence[CheckResult]":
    """Return the results of the checks of a collector's permissions.

    Args:
        config: the collector's configuration, or None for the default one.
        kubeconfig: credentials of the cluster, or None for those of the configuration.
    """
    from gpufleet.cluster.permissions import required_permissions
    from gpufleet.config.cluster import ENV_PREFIX, ClusterAgentConfig
    from gpufleet.config.load import load
    from gpufleet.doctor.cluster import examine_permissions
    from gpufleet.holders.kubernetes.connection import ApiConnection
    from gpufleet.wiring.cluster import lease_namespace
    from gpufleet.wiring.kubernetes import api_access

    flags = {"api.kubeconfig": kubeconfig}
    settings = load(ClusterAgentConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags=flags)
    namespace = lease_namespace(settings) if settings.lease.enabled else ""

    async def examine() -> "Sequence[CheckResult]":
        connection = ApiConnection(api_access(settings.api))
        try:
            return await examine_permissions(connection, required_permissions(settings), namespace)
        finally:
            await connection.close()

    return asyncio.run(examine())


def _url_of(address: str, *, secure: bool) -> str:
    """Return the URL under which this machine reaches a listener."""
    from gpufleet.config.agent import parse_listen

    host, port = parse_listen(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - replaced
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def examine_node(root: Path, config: Path | None) -> "tuple[CheckResult, ...]":
    """Return the results of the checks of this node.

    Args:
        root: folder to use as /.
        config: the agent's configuration, or None for the default one.
    """
    # Imported on use, so that other commands start faster.
    from gpufleet.channels.local import LocalFiles
    from gpufleet.config.agent import ENV_PREFIX, AgentConfig
    from gpufleet.config.load import load
    from gpufleet.doctor import examine, gather_facts
    from gpufleet.doctor.access import LocalAccess
    from gpufleet.runtime import SystemClock
    from gpufleet.wiring.readers import kubernetes_node

    settings = load(AgentConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={})
    node = kubernetes_node(settings.readers.host, os.environ)
    gathered = gather_facts(LocalFiles(root), LocalAccess(root), SystemClock(), str(settings.folder), node)
    facts = asyncio.run(gathered)
    if root == Path("/"):  # the sources read this machine only
        facts = _with_holders(facts, settings)
    return examine(_with_hub(_with_guests(facts, settings, LocalAccess(root)), settings))


def _with_holders(facts: "NodeFacts", settings: "AgentConfig") -> "NodeFacts":
    """Add the state of each holder source; each is called once. The running agent knows the names without a device."""
    import msgspec

    from gpufleet.model.errors import ConfigError
    from gpufleet.runtime import SystemClock
    from gpufleet.wiring.holders import SOURCES, make_holders

    node = facts.machine.k8s_node_name if facts.machine is not None else None

    async def call() -> dict[str, str]:
        collector = make_holders(settings, SystemClock(), saves=False)
        if collector is None:
            return {}
        try:
            await collector.round(())
            await collector.settle(node or "")
        finally:
            await collector.close()
        return collector.capabilities

    capabilities = asyncio.run(call())
    states = {name: capabilities.get(f"holders_{name}", "disabled") for name in SOURCES}
    if "holders_kubernetes" in capabilities:
        states["kubernetes"] = capabilities["holders_kubernetes"]
    unresolved = None
    if capabilities:
        with contextlib.suppress(CommandError, ConfigError):  # no agent runs here
            snapshot = _agent_snapshot(settings)
            unresolved = snapshot.unresolved
            if "kubernetes" in states:  # it also watches the pods, and reads their owners
                states["kubernetes"] = snapshot.capabilities.get("holders_kubernetes", states["kubernetes"])
    return msgspec.structs.replace(facts, holders=states, unresolved=unresolved)


def _agent_snapshot(settings: "AgentConfig") -> "Snapshot":
    """Return the document of the agent with this configuration. Raises CommandError or ConfigError."""
    from gpufleet.cli.source import take_snapshot

    token = Path(settings.token_file) if settings.token_file else None
    return take_snapshot(_url_of(settings.listen, secure=settings.tls.is_on), None, Access(token))


def _with_guests(facts: "NodeFacts", settings: "AgentConfig", access: "LocalAccess") -> "NodeFacts":
    """Add the running agent's guest state, if guests are configured."""
    import msgspec

    from gpufleet.model.errors import ConfigError

    facts = msgspec.structs.replace(
        facts,
        libvirt_enabled=settings.libvirt.enabled,
        libvirt_socket=access.socket(settings.libvirt.socket),
        guests_described=settings.libvirt.enabled
        or settings.kubevirt.enabled
        or bool(settings.guests)
        or settings.guest_folder is not None,
    )
    if not facts.guests_described:
        return facts
    try:
        snapshot = _agent_snapshot(settings)
    except (CommandError, ConfigError) as error:
        return msgspec.structs.replace(facts, guests_error=str(error))
    capability = snapshot.capabilities.get("guests", "")
    return msgspec.structs.replace(facts, guests=snapshot.guests, guests_capability=capability)


def _with_hub(facts: "NodeFacts", settings: "AgentConfig") -> "NodeFacts":
    """Add the state of the connection to the hub, and the agent's deliveries over it."""
    import msgspec

    from gpufleet.doctor.connection import parse_delivery, probe_hub, stopped_delivery
    from gpufleet.model.errors import ConfigError

    found = probe_hub(settings.hub, cluster=settings.cluster, now=dt.datetime.now(dt.UTC))
    if not found.url:
        return msgspec.structs.replace(facts, hub=found)
    try:
        access = Access(Path(settings.token_file) if settings.token_file else None)
        page = get(_url_of(settings.listen, secure=settings.tls.is_on), "/metrics", access).decode()
        delivery = parse_delivery(page)
    except (CommandError, ConfigError) as error:
        delivery = stopped_delivery(settings, str(error))
    found = msgspec.structs.replace(found, delivery=delivery, at=dt.datetime.now(dt.UTC))
    return msgspec.structs.replace(facts, hub=found)


def _show(checks: "Sequence[CheckResult]", as_json: bool, verbose: bool) -> None:
    """Print the checks; exit with 1 if one failed."""
    if as_json:
        import msgspec

        from gpufleet.cli.output import print_json

        print_json(msgspec.json.encode(checks))
    else:
        from gpufleet.cli.doctor_page import render_checks

        width = shutil.get_terminal_size((100, 40)).columns
        sys.stdout.write(render_checks(checks, width=width, colour=sys.stdout.isatty(), verbose=verbose))
    if any(check.verdict == "failed" for check in checks):
        raise typer.Exit(1)
