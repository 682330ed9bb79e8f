"""The files that a configuration names: are they there?"""

import stat
from pathlib import Path
from typing import Any

from gpufleet.config.load import Resolved, leaves
from gpufleet.model.errors import ConfigError

_NAMES = ("ca", "certificate", "key")
"""Keys that name a file, beside all that end in `_file`."""


def missing_files(resolved: Resolved[Any]) -> tuple[ConfigError, ...]:
    """Return a problem for each file that is named and not there.

    One that this user may not see is not missing: tokens and keys are often the daemon's alone.
    """
    problems: list[ConfigError] = []
    for key, _ in leaves(type(resolved.config)):
        name = key.rpartition(".")[2]
        if name not in _NAMES and not name.endswith("_file"):
            continue
        value: Any = resolved.config
        for part in key.split("."):
            value = getattr(value, part)
        if value is None:
            continue
        try:
            mode = Path(value).stat().st_mode
        except PermissionError:
            continue
        except OSError as error:
            problems.append(ConfigError(resolved.origin(key), key, f"{value}: {error.strerror}"))
        else:
            if stat.S_ISDIR(mode):
                problems.append(ConfigError(resolved.origin(key), key, f"{value} is a folder"))
    return tuple(problems)
