"""Checks of the files and folders that a configuration names.

The same check runs in `gpufleet config validate` and at the start of a daemon. Only the daemon itself must be able to
read its files: tokens and keys often belong to its user, and `validate` may run as another one.
"""

import errno
import os
import ssl
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.config.load import LoadedConfig
from gpufleet.config.secret_files import HeadersFile, TokenFile
from gpufleet.model.errors import ConfigError

_NAMES = ("ca", "certificate", "key")
"""Keys that name a file, in addition to keys that end in `_file`."""


def check_named_files(resolved: LoadedConfig[Any], *, daemon: bool) -> tuple[ConfigError, ...]:
    """Return a problem for each named file that is missing or invalid.

    Args:
        resolved: the configuration.
        daemon: this process is the daemon. It must be able to read the files, and entries of lists are not checked:
            an invalid file of one scrape target must not stop the others.
    """
    problems: list[ConfigError] = []
    for record, prefix in _records(resolved.config, lists=not daemon):
        broken = len(problems)
        for field in msgspec.structs.fields(record):
            value = getattr(record, field.name)
            if isinstance(value, str) and (field.name in _NAMES or field.name.endswith("_file")):
                reason = _file_problem(field.name, value, daemon=daemon)
                if reason:
                    problems.append(_problem(resolved, f"{prefix}{field.name}", reason))
        certificate, key = (getattr(record, name, None) for name in ("certificate", "key"))
        if certificate and key and len(problems) == broken:
            reason = _pair_problem(certificate, key)
            if reason:
                problems.append(_problem(resolved, f"{prefix}certificate", reason))
    return tuple(problems)


def check_state_folder(
    resolved: LoadedConfig[Any], folder: Path, *, daemon: bool, ignored: Collection[str] = ()
) -> tuple[ConfigError, ...]:
    """Return a problem if the daemon's folder in `state` cannot be created or written.

    Without `daemon`, a folder of another user is not a problem. `ignored` has POSIX names of further errors that are
    none.
    """
    name = folder_error(folder)
    if not name or name in ignored or (name == "EACCES" and not daemon):
        return ()
    reason = f"{folder} cannot be written: {os.strerror(getattr(errno, name))}"
    return (_problem(resolved, "state", reason),)


def folder_error(folder: Path) -> str:
    """Test whether files can be created in a folder, or the folder itself if it does not exist.

    Returns:
        An empty text if they can, else the POSIX name of the error.
    """
    here = folder
    try:
        while not here.exists() and here != here.parent:
            here = here.parent
        if not here.is_dir():
            return "ENOTDIR"
        read_only = os.statvfs(here).f_flag & os.ST_RDONLY
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "EIO")
    if read_only:
        return "EROFS"
    return "" if os.access(here, os.W_OK | os.X_OK, effective_ids=True) else "EACCES"


def _problem(resolved: LoadedConfig[Any], key: str, reason: str) -> ConfigError:
    leaf = key.partition("[")[0]
    return ConfigError(resolved.origin(leaf), key, reason)


def _records(record: msgspec.Struct, prefix: str = "", *, lists: bool) -> Iterator[tuple[msgspec.Struct, str]]:
    """Yield each record of a configuration with the prefix of its keys."""
    yield record, prefix
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, msgspec.Struct):
            yield from _records(value, f"{prefix}{field.name}.", lists=lists)
        elif isinstance(value, tuple) and lists:
            for number, item in enumerate(value):
                if isinstance(item, msgspec.Struct):
                    yield from _records(item, f"{prefix}{field.name}[{number}].", lists=lists)


def _file_problem(name: str, path: str, *, daemon: bool) -> str:
    """Return what is wrong with a file, or an empty text."""
    try:
        if stat.S_ISDIR(Path(path).stat().st_mode):
            return f"{path} is a folder, not a file"
        with Path(path).open("rb"):
            pass
        if name == "ca":
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        elif name in ("token_file", "secret_file"):
            TokenFile(path).token()
        elif name == "headers_file":
            HeadersFile(path).headers()
    except PermissionError as error:
        return f"{path}: {error.strerror}" if daemon else ""
    except ssl.SSLError as error:
        return f"{path} has no CA certificate in PEM format: {error.reason or error}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    except ConfigError as error:
        return str(error)
    return ""


def _pair_problem(certificate: str, key: str) -> str:
    """Return what is wrong with a certificate and its key, or an empty text. Both files exist."""
    try:
        # An empty passphrase decrypts no key, and prevents OpenSSL from prompting at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        return f"{certificate} and {key} are not a certificate and its key: {error.reason or error}"
    except PermissionError:
        return ""  # reported for each file
    except OSError as error:
        return f"{certificate} or {key}: {error.strerror}"
    return ""
