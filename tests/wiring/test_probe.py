"""Construction of the performance probe, and an operator's request for it."""

from pathlib import Path

from gpufleet.config.agent import AgentConfig, ProbeConfig
from gpufleet.model.catalogue import Lane
from gpufleet.runtime import SystemClock
from gpufleet.wiring.probe import INTERVAL_SECONDS, make_probe, probe_intervals, request_of, request_probe


def test_probe_is_made_unless_it_is_disabled(tmp_path: Path) -> None:
    config = AgentConfig(state=str(tmp_path))
    assert [reader.name for reader, _ in make_probe(config, SystemClock())] == ["probe"]
    assert make_probe(AgentConfig(state=str(tmp_path), probe=ProbeConfig(enabled=False)), SystemClock()) == []


def test_passes_are_at_least_as_frequent_as_the_static_lane() -> None:
    assert probe_intervals({Lane.STATIC: 600.0}) == {Lane.STATIC: INTERVAL_SECONDS}
    assert probe_intervals({Lane.STATIC: 3.0}) == {Lane.STATIC: 3.0}


def test_request_changes_the_number(tmp_path: Path) -> None:
    requested = request_of(tmp_path)
    assert requested() == 0
    request_probe(tmp_path)
    assert requested() > 0
