"""`gpufleet join`: checks a node's connection to a hub, and writes the configuration of its agent."""

import datetime as dt
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.accounts import Account, find_account
from gpufleet.cli.hub_init import CA, Folder, User, default_folder, option_errors, start_command
from gpufleet.cli.init import Force, place_file
from gpufleet.cli.options import CaOption, CommandError
from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.load import ConfigProblemsError, resolve
from gpufleet.config.secret_files import MAX_TOKEN_BYTES
from gpufleet.config.template import toml_literal
from gpufleet.wiring.validation import check_agent

SERVICE_ACCOUNT = "gpufleet-agent"
"""Account of the systemd unit."""

CONFIG, TOKEN = "agent.toml", "sender.token"

MAX_CA_BYTES = 1 << 20

STDIN = "-"

_OPTIONS = {
    "hub.url": "URL", "hub.token_file": "--token-file", "hub.ca": "--ca",
    "cluster": "--cluster", "node": "--node", "state": "--state",
}  # fmt: skip
"""Option or argument of each key that `join` writes."""


def join(
    hub: Annotated[str, typer.Argument(metavar="URL", help="URL of the hub or relay, such as https://hub:8470.")],
    cluster: Annotated[str, typer.Option(metavar="ID", help="Cluster of this node.")],
    token_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File with the sender token of the cluster; - reads standard input."),
    ] = None,
    ca: CaOption = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="Node name to report [default: the host name].")
    ] = None,
    state: Annotated[str | None, typer.Option(metavar="FOLDER", help="Folder of the agent's spool.")] = None,
    folder: Folder = None,
    user: User = None,
    force: Force = False,
) -> None:
    """Check the connection to a hub, and write the agent's configuration, token and CA file.

    Nothing is written if a check fails. The token is not an argument, because other users can read arguments.
    """
    folder = (folder or default_folder()).absolute()
    account = find_account(user, SERVICE_ACCOUNT)
    files: dict[str, bytes] = {}
    if token_file is not None:
        files[TOKEN] = _read_token(token_file)
    if ca is not None:
        files[CA] = _read(ca, MAX_CA_BYTES)
    _refuse_existing(folder, files, force=force)
    with tempfile.TemporaryDirectory(prefix="gpufleet-join-") as private:
        for name, content in files.items():
            place_file(content, Path(private, name), force=False)
        staged = Path(private, CONFIG)
        staged.write_text(_configuration(hub, cluster, node, state, Path(private), files))
        given = {
            str(Path(private, TOKEN)): "standard input" if token_file == STDIN else str(token_file),
            str(Path(private, CA)): str(ca),
        }
        with option_errors(_OPTIONS, given):
            _check(staged)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files[CONFIG] = _configuration(hub, cluster, node, state, folder, files).encode()
        for name, content in files.items():
            _place(content, folder / name, account, force=force)
    except OSError as error:
        raise CommandError(f"cannot write {error.filename or folder}: {error.strerror or error}") from error
    start = start_command("agent", folder / CONFIG, account, SERVICE_ACCOUNT)
    print(f"""
next steps:
  1. start the agent:
       {start}
  2. check it:
       gpufleet doctor --config {folder / CONFIG}
     the hub's operator sees it as {node or socket.gethostname()} in `gpufleet query nodes`""")


def _check(staged: Path) -> None:
    """Check the files and the connection, and print the result. Raises if a check failed."""
    from gpufleet.cli.doctor_page import render_checks
    from gpufleet.doctor.checks.connection import CONNECTION_CHECKS
    from gpufleet.doctor.connection import probe_hub
    from gpufleet.doctor.facts import CheckVerdict, NodeFacts

    resolved = resolve(AgentConfig, file=staged, env_prefix=ENV_PREFIX, env={}, flags={})
    problems = check_agent(resolved, daemon=False)
    if problems:
        raise ConfigProblemsError(problems)
    config = resolved.config
    facts = NodeFacts(hub=probe_hub(config.hub, cluster=config.cluster, now=dt.datetime.now(dt.UTC)))
    checks = tuple(check(facts) for check in CONNECTION_CHECKS)
    width = shutil.get_terminal_size((100, 40)).columns
    sys.stdout.write(render_checks(checks, width=width, colour=sys.stdout.isatty(), verbose=False))
    sys.stdout.flush()
    if any(check.verdict is CheckVerdict.FAILED for check in checks):
        raise CommandError("nothing was written: a check failed")


def _configuration(
    hub: str, cluster: str, node: str | None, state: str | None, folder: Path, files: dict[str, bytes]
) -> str:
    lines = [
        "# Configuration of the gpufleet agent, written by `gpufleet join`.",
        "# All keys: gpufleet config init --for agent",
        "",
        f"cluster = {toml_literal(cluster)}",
    ]
    if node is not None:
        lines.append(f"node = {toml_literal(node)}")
    if state is not None:
        lines.append(f"state = {toml_literal(str(Path(state).absolute()))}")
    lines += ["", "[hub]", f"url = {toml_literal(hub)}"]
    if TOKEN in files:
        lines.append(f"token_file = {toml_literal(str(folder / TOKEN))}")
    if CA in files:
        lines.append(f"ca = {toml_literal(str(folder / CA))}")
    return "\n".join(lines) + "\n"


def _read_token(token_file: str) -> bytes:
    if token_file == STDIN:
        return sys.stdin.buffer.read(MAX_TOKEN_BYTES)
    return _read(Path(token_file), MAX_TOKEN_BYTES)


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > max_bytes:
        raise CommandError(f"{path} has more than {max_bytes} bytes")
    return content


def _refuse_existing(folder: Path, files: dict[str, bytes], *, force: bool) -> None:
    """Refuse to replace files with another content, except with `force`."""
    wrong = [folder / CONFIG] if (folder / CONFIG).exists() else []
    wrong += [folder / name for name, content in files.items() if _differs(folder / name, content)]
    if wrong and not force:
        raise CommandError(f"{', '.join(map(str, wrong))} exist: edit them, or replace them with --force")


def _differs(target: Path, content: bytes) -> bool:
    try:
        return target.read_bytes() != content
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CommandError(f"cannot read {target}: {error.strerror}") from error


def _place(content: bytes, target: Path, account: Account, *, force: bool) -> None:
    if target.name == CA and target.exists() and not _differs(target, content):
        return  # the CA of a hub on this machine
    shared = target.name != CA and not account.is_own
    mode = 0o644 if target.name == CA else 0o640 if shared else 0o600
    place_file(content, target, force=force or target.exists(), mode=mode, group=account.gid if shared else None)
    print(f"wrote {target}")
