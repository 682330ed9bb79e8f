"""Checks of a configuration beyond its records: files, folders and databases.

`gpufleet config validate` and the start of a daemon use the same checks, so that a daemon exits with 2 for whatever
`validate` reports. The exception is an agent's disk.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from gpufleet.config.agent import AgentConfig
from gpufleet.config.cluster import ClusterAgentConfig
from gpufleet.config.hub import HubConfig
from gpufleet.config.load import ConfigProblemsError, LoadedConfig
from gpufleet.config.named_files import check_named_files, check_state_folder, folder_error
from gpufleet.model.errors import ConfigError, RegistryError, StoreError

DISK_ERRORS = frozenset({"EROFS", "EIO", "ENOSPC"})
"""POSIX names of errors of a disk that can end without a change of the configuration."""


def check_agent(resolved: LoadedConfig[AgentConfig], *, daemon: bool) -> tuple[ConfigError, ...]:
    """Return the problems of an agent's configuration; `daemon` is set in the agent itself.

    An agent starts while its disk is read-only or fails: it queues in memory until the disk can be written.
    """
    config = resolved.config
    ignored = DISK_ERRORS if daemon else frozenset()
    return (
        *check_named_files(resolved, daemon=daemon),
        *check_state_folder(resolved, config.folder, daemon=daemon, ignored=ignored),
        *_check_kubeconfig(resolved, "kubevirt.kubeconfig", config.kubevirt.kubeconfig),
        *_check_kubeconfig(resolved, "kubernetes.kubeconfig", config.kubernetes.kubeconfig),
    )


def check_cluster_agent(resolved: LoadedConfig[ClusterAgentConfig], *, daemon: bool) -> tuple[ConfigError, ...]:
    """Return the problems of a collector's configuration; `daemon` is set in the collector itself.

    A collector starts while its disk is read-only or fails, like an agent.
    """
    config = resolved.config
    ignored = DISK_ERRORS if daemon else frozenset()
    return (
        *check_named_files(resolved, daemon=daemon),
        *check_state_folder(resolved, config.folder, daemon=daemon, ignored=ignored),
        *_check_kubeconfig(resolved, "api.kubeconfig", config.api.kubeconfig),
    )


def _check_kubeconfig(
    resolved: LoadedConfig[AgentConfig] | LoadedConfig[ClusterAgentConfig], key: str, file: str | None
) -> tuple[ConfigError, ...]:
    if file is None or Path(file).expanduser().is_file():
        return ()
    return (ConfigError(resolved.origin(key), key, f"{file} is not a file"),)


def check_hub(resolved: LoadedConfig[HubConfig], *, daemon: bool) -> tuple[ConfigError, ...]:
    """Return the problems of a hub's or relay's configuration; `daemon` is set in the hub itself."""
    config = resolved.config
    problems = [
        *check_named_files(resolved, daemon=daemon),
        *check_state_folder(resolved, config.folder, daemon=daemon),
    ]
    problems += _check_prices(config)
    try:
        if config.store is not None and config.relay.to is None:
            problems += _check_store(resolved, daemon=daemon)
        if config.registry is not None and (config.relay.to is None or config.auth == "tokens"):
            problems += _check_registry(resolved, config.registry)
        if config.findings.rules or config.findings.webhook:
            problems += _check_findings(resolved)
    except ModuleNotFoundError:
        if daemon:
            raise
        # `validate` may run where the extra `hub` is not installed; the schemes were checked with the records.
    return tuple(problems)


def _check_prices(config: HubConfig) -> Sequence[ConfigError]:
    """Return the problems of the CSV file of prices. A file that cannot be read is a problem of its name."""
    if config.usage.price_file is None or not os.access(config.usage.price_file, os.R_OK):
        return ()
    try:
        config.usage.all_prices  # noqa: B018 - reads the file
    except ConfigProblemsError as error:
        return error.problems
    return ()


def _check_store(resolved: LoadedConfig[HubConfig], *, daemon: bool) -> list[ConfigError]:
    from gpufleet.stores.clickhouse.connection.dsn import parse_dsn

    try:
        dsn = parse_dsn(resolved.config.store_dsn)
    except StoreError as error:
        return [ConfigError(resolved.origin("store"), "store", str(error))]
    reason = ""
    if dsn.path is not None:
        name = folder_error(dsn.path)
        if name and (daemon or name != "EACCES"):
            reason = f"{dsn.path} cannot be written: {name}"
    elif dsn.ca is not None and not dsn.ca.is_file():
        reason = f"the file of ca= does not exist: {dsn.ca}"
    return [ConfigError(resolved.origin("store"), "store", reason)] if reason else []


def _check_registry(resolved: LoadedConfig[HubConfig], dsn: str) -> list[ConfigError]:
    from gpufleet.registry.database import Database

    try:
        Database.open(dsn).close()  # loads the driver; nothing is connected
    except RegistryError as error:
        return [ConfigError(resolved.origin("registry"), "registry", str(error))]
    return []


def _check_findings(resolved: LoadedConfig[HubConfig]) -> list[ConfigError]:
    from gpufleet.fleet.rules.rule import Thresholds
    from gpufleet.fleet.rules.table import RULES
    from gpufleet.wiring.notify import check_rules

    config = resolved.config.findings
    try:
        Thresholds(RULES, config.rules, resolved.origin("findings.rules"))
        check_rules(config, resolved.origin("findings.webhook"))
    except ConfigError as error:
        return [error]
    return []
