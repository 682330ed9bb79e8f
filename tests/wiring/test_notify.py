"""Wiring of notifications: receivers from the configuration, over a real registry, across restarts."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.config.notify import AlertmanagerConfig, FindingReceiversConfig, WebhookConfig, receiver_address
from gpufleet.hub.notify.receiver import FindingReceiver
from gpufleet.hub.notify.webhook import REMINDED
from gpufleet.hub.receive.counters import Counters
from gpufleet.model.errors import ConfigError
from gpufleet.model.stored.findings import FindingsState, NumberedTransition
from gpufleet.registry.database import Database
from gpufleet.registry.findings import SqlFindings
from gpufleet.registry.sql import SqlRegistry
from gpufleet.runtime import SystemClock
from gpufleet.wiring.notify import NotifyContext, make_receivers, run_housekeeping, run_notifications
from tests.fakes.receiver import Receiver
from tests.support.findings import make_finding, transitions_of
from tests.support.waiting import wait_until_async


class Transitions:
    """The part of a store that receives findings."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def write_findings(self, transitions: Sequence[NumberedTransition]) -> None:
        self.numbers += [one.number for one in transitions]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[NotifyContext]:
    database = Database.open(f"sqlite:///{tmp_path / 'registry.sqlite'}")
    registry = SqlRegistry(database, max_machines=10)
    registry.migrate()
    registry.load()
    store: Any = Transitions()
    with ThreadPoolExecutor(2) as threads, ThreadPoolExecutor(1) as writing:
        yield NotifyContext(
            findings=SqlFindings(database),
            machines=registry,
            store=store,
            hub="0123",
            folder=tmp_path,
            threads=threads,
            writing=writing,
            clock=SystemClock(),
        )
    registry.close()


def config(url: str, folder: Path, **webhook: Any) -> FindingReceiversConfig:
    secret = folder / "secret"
    secret.write_text("0123456789abcdef\n")
    return FindingReceiversConfig(
        webhook=(WebhookConfig(name="w", url=f"{url}/hook", secret_file=str(secret), **webhook),),
        alertmanager=(AlertmanagerConfig(name="a", urls=(f"{url}/am",)),),
    )


@contextlib.asynccontextmanager
async def running(settings: FindingReceiversConfig, context: NotifyContext) -> AsyncIterator[Sequence[FindingReceiver]]:
    """Run the receivers until each has every transition at the end of the block."""
    receivers = make_receivers(settings, context)
    async with run_notifications(receivers, Counters()):
        yield receivers
        newest = max((one.number for one in context.findings.finding_transitions(0, 100)), default=0)

        async def is_delivered() -> bool:
            positions = [context.findings.notified(one.name) for one in receivers]
            is_known = bool(context.findings.notified(f"webhook/w{REMINDED}"))
            return is_known and positions == [newest or None, newest, newest]

        await wait_until_async(is_delivered, what="every receiver to have every transition")


async def test_every_receiver_gets_findings_across_restarts(context: NotifyContext, tmp_path: Path) -> None:
    finding = make_finding("node.missing", "east/m1", context.clock.now_ns())
    opened, closed = transitions_of(msgspec.structs.replace(finding, closed_at=context.clock.now_ns() + 1))
    async with Receiver.running() as server:
        async with running(config(server.url, tmp_path), context) as receivers:
            pass
        assert [one.name for one in receivers] == [
            "store",
            "webhook/w",
            f"alertmanager/a/{receiver_address(f'{server.url}/am')}",
        ]
        for transition in (opened, closed):
            context.findings.save_findings(FindingsState(), [transition])
            async with running(config(server.url, tmp_path), context):
                pass
        events = [json.loads(got.body)["id"] for got in server.got if got.path == "/hook"]
        assert events == [f"{finding.id}.opened", f"{finding.id}.closed"]
        assert {got.path for got in server.got} == {"/hook", "/am/api/v2/alerts"}
    store: Any = context.store
    assert store.numbers == [1, 2]


async def test_housekeeping_keeps_the_positions_of_receivers(context: NotifyContext, tmp_path: Path) -> None:
    receivers = make_receivers(config("http://127.0.0.1:9", tmp_path), context)
    own = [name for one in receivers for name in one.cursors]
    for name in (*own, "webhook/removed"):
        context.findings.set_notified(name, 1)
    async with run_housekeeping(receivers, context, Counters()):

        async def is_removed() -> bool:
            return context.findings.notified("webhook/removed") is None

        await wait_until_async(is_removed, what="the position of a removed receiver to be removed")
    assert [context.findings.notified(one) for one in own] == [1] * len(own)
    assert f"webhook/w{REMINDED}" in own


async def test_only_the_store_receives_findings_by_default(context: NotifyContext) -> None:
    assert [one.name for one in make_receivers(FindingReceiversConfig(), context)] == ["store"]


def test_invalid_settings_fail_the_start(context: NotifyContext, tmp_path: Path) -> None:
    settings = config("http://127.0.0.1:9", tmp_path, rules=("gpu.unknown",))
    with pytest.raises(ConfigError, match=r"gpu\.unknown"):
        make_receivers(settings, context)
    settings = config("http://127.0.0.1:9", tmp_path)
    (tmp_path / "secret").write_text("short")
    with pytest.raises(ConfigError) as caught:
        make_receivers(settings, context)
    assert caught.value.source == str(tmp_path / "secret")
