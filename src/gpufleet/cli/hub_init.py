"""`gpufleet hub init` and `gpufleet hub certificate`: prepare a hub with tokens and TLS, and renew its certificate."""

import contextlib
import datetime as dt
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gpufleet.cli.accounts import Account, find_account
from gpufleet.cli.authority import check_names, create_authority, issue_certificate
from gpufleet.cli.init import place_file
from gpufleet.cli.options import CommandError
from gpufleet.config.agent import default_state, parse_listen
from gpufleet.config.hub import ENV_PREFIX, HubConfig
from gpufleet.config.load import ConfigProblemsError, LoadedConfig, resolve
from gpufleet.config.template import toml_literal
from gpufleet.model.access import Role
from gpufleet.model.errors import ConfigError
from gpufleet.wiring.validation import check_hub

if TYPE_CHECKING:
    from gpufleet.model.access import Token

SERVICE_ACCOUNT = "gpufleet-hub"
"""Account of the systemd unit."""

ADMIN_DAYS = 90
"""Lifetime of the first token."""

CONFIG, CA, CA_KEY, CERTIFICATE, KEY, ADMIN_TOKEN = "hub.toml", "ca.crt", "ca.key", "hub.crt", "hub.key", "admin.token"

_OPTIONS = {
    "listen": "--listen", "state": "--state", "tls.certificate": "--certificate", "tls.key": "--key",
}  # fmt: skip
"""Option of each key that `hub init` writes."""

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="FOLDER", help="Folder of the files [default: /etc/gpufleet, or ~/.config/gpufleet]."
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="NAME", help="DNS name or address that clients use for the hub; may be repeated."),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="NAME", help="Account of the daemon [default: that of its systemd unit if root runs this]."
    ),
]


def init(
    folder: Folder = None,
    name: Names = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")] = "0.0.0.0:8470",
    state: Annotated[str | None, typer.Option(metavar="FOLDER", help="Folder of log, registry and store.")] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own certificate (PEM), instead of one of a new private CA."),
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of your own certificate (PEM).")] = None,
    user: User = None,
) -> None:
    """Prepare a hub with TLS and tokens: folders, a private CA, a certificate, a configuration and an admin token.

    Existing files are not changed. The next steps are printed.
    """
    if (certificate is None) != (key is None):
        raise typer.BadParameter("set both --certificate and --key", param_hint="--certificate")
    folder = (folder or default_folder()).absolute()
    state = str(Path(state or default_state(os.environ, os.getuid())).absolute())
    account = find_account(user, SERVICE_ACCOUNT)
    names = host_names(name or ())
    check_names(names)
    files = [CONFIG, ADMIN_TOKEN] + ([] if certificate else [CA, CA_KEY, CERTIFICATE, KEY])
    existing = [str(folder / one) for one in files if (folder / one).exists()]
    if existing:
        raise CommandError(f"{', '.join(existing)} exist: nothing was changed; choose another --folder")
    pair = (str(certificate.absolute()), str(key.absolute())) if certificate and key else None
    with _prepared(folder, state, account), tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as staged:
        fresh = Path(staged)
        if pair is None:
            title = f"gpufleet CA of {socket.gethostname()}"
            create_authority(fresh / CA, fresh / CA_KEY, title)
            issue_certificate(fresh / CA, fresh / CA_KEY, names, certificate=fresh / CERTIFICATE, key=fresh / KEY)
        used = pair or (str(folder / CERTIFICATE), str(folder / KEY))
        checked = pair or (str(fresh / CERTIFICATE), str(fresh / KEY))
        with option_errors(_OPTIONS, {}):
            settings = _check(_configuration(listen, state, checked), fresh / CONFIG)
        if not account.is_own:
            # A discarded registry: it loads every module, which the account may not be permitted to read.
            _create_admin(msgspec.structs.replace(settings, state=staged))
        with as_account(account):
            token, secret = _create_admin(settings)
        (fresh / CONFIG).write_text(_configuration(listen, state, used))
        (fresh / ADMIN_TOKEN).write_text(f"{secret}\n")
        _place_all(files, fresh, folder, account)
    for one in files:
        print(f"created {folder / one}")
    _print_steps(folder, names[0], parse_listen(listen)[1], account, token, has_ca=pair is None)


def certificate(folder: Folder = None, name: Names = None, user: User = None) -> None:
    """Issue a new certificate of the hub with the private CA of `hub init`. A running hub loads it within a second."""
    folder = (folder or default_folder()).absolute()
    for one in (CA, CA_KEY):
        if not (folder / one).is_file():
            raise CommandError(f"{folder / one} does not exist: set the --folder of `gpufleet hub init`")
    account = find_account(user, SERVICE_ACCOUNT)
    names = tuple(dict.fromkeys(name)) if name else _current_names(folder)
    check_names(names)
    with _file_errors(), tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as staged:
        fresh = Path(staged)
        issue_certificate(folder / CA, folder / CA_KEY, names, certificate=fresh / CERTIFICATE, key=fresh / KEY)
        for one in (KEY, CERTIFICATE):
            _place(fresh / one, folder / one, account, force=True)
    print(f"{folder / CERTIFICATE} is valid for {', '.join(names)}")


def default_folder() -> Path:
    """Return the default folder of configuration files: /etc/gpufleet for root, otherwise the user's own (XDG)."""
    if os.geteuid() == 0:
        return Path("/etc/gpufleet")
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "gpufleet")


def host_names(given: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a hub's certificate: the given ones first, then this host's own and loopback."""
    own = [] if given else [socket.getfqdn(), socket.gethostname()]
    usable = [name for name in own if name not in ("localhost", "localhost.localdomain") and not name.endswith(".arpa")]
    return tuple(dict.fromkeys([*given, *usable, "localhost", "127.0.0.1", "::1"]))


@contextlib.contextmanager
def as_account(account: Account) -> Iterator[None]:
    """Run the block with the effective user and groups of an account, so that its files belong to the daemon."""
    if account.is_own:
        yield
        return
    groups = os.getgroups()
    os.initgroups(account.name, account.gid)
    os.setegid(account.gid)
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@contextlib.contextmanager
def _file_errors() -> Iterator[None]:
    """Report a failed write with its file."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot write {error.filename or 'a file'}: {error.strerror or error}") from error


@contextlib.contextmanager
def option_errors(options: Mapping[str, str], staged: Mapping[str, str]) -> Iterator[None]:
    """Report the problems of a configuration that is not in its place yet by the options of its values.

    Args:
        options: the option of each key.
        staged: the given file for each copy of a file.
    """
    try:
        yield
    except ConfigProblemsError as error:
        problems = []
        for one in error.problems:
            reason = one.reason
            for copy, given in staged.items():
                reason = reason.replace(copy, given)
            problems.append(ConfigError(options.get(one.key, one.key), "", reason))
        raise ConfigProblemsError(tuple(problems)) from error


@contextlib.contextmanager
def _prepared(folder: Path, state: str, account: Account) -> Iterator[None]:
    """Create the folders; files of the block are private."""
    hub = HubConfig(state=state).folder
    previous = os.umask(0o022)
    try:
        with _file_errors():
            folder.mkdir(parents=True, exist_ok=True)
            Path(state).mkdir(parents=True, exist_ok=True)
            if not hub.exists():
                hub.mkdir(mode=0o750)
                if not account.is_own:
                    os.chown(hub, account.uid, account.gid)
            os.umask(0o077)
            yield
    finally:
        os.umask(previous)


def _configuration(listen: str, state: str, pair: tuple[str, str]) -> str:
    certificate, key = map(toml_literal, pair)
    return f"""# Configuration of the gpufleet hub, written by `gpufleet hub init`.
# All keys: gpufleet config init --for hub

listen = {toml_literal(listen)}
auth = "tokens"
state = {toml_literal(state)}

[tls]
certificate = {certificate}
key = {key}
"""


def _check(text: str, file: Path) -> HubConfig:
    """Return the configuration of a text, checked like that of a starting hub."""
    file.write_text(text)
    resolved: LoadedConfig[HubConfig] = resolve(HubConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={})
    problems = check_hub(resolved, daemon=False)
    if problems:
        raise ConfigProblemsError(problems)
    return resolved.config


def _create_admin(settings: HubConfig) -> "tuple[Token, str]":
    from gpufleet.cli.token import open_tokens

    now = dt.datetime.now(dt.UTC)
    with open_tokens(settings, create=True) as tokens:
        expires_at = now + dt.timedelta(days=ADMIN_DAYS)
        return tokens.create(Role.ADMIN, now, note="created by gpufleet hub init", expires_at=expires_at)


_MODES = {CA: 0o644, CERTIFICATE: 0o644, CA_KEY: 0o600, ADMIN_TOKEN: 0o600, KEY: 0o640, CONFIG: 0o640}
"""Permissions of each file. Those with 0640 belong to the daemon's group."""


def start_command(daemon: str, config: Path, account: Account, service_account: str) -> str:
    """Return the command that starts a daemon: that of its systemd unit if the files are where it expects them."""
    if account.name == service_account and config.parent == Path("/etc/gpufleet"):
        return f"systemctl enable --now {service_account}"
    return f"{'' if account.is_own else f'sudo -u {account.name} '}gpufleet {daemon} --config {config}"


def _place_all(files: Sequence[str], fresh: Path, folder: Path, account: Account) -> None:
    """Move new files to their folder; after a failure none is left there."""
    placed: list[Path] = []
    try:
        for name in files:
            _place(fresh / name, folder / name, account, force=False)
            placed.append(folder / name)
    except BaseException:  # also on Ctrl-C: a part of the files would stop the next run; re-raised
        for target in placed:
            target.unlink(missing_ok=True)
        raise


def _place(source: Path, target: Path, account: Account, *, force: bool) -> None:
    mode = _MODES[target.name]
    shared = mode == 0o640 and not account.is_own
    try:
        place_file(
            source.read_bytes(),
            target,
            force=force,
            mode=0o600 if mode == 0o640 and not shared else mode,
            group=account.gid if shared else None,
        )
    except FileExistsError as error:
        raise CommandError(f"{target} exists: it was created meanwhile") from error


def _current_names(folder: Path) -> tuple[str, ...]:
    from gpufleet.doctor.hub.gather import inspect_certificate

    found = inspect_certificate(str(folder / CERTIFICATE), str(folder / KEY), None)
    if isinstance(found, str):
        raise CommandError(f"{found}: name the hub with --name")
    return found.names


def _print_steps(folder: Path, name: str, port: int, account: Account, token: "Token", *, has_ca: bool) -> None:
    url = f"https://{f'[{name}]' if ':' in name else name}:{port}"
    prefix = "" if account.is_own else f"sudo -u {account.name} "
    ca = f" --ca {folder / CA}" if has_ca else ""
    copied = "ca.crt and rack-7.token" if has_ca else "rack-7.token"
    start = start_command("hub", folder / CONFIG, account, SERVICE_ACCOUNT)
    create = f"{prefix}gpufleet token create --role sender --cluster rack-7 --config {folder / CONFIG}"
    print(f"""
{folder / ADMIN_TOKEN} has the role admin until {token.expires_at:%Y-%m-%d}; its id is {token.id}.

next steps, for a cluster named rack-7:
  1. start the hub:
       {start}
  2. register the cluster, and create the token of its nodes:
       gpufleet cluster put rack-7 --hub {url} --token-file {folder / ADMIN_TOKEN}{ca}
       (umask 077; {create} > rack-7.token)
  3. copy {copied} to each node, and join there:
       gpufleet join {url} --cluster rack-7 --token-file rack-7.token{" --ca ca.crt" if has_ca else ""}""")
    if has_ca:
        print(f"\nkeep {folder / CA_KEY} secret: it can issue certificates that the nodes trust")
