"""`gpufleet token`: manages tokens directly in the hub's registry, so that the first one needs no running hub."""

import datetime as dt
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from gpufleet.cli.options import Json
from gpufleet.cli.output import print_json
from gpufleet.cli.times import parse_span
from gpufleet.model.access import Role, Token
from gpufleet.model.errors import RegistryError

if TYPE_CHECKING:
    from gpufleet.config.hub import HubConfig
    from gpufleet.registry.tokens import SqlTokens

token_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create, list, rotate and revoke tokens. Run on the hub's host as the hub's user.",
)

HubFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="The hub's configuration (TOML).")]
State = Annotated[str | None, typer.Option(metavar="FOLDER", help="The hub's state folder.")]
Registry = Annotated[
    str | None, typer.Option(metavar="DSN", help="The hub's registry [default: SQLite in the state folder].")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the token: its part between the underscores.")]
ExpiresIn = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Lifetime such as 12h or 90d [default: unlimited].")
]


@token_app.command()
def create(
    role: Annotated[Role, typer.Option(help="Role of the token.")],
    cluster: Annotated[str | None, typer.Option(metavar="ID", help="Cluster that a sender posts for.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Tenant whose allocations may be read.")] = None,
    note: Annotated[str, typer.Option(help="Note about its holder and purpose.")] = "",
    expires_in: ExpiresIn = None,
    json: Json = False,
    config: HubFile = None,
    state: State = None,
    registry: Registry = None,
) -> None:
    """Create a token and print its secret, which is stored only as a digest and not shown again."""
    from gpufleet.config.scrape import ClusterId
    from gpufleet.model.allocation import Name

    now = dt.datetime.now(dt.UTC)
    expires_at = None if expires_in is None else now + parse_span("--expires-in", expires_in)
    _check("--cluster", cluster, ClusterId)
    _check("--tenant", tenant, Name)
    with _tokens(config, state, registry, create=True) as tokens:
        made = tokens.create(role, now, cluster=cluster, tenant=tenant, note=note, expires_at=expires_at)
    _show_secret(*made, json)


@token_app.command("list")
def list_all(json: Json = False, config: HubFile = None, state: State = None, registry: Registry = None) -> None:
    """List tokens, without secrets."""
    with _tokens(config, state, registry) as tokens:
        found = tokens.tokens()
    if json:
        print_json(msgspec.json.encode(found))
        return
    for one in found:
        bound = one.cluster or one.tenant or "-"
        print(one.id, one.role.value, bound, _expiry_text(one, dt.datetime.now(dt.UTC)), one.note, sep="\t")


@token_app.command()
def rotate(
    id: Id,  # noqa: A002 - the argument's name
    overlap: Annotated[
        str, typer.Option(metavar="SPAN", help="How long the old secret stays valid, for example 0s.")
    ] = "1h",
    expires_in: ExpiresIn = None,
    json: Json = False,
    config: HubFile = None,
    state: State = None,
    registry: Registry = None,
) -> None:
    """Create and print a new secret of a token. The old one stays valid for the overlap."""
    now = dt.datetime.now(dt.UTC)
    expires_at = None if expires_in is None else now + parse_span("--expires-in", expires_in)
    with _tokens(config, state, registry) as tokens:
        made = tokens.rotate(id, now, overlap=parse_span("--overlap", overlap), expires_at=expires_at)
    _show_secret(*made, json)


@token_app.command()
def revoke(
    id: Id,  # noqa: A002
    config: HubFile = None,
    state: State = None,
    registry: Registry = None,
) -> None:
    """Revoke a token; a running hub applies this within two seconds."""
    with _tokens(config, state, registry) as tokens:
        token = tokens.revoke(id, dt.datetime.now(dt.UTC))
    print_json(msgspec.json.encode(token))


@contextmanager
def _tokens(
    config: Path | None, state: str | None, registry: str | None, *, create: bool = False
) -> "Iterator[SqlTokens]":
    """Open the registry of the hub with this configuration; see `open_tokens`."""
    import os

    from gpufleet.config.hub import ENV_PREFIX, HubConfig
    from gpufleet.config.load import load

    settings = load(
        HubConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={"state": state, "registry": registry}
    )
    with open_tokens(settings, create=create) as tokens:
        yield tokens


@contextmanager
def open_tokens(settings: "HubConfig", *, create: bool = False) -> "Iterator[SqlTokens]":
    """Open a hub's registry; create it only with `create`.

    An older schema is rejected, because a hub of an older build may be using it. Only hubs and relays migrate it.

    Raises:
        RegistryError: if it cannot be opened.
    """
    from gpufleet.registry.database import Database, sqlite_file
    from gpufleet.registry.migrations import NEWEST
    from gpufleet.registry.tokens import SqlTokens

    file = sqlite_file(settings.registry_dsn)
    if file is not None and not create and not file.exists():
        raise RegistryError(
            f"there is no registry at {file}: set the hub's --config or --state, or create the first token with "
            "`gpufleet token create`"
        )
    if settings.registry is None:
        try:
            settings.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RegistryError(f"cannot create the hub's folder {settings.folder}: {error.strerror}") from error
    database = Database.open(settings.registry_dsn)
    try:
        version = database.version()
        if version and version < NEWEST:
            raise RegistryError(
                f"the registry has schema version {version}; this build needs {NEWEST}: first start the hub of this "
                "build, which migrates it. Back the registry up before: a migration cannot be undone"
            )
        database.migrate()  # creates a new one, and rejects a newer build's schema
        yield SqlTokens(database)
    finally:
        database.close()


def _show_secret(token: Token, text: str, as_json: bool) -> None:
    """Print the token to stdout, and its description to stderr."""
    if as_json:
        print_json(msgspec.json.encode({"secret": text, "token": token}))
        return
    print(text)
    bound = f" of {token.cluster or token.tenant}" if token.cluster or token.tenant else ""
    until = f", until {token.expires_at:%Y-%m-%d %H:%M}Z" if token.expires_at else ""
    print(f"gpufleet: token {token.id}: {token.role}{bound}{until}. It is not shown again.", file=sys.stderr)


def _expiry_text(token: Token, now: dt.datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked {token.revoked_at:%Y-%m-%d}"
    if token.expires_at is None:
        return "never expires"
    return f"{'expired' if token.expires_at <= now else 'expires'} {token.expires_at:%Y-%m-%d %H:%M}Z"


def _check(option: str, name: str | None, kind: Any) -> None:
    """Reject an invalid name of a cluster or tenant."""
    try:
        msgspec.convert(name, kind | None)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(f"{name!r}: {error}", param_hint=option) from error
