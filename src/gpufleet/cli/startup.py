"""Configuration of a daemon at its start: read, merged and checked."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from gpufleet.config.load import ConfigProblemsError, LoadedConfig, resolve
from gpufleet.model.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

Check = Callable[..., tuple[ConfigError, ...]]
"""`check_agent` or `check_hub` of `wiring.validation`."""


def load_daemon(
    record: type[T],
    check: Check,
    *,
    file: Path | None,
    env_prefix: str,
    flags: Mapping[str, object],
    named: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Return the configuration of a daemon that is about to start; see `gpufleet.config.load.resolve`.

    Raises:
        ConfigProblemsError: with all problems of the configuration and of the files, folders and databases it names.
    """
    resolved: LoadedConfig[Any] = resolve(
        record, file=file, env_prefix=env_prefix, env=os.environ, flags=flags, named=named
    )
    problems = check(resolved, daemon=True)
    if problems:
        raise ConfigProblemsError(problems)
    config: T = resolved.config
    return config
