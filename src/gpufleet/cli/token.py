"""`gpufleet token`: who may use a hub. Works on the hub's registry itself: the first token needs no server."""

import datetime as dt
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from gpufleet.cli.options import Json
from gpufleet.cli.output import print_json
from gpufleet.model.access import Role, Token
from gpufleet.model.errors import RegistryError

if TYPE_CHECKING:
    from gpufleet.registry.tokens import SqlTokens

token_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make, show, rotate and revoke tokens, on the hub's host and as the hub's user.",
)

HubFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="The hub's configuration (TOML).")]
State = Annotated[str | None, typer.Option(metavar="FOLDER", help="The hub's state folder.")]
Registry = Annotated[
    str | None, typer.Option(metavar="DSN", help="The hub's registry [default: SQLite, in the state].")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the token: what stands between the underscores.")]
ExpiresIn = Annotated[str | None, typer.Option(metavar="SPAN", help="Such as 12h or 90d [default: never].")]

_SPAN = re.compile(r"(\d{1,6})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@token_app.command()
def create(
    role: Annotated[Role, typer.Option(help="What it is for.")],
    cluster: Annotated[str | None, typer.Option(metavar="ID", help="The one a sender posts for.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="The one whose allocations are read.")] = None,
    note: Annotated[str, typer.Option(help="Who has it, and why.")] = "",
    expires_in: ExpiresIn = None,
    json: Json = False,
    config: HubFile = None,
    state: State = None,
    registry: Registry = None,
) -> None:
    """Make a token and print it, once: it is kept as a digest alone."""
    from gpufleet.config.scrape import ClusterId
    from gpufleet.model.allocation import Name

    now = dt.datetime.now(dt.UTC)
    expires_at = None if expires_in is None else now + _span("--expires-in", expires_in)
    _check("--cluster", cluster, ClusterId)
    _check("--tenant", tenant, Name)
    with _tokens(config, state, registry, make=True) as tokens:
        made = tokens.create(role, now, cluster=cluster, tenant=tenant, note=note, expires_at=expires_at)
    _show_secret(*made, json)


@token_app.command("list")
def list_all(json: Json = False, config: HubFile = None, state: State = None, registry: Registry = None) -> None:
    """Show every token, without secrets."""
    with _tokens(config, state, registry) as tokens:
        found = tokens.tokens()
    if json:
        print_json(msgspec.json.encode(found))
        return
    for one in found:
        bound = one.cluster or one.tenant or "-"
        print(one.id, one.role.value, bound, _standing(one, dt.datetime.now(dt.UTC)), one.note, sep="\t")


@token_app.command()
def rotate(
    id: Id,  # noqa: A002 - the argument's name
    overlap: Annotated[str, typer.Option(metavar="SPAN", help="How long the old secret goes on, such as 0s.")] = "1h",
    expires_in: ExpiresIn = None,
    json: Json = False,
    config: HubFile = None,
    state: State = None,
    registry: Registry = None,
) -> None:
    """Give a token a new secret and print it, once; the old one goes on for the overlap."""
    now = dt.datetime.now(dt.UTC)
    expires_at = None if expires_in is None else now + _span("--expires-in", expires_in)
    with _tokens(config, state, registry) as tokens:
        made = tokens.rotate(id, now, overlap=_span("--overlap", overlap), expires_at=expires_at)
    _show_secret(*made, json)


@token_app.command()
def revoke(
    id: Id,  # noqa: A002
    config: HubFile = None,
    state: State = None,
    registry: Registry = None,
) -> None:
    """Refuse a token from now on; a running hub follows within a second or two."""
    with _tokens(config, state, registry) as tokens:
        token = tokens.revoke(id, dt.datetime.now(dt.UTC))
    print_json(msgspec.json.encode(token))


@contextmanager
def _tokens(
    config: Path | None, state: str | None, registry: str | None, *, make: bool = False
) -> "Iterator[SqlTokens]":
    """Open the registry that the hub would open; one that is not there is made only if `make` says so.

    A schema is moved forward by hubs and relays alone: an older one may be running on it.
    """
    import os

    from gpufleet.config.hub import ENV_PREFIX, HubConfig
    from gpufleet.config.load import load
    from gpufleet.registry.database import Database, sqlite_file
    from gpufleet.registry.migrations import NEWEST
    from gpufleet.registry.tokens import SqlTokens

    settings = load(
        HubConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={"state": state, "registry": registry}
    )
    file = sqlite_file(settings.registry_dsn)
    if file is not None and not make and not file.exists():
        raise RegistryError(
            f"there is no registry at {file}: name the hub's --config or --state; the first token makes it, by "
            "`gpufleet token create`"
        )
    if settings.registry is None:
        try:
            settings.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RegistryError(f"cannot make the hub's folder {settings.folder}: {error.strerror}") from error
    database = Database.open(settings.registry_dsn)
    try:
        version = database.version()
        if version and version < NEWEST:
            raise RegistryError(
                f"the registry's schema is version {version} and this build's is {NEWEST}: start the hub of this build "
                "first, which moves it forward; there is no way back but a backup from before"
            )
        database.migrate()  # makes a new one, and refuses a newer build's
        yield SqlTokens(database)
    finally:
        database.close()


def _show_secret(token: Token, text: str, as_json: bool) -> None:
    """Print the token alone, fit for a file; what it is goes beside it."""
    if as_json:
        print_json(msgspec.json.encode({"secret": text, "token": token}))
        return
    print(text)
    bound = f" of {token.cluster or token.tenant}" if token.cluster or token.tenant else ""
    until = f", until {token.expires_at:%Y-%m-%d %H:%M}Z" if token.expires_at else ""
    print(f"gpufleet: token {token.id}: {token.role}{bound}{until}. It is shown this once.", file=sys.stderr)


def _standing(token: Token, now: dt.datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked {token.revoked_at:%Y-%m-%d}"
    if token.expires_at is None:
        return "never expires"
    return f"{'expired' if token.expires_at <= now else 'expires'} {token.expires_at:%Y-%m-%d %H:%M}Z"


def _check(option: str, name: str | None, kind: Any) -> None:
    """Refuse a name that no cluster or tenant can have: the token would be of use to nobody."""
    try:
        msgspec.convert(name, kind | None)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(f"{name!r}: {error}", param_hint=option) from error


def _span(option: str, text: str) -> dt.timedelta:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a span of time such as 30s, 15m, 12h or 90d", param_hint=option)
    return dt.timedelta(**{_UNITS[found[2]]: int(found[1])})
