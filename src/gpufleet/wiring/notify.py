"""Construction of the delivery of findings, and its tasks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from gpufleet.config.notify import AlertmanagerConfig, FindingReceiversConfig, WebhookConfig, receiver_address
from gpufleet.config.secret_files import TokenFile
from gpufleet.fleet.rules.table import RULES_BY_ID
from gpufleet.hub.notify.dead_letters import DeadLetters
from gpufleet.hub.notify.feed import FindingFeed
from gpufleet.hub.notify.housekeeping import FindingHousekeeping
from gpufleet.hub.notify.receiver import FindingReceiver
from gpufleet.hub.notify.store import StoreReceiver
from gpufleet.hub.receive.counters import Counters
from gpufleet.model.errors import ConfigError
from gpufleet.model.finding import Severity
from gpufleet.ports.clock import Clock
from gpufleet.ports.findings import FindingRegistry
from gpufleet.ports.registry import MachineRegistry
from gpufleet.ports.store import FactStore
from gpufleet.runtime import supervise

FOLDER = "notify"
"""Folder of dead letters, in the hub's folder."""

MIN_SECRET = 16
"""Minimum number of characters of a webhook's secret."""

_CLIENT = "gpufleet-hub"


class NotifyContext(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a hub that the delivery of findings needs.

    Attributes:
        findings, machines: the registry.
        store: the store.
        hub: id of the hub, the same after a restart: part of the source of events.
        folder: folder of the hub.
        threads: threads for queries of the registry.
        writing: thread of all writes to the store.
        clock: wall and monotonic time.
    """

    findings: FindingRegistry
    machines: MachineRegistry
    store: FactStore
    hub: str
    folder: Path
    threads: Executor
    writing: Executor
    clock: Clock


class _ReceiverParts(msgspec.Struct, frozen=True):
    """Parts that all receivers share; `link` returns the URL of a finding's page by its id, or None."""

    feed: FindingFeed
    dead_letters: DeadLetters
    link: Callable[[str], str | None]
    context: NotifyContext


def make_receivers(config: FindingReceiversConfig, context: NotifyContext) -> tuple[FindingReceiver, ...]:
    """Return the receivers of findings: the store, webhooks and Alertmanagers. Nothing is sent yet.

    Raises:
        ConfigError: if a rule does not exist, or a secret, token, headers file, CA file or certificate is invalid.
    """
    check_rules(config)
    feed = FindingFeed(
        context.findings,
        context.machines.machine_names,
        threads=context.threads,
        clock=context.clock,
    )
    parts = _ReceiverParts(feed, DeadLetters(context.folder / FOLDER), config.finding_link, context)
    return (
        StoreReceiver(
            feed, context.store, thread=context.writing, dead_letters=parts.dead_letters, clock=context.clock
        ),
        *(_webhook(one, parts) for one in config.webhook),
        *(_alertmanager(group, url, parts) for group in config.alertmanager for url in group.urls),
    )


def check_rules(config: FindingReceiversConfig, source: str = "configuration") -> None:
    """Check that the rules of every webhook exist. Raises ConfigError with the source of the configuration."""
    for number, webhook in enumerate(config.webhook):
        for rule in webhook.rules:
            if rule not in RULES_BY_ID:
                reason = (
                    f"{webhook.name!r} selects the rule {rule!r}, which does not exist: see docs/reference/findings.md"
                )
                raise ConfigError(source, f"findings.webhook[{number}].rules", reason)


@contextlib.asynccontextmanager
async def run_notifications(receivers: tuple[FindingReceiver, ...], counters: Counters) -> AsyncIterator[None]:
    """Deliver findings while the context is open. What is undelivered stays in the registry for the next start."""
    tasks = [
        asyncio.create_task(
            supervise(one.run, f"notification of {one.name}", on_end=counters.restart_counter("notify")),
            name=f"notify {one.name}",
        )
        for one in receivers
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def run_housekeeping(
    receivers: tuple[FindingReceiver, ...], context: NotifyContext, counters: Counters
) -> AsyncIterator[None]:
    """Remove old findings and silences while the context is open, and first the positions of other receivers."""
    cursors = frozenset(name for one in receivers for name in one.cursors)
    housekeeping = FindingHousekeeping(context.findings, cursors, threads=context.threads, clock=context.clock)
    run = supervise(housekeeping.run, "removal of old findings", on_end=counters.restart_counter("notify"))
    task = asyncio.create_task(run, name="notify housekeeping")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _webhook(config: WebhookConfig, parts: _ReceiverParts) -> FindingReceiver:
    # Imported here: a hub without webhooks does not load the HTTP client.
    from gpufleet.hub.notify.notices import NoticeFilter
    from gpufleet.hub.notify.webhook import CONNECTIONS, WebhookReceiver
    from gpufleet.wiring.exports import make_http_sender

    return WebhookReceiver(
        f"webhook/{config.name}",
        parts.feed,
        make_http_sender(config.url, config, name=_CLIENT, connections=CONNECTIONS),
        secret=secret_reader(config.secret_file),
        accepts=NoticeFilter(
            min_severity=Severity(config.min_severity),
            clusters=frozenset(config.clusters),
            rules=frozenset(config.rules),
        ),
        source=f"urn:gpufleet:hub:{parts.context.hub}",
        link=parts.link,
        dead_letters=parts.dead_letters,
        clock=parts.context.clock,
    )


def _alertmanager(config: AlertmanagerConfig, url: str, parts: _ReceiverParts) -> FindingReceiver:
    from gpufleet.hub.notify.alertmanager import ALERTS_PATH, AlertmanagerReceiver
    from gpufleet.wiring.exports import make_http_sender

    return AlertmanagerReceiver(
        f"alertmanager/{config.name}/{receiver_address(url)}",
        parts.feed,
        make_http_sender(f"{url.rstrip('/')}{ALERTS_PATH}", config, name=_CLIENT),
        labels=config.label_pairs,
        link=parts.link,
        dead_letters=parts.dead_letters,
        clock=parts.context.clock,
    )


def secret_reader(path: str) -> Callable[[], str]:
    """Return a function that reads the current secret of a webhook.

    Raises:
        ConfigError: if the file holds no secret of at least `MIN_SECRET` characters now. The function raises it too.
    """
    file = TokenFile(path)

    def secret() -> str:
        found = file.token()
        if len(found) < MIN_SECRET:
            raise ConfigError(
                path, "", f"the secret has fewer than {MIN_SECRET} characters: use `openssl rand -hex 32`"
            )
        return found

    secret()
    return secret
