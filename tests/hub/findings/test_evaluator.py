"""Evaluation of the rules on a hub with a fake clock: outages, restarts, and findings that open exactly once."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.fleet.rules import tracker
from gpufleet.hub.findings.evaluator import MAX_REPLAY_SECONDS, WAITING
from gpufleet.hub.findings.failures import READINGS, STORE
from gpufleet.hub.findings.gatherer import NO_READINGS
from gpufleet.model.finding import FindingState, Severity
from gpufleet.model.stored.findings import FindingsState, FindingTransition, TransitionKind
from gpufleet.model.stored.ledger import MachineCounts
from tests.hub.findings.evaluated_hub import EvaluatedHub
from tests.hub.liveness.fake_clock_hub import Node
from tests.support.waiting import wait_until_async

OPENED, ESCALATED, CLOSED = TransitionKind


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[EvaluatedHub]:
    hub = EvaluatedHub(tmp_path, "local", "other")
    yield hub
    hub.end()


def nodes(count: int, cluster: str = "local") -> list[Node]:
    """Return nodes with GPUs of their own."""
    first = 100 if cluster == "local" else 200
    found = [Node(f"node-{number}", cluster, first_gpu=first + 2 * number) for number in range(count)]
    for one in found:
        one.sends_inventory = True
    return found


async def test_node_is_missing_until_it_reports(hub: EvaluatedHub) -> None:
    every = nodes(2)
    await hub.run(120, every)
    assert hub.status.failures == {}
    assert hub.open_rules == set()
    assert hub.status.subjects == 1 + 2 + 2 + 2 + 4  # hub, clusters, machines, senders, GPUs
    await hub.run(120, every[:1])
    assert hub.open_rules == set()
    await hub.run(60, every[:1])
    ((rule, subject),) = hub.open_findings
    (machine,) = hub.registry.find_machines("local", "node-1")
    assert (rule, subject) == ("node.missing", f"local/{machine.id}")
    evidence = hub.open_findings[rule, subject].evidence
    assert float(evidence["unseen_seconds"]) == pytest.approx(180, abs=5)
    assert evidence["interval_seconds"] == "30"
    await hub.run(780, every[:1])
    assert hub.open_findings[rule, subject].severity is Severity.CRITICAL
    await hub.run(240, every)
    assert hub.open_rules == set()
    assert hub.transitions(rule) == [OPENED, ESCALATED, CLOSED]


@pytest.mark.parametrize("count", [0, 2])
async def test_cluster_at_its_limit_of_machines_is_a_finding(
    hub: EvaluatedHub, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    every = nodes(2)
    await hub.run(120, every)
    assert hub.open_rules == set()
    full = MachineCounts(by_cluster={"local": count}, limit=2, ratios={"local": 1.0})
    monkeypatch.setattr(hub.registry, "machine_counts", lambda: full)
    await hub.run(60, every)
    assert set(hub.open_findings) == {("cluster.machine_limit", "local")}
    assert hub.open_findings["cluster.machine_limit", "local"].severity is Severity.CRITICAL
    monkeypatch.undo()
    await hub.run(600, every)
    assert hub.open_rules == set()


async def test_cluster_without_reports_is_one_finding(hub: EvaluatedHub) -> None:
    every, other = nodes(1), nodes(2, "other")
    await hub.run(120, [*every, *other])
    await hub.run(480, every)
    assert set(hub.open_findings) == {("cluster.stale", "other")}


async def test_finding_opens_once_after_a_crash_before_the_save(hub: EvaluatedHub) -> None:
    every = nodes(2)
    await hub.run(180, every)
    await hub.run(120, every[:1])
    save = hub.registered.save_findings

    def crash(state: FindingsState, transitions: Sequence[FindingTransition]) -> None:
        assert [one.kind for one in transitions] == [OPENED]
        raise ZeroDivisionError("killed")

    hub.registered.save_findings = crash  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        await hub.run(60, every[:1])
    assert hub.open_rules == set()
    hub.registered.save_findings = save  # type: ignore[method-assign]
    hub.restart_after(5)
    await hub.run(60, every[:1])
    assert hub.open_rules == {"node.missing"}
    await hub.run(300, every[:1])
    assert hub.transitions("node.missing") == [OPENED]


async def test_open_findings_survive_a_restart(hub: EvaluatedHub) -> None:
    every = nodes(2)
    await hub.run(120, every)
    await hub.run(240, every[:1])
    (before,) = hub.open_findings.values()
    hub.restart_after(10)
    running = asyncio.create_task(hub.evaluator.run(hub.threads))
    await asyncio.sleep(0)
    await asyncio.get_running_loop().run_in_executor(hub.threads, lambda: None)
    assert [one.id for one in hub.status.open_findings()] == [before.id]
    running.cancel()
    await hub.run(240, every)
    assert hub.transitions("node.missing") == [OPENED, CLOSED]


async def test_outage_of_the_registry_is_a_finding_afterwards(hub: EvaluatedHub) -> None:
    every = nodes(2)
    await hub.run(180, every)
    hub.registered.is_down = True
    await hub.run(300, every)
    assert hub.open_rules == set(), "nothing is visible that is not durable"
    assert "the registry is down" in hub.status.evaluation().failure
    assert hub.status.errors["state of findings"] == 5
    hub.registered.is_down = False
    await hub.run(60, every)
    assert hub.status.evaluation().failure == ""
    assert hub.open_rules == {"hub.registry_unreachable"}
    await hub.run(180, every)
    assert hub.transitions("hub.registry_unreachable") == [OPENED, CLOSED]


async def test_outage_of_the_store_makes_facts_unknown(hub: EvaluatedHub) -> None:
    every = nodes(2)
    every[0].gpu_state = "lost"
    await hub.run(180, every)
    assert {rule for rule, _ in hub.open_findings} == {"gpu.lost"}
    hub.store.down, hub.flushes = True, False
    every[0].gpu_state = "ok"
    await hub.run(600, every)
    assert set(hub.status.failures) == {STORE}
    lost = [one for one in hub.open_findings.values() if one.rule == "gpu.lost"]
    assert [one.state for one in lost] == [FindingState.UNKNOWN] * 2
    assert hub.open_rules == {"gpu.lost", "hub.store_unreachable", "hub.flush_lag"}
    hub.store.down, hub.flushes = False, True
    await hub.run(300, every)
    assert hub.open_rules == set()
    assert hub.transitions("gpu.lost") == [OPENED, OPENED, CLOSED, CLOSED]


async def test_outage_of_the_store_is_not_time_without_the_gpu(
    hub: EvaluatedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "GONE_SECONDS", 120)
    (node,) = nodes(1)
    node.gpu_state = "lost"
    await hub.run(180, [node])
    hub.store.down, hub.flushes = True, False
    await hub.run(600, [node])
    assert "gpu.lost" in hub.open_rules
    hub.store.down, hub.flushes = False, True
    await hub.run(60, [node])
    monkeypatch.setattr(hub.store, "newest_columns", lambda *_: NO_READINGS)
    await hub.run(300, [node])
    assert "gpu.lost" not in hub.open_rules


async def test_failed_query_does_not_hide_other_facts(hub: EvaluatedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    every = nodes(2)
    await hub.run(180, every)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(hub.store, "newest_columns", fail)
    await hub.run(240, every[:1])
    assert hub.status.failures == {READINGS: "ZeroDivisionError: a defect"}
    assert hub.open_rules == {"node.missing"}


async def test_outage_of_the_hub_opens_no_findings_about_freshness(hub: EvaluatedHub) -> None:
    every = [*nodes(1), *nodes(1, "other")]
    await hub.run(180, every)
    hub.restart_after(3600)
    await hub.run(300, every)
    (opened,) = hub.registered.finding_transitions(0, 100)
    assert opened.transition.finding.rule == "hub.outage"
    assert float(opened.transition.finding.evidence["down_seconds"]) == pytest.approx(3600, abs=3)
    for _ in range(10):
        await hub.advance(40)
        hub.ingest_clock.note_rejected()
        await hub.run(20)
    await hub.run(120, every)
    rules = [one.transition.finding.rule for one in hub.registered.finding_transitions(0, 100)]
    assert rules[:2] == ["hub.outage", "hub.not_ingesting"]
    assert set(rules) == {"hub.outage", "hub.not_ingesting"}


async def test_outage_of_the_hub_closes_after_an_hour(hub: EvaluatedHub) -> None:
    every = nodes(1)
    hub.restart_after(200)
    await hub.run(120, every)
    assert hub.registered.finding_transitions(0, 100) == ()  # a short restart
    hub.restart_after(3600)
    await hub.run(3600, every)
    assert hub.open_rules == {"hub.outage"}
    await hub.run(300, every)
    assert hub.transitions("hub.outage") == [TransitionKind.OPENED, TransitionKind.CLOSED]


async def test_nothing_is_judged_before_the_backlog_is_stored(hub: EvaluatedHub) -> None:
    hub.is_caught_up = False
    await hub.run(120, nodes(1))
    assert (hub.status.at, hub.status.evaluation().failure) == (None, WAITING)
    hub.is_caught_up = True
    await hub.run(60, nodes(1))
    assert hub.status.at is not None
    assert hub.status.evaluation().failure == ""


async def test_backlog_that_cannot_be_stored_does_not_stop_the_rules(hub: EvaluatedHub) -> None:
    hub.is_caught_up = False
    await hub.run(MAX_REPLAY_SECONDS + 60)
    assert hub.status.at is not None


async def test_evaluation_repeats_until_it_is_cancelled(hub: EvaluatedHub) -> None:
    with ThreadPoolExecutor(1) as thread:
        running = asyncio.create_task(hub.evaluator.run(thread))

        async def evaluated() -> bool:
            return hub.status.at is not None

        await wait_until_async(evaluated, what="the first judgement")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_judgement_is_dropped_when_the_hub_stops(hub: EvaluatedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    await hub.run(180, nodes(2))
    judged_at, read = hub.status.at, []

    def stop(cluster: str, *_: object) -> None:
        read.append(cluster)
        hub.evaluator.stop()

    monkeypatch.setattr(hub.store, "newest_columns", stop)
    await hub.run(120, nodes(2))
    assert len(read) == 1, "no further cluster is read"
    assert (hub.status.at, hub.status.failures) == (judged_at, {})
