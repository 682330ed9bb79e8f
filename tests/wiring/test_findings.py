"""Evaluation of the rules in a running hub: state of an earlier process, metrics, and switching it off."""

import asyncio
from concurrent.futures import Executor
from pathlib import Path

import pytest

from gpufleet.config.hub import FindingsConfig
from gpufleet.fleet.contract.facts import ClusterFacts
from gpufleet.hub.contract.verdicts import ContractVerdicts
from gpufleet.hub.findings.evaluator import FindingEvaluator
from gpufleet.registry.database import Database
from gpufleet.registry.findings import SqlFindings
from gpufleet.wiring.contract import load_contract
from tests.hub.findings.test_durable import findings_of, judgement
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, running_site

LAST = "gpufleet_hub_findings_last_evaluation_timestamp_seconds"


def save_state(folder: Path) -> None:
    """Save the state of an earlier process with an open finding and a verdict."""
    folder.mkdir()
    database = Database.open(f"sqlite:///{folder / 'registry.sqlite'}")
    database.migrate()
    registry = SqlFindings(database)
    findings_of(registry).update(judgement(0, lost=True))
    ContractVerdicts(load_contract(), registry).judge([ClusterFacts(cluster="local", at=1, hub_version="0.6.0")], ())
    database.close()


async def series(site: Site, prefix: str) -> list[str]:
    return [line for line in (await site.text("/metrics")).splitlines() if line.startswith(prefix)]


async def test_hub_evaluates_the_rules_and_keeps_open_findings(tmp_path: Path) -> None:
    save_state(tmp_path / "hub")
    async with running_site(tmp_path) as site:

        async def evaluated() -> bool:
            return bool(await series(site, LAST))

        await wait_until_async(evaluated, what="the first evaluation")
        assert await series(site, "gpufleet_findings{") == [
            'gpufleet_findings{rule="gpu.lost",severity="critical",state="unknown",cluster="c"} 1'
        ]
        (seconds,) = await series(site, "gpufleet_hub_findings_evaluation_seconds")
        assert float(seconds.split()[1]) > 0
        assert await series(site, "gpufleet_hub_findings_subjects") == ["gpufleet_hub_findings_subjects 2"]
        assert await series(site, "gpufleet_hub_findings_untracked") == ["gpufleet_hub_findings_untracked 0"]
        assert await series(site, "gpufleet_hub_findings_errors_total") == []
        metric = 'gpufleet_contract_items{cluster="local",status="not_met"}'
        assert len(await series(site, metric)) == 1
        _, page = await site.request("/v1/findings")
        assert page["evaluation"]["is_current"]
        assert [one["state"] for one in page["items"]] == ["unknown"]


async def test_no_numbers_of_an_evaluation_before_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(_: FindingEvaluator, __: Executor) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FindingEvaluator, "evaluate", wait)
    async with running_site(tmp_path) as site:
        assert await series(site, "gpufleet_hub_findings") == []


async def test_evaluation_can_be_disabled(tmp_path: Path) -> None:
    async with running_site(tmp_path, findings=FindingsConfig(enabled=False)) as site:
        _, page = await site.request("/v1/findings")
        assert page["evaluation"]["evaluated_at"] is None
        assert await series(site, "gpufleet_hub_findings") == []
