"""Names of other projects: every name has a row in the reference, and rows without a metric have a reason."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gpufleet.exporters.reference import render_dialects_reference
from gpufleet.model.catalogue import CATALOGUE

PEERS = Path(__file__).parents[1] / "data" / "peers"
ROW = re.compile(r"\| `([^`]+)` \| (?:`([a-z0-9_]+)(?:\{[^`]*\})?`|–) \| ?(.*?) ?\|\Z")


def rows() -> dict[str, tuple[str | None, str]]:
    """Return the metric, if any, and the remark of each foreign name."""
    found: dict[str, tuple[str | None, str]] = {}
    for line in render_dialects_reference().splitlines():
        if line.startswith("| `"):
            match = ROW.match(line)
            assert match, line
            found[match[1]] = match[2], match[3]
    return found


@pytest.mark.parametrize("peer", sorted(path.stem for path in PEERS.glob("*.txt")))
def test_every_name_of_a_peer_has_a_row(peer: str) -> None:
    known = rows()
    prefixes = tuple(name.removesuffix("*") for name in known if name.endswith("*"))
    names = (PEERS / f"{peer}.txt").read_text().split()
    assert len(names) > 40
    assert not [name for name in names if name not in known and not name.startswith(prefixes)]


def test_row_without_a_metric_has_a_reason() -> None:
    for name, (ours, remark) in rows().items():
        assert ours in CATALOGUE if ours is not None else len(remark) > 5, name


def test_most_gpu_metrics_of_each_peer_are_covered() -> None:
    """Not a goal: it shows that most rows name a metric."""
    known = rows()
    for peer, least in (("dcgm-exporter", 48), ("all-smi", 43), ("nvidia-gpu-exporter", 70), ("nvitop-exporter", 34)):
        names = (PEERS / f"{peer}.txt").read_text().split()
        assert sum(known[name][0] is not None for name in names) >= least, peer


def test_prometheus_client_appends_the_unit() -> None:
    registry = CollectorRegistry()
    Gauge("gpu_utilization", "GPU utilization (%).", unit="Percentage", registry=registry).set(1)
    assert b"gpu_utilization_Percentage 1.0" in generate_latest(registry)
