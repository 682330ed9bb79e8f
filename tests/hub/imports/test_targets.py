"""Machine and URL targets a scrape target."""

from typing import Any

import pytest

from gpufleet.codecs.target_files import TargetGroup
from gpufleet.config.scrape import DiscoveryConfig
from gpufleet.hub.imports.targets import MAX_TARGETS, ScrapeTarget, targets_of


def config(**more: Any) -> DiscoveryConfig:
    return DiscoveryConfig(files=("/x.yml",), **more)


def targets(group: TargetGroup, **more: Any) -> tuple[tuple[ScrapeTarget, ...], tuple[str, ...]]:
    return targets_of(config(**more), [group])


def test_labels_set_cluster_node_and_url() -> None:
    labels = {"cluster": "east", "node": "gpu-1", "__scheme__": "https", "__metrics_path__": "/gpu", "job": "dcgm"}
    assert targets(TargetGroup(("10.0.0.1:9400",), labels)) == (
        (ScrapeTarget("east", "gpu-1", "https://10.0.0.1:9400/gpu"),),
        (),
    )


def test_missing_labels_come_from_config_and_address() -> None:
    group = TargetGroup(("gpu-1:9400", "gpu-2", "[fd00::1]:9400"))
    found, left_out = targets(group, cluster="local", scheme="https", path="/m")
    assert not left_out
    assert found == (
        ScrapeTarget("local", "gpu-1", "https://gpu-1:9400/m"),
        ScrapeTarget("local", "gpu-2", "https://gpu-2/m"),
        ScrapeTarget("local", "fd00::1", "https://[fd00::1]:9400/m"),
    )


def test_netdata_is_scraped_at_its_root() -> None:
    found, _ = targets(TargetGroup(("gpu-1:19999",)), cluster="local", reads="netdata")
    assert found == (ScrapeTarget("local", "gpu-1", "http://gpu-1:19999"),)


@pytest.mark.parametrize(
    ("address", "labels"),
    [
        ("gpu-1:9400", {}),  # no cluster
        ("gpu-1:9400", {"cluster": "a/b"}),
        ("gpu-1:9400", {"cluster": "a", "node": "x" * 254}),
        ("gpu-1:9400", {"cluster": "a", "__scheme__": "file"}),
        ("evil@gpu-1:9400", {"cluster": "a"}),
        ("gpu-1:9400/other", {"cluster": "a"}),
        ("gpu-1:99999", {"cluster": "a"}),
        ("gpu-1:9400", {"cluster": "a", "__metrics_path__": "@evil/"}),
        ("gpu-1:9400", {"cluster": "a", "__param_module": "x"}),
    ],
)
def test_invalid_target_does_not_affect_the_others(address: str, labels: dict[str, str]) -> None:
    found, left_out = targets_of(config(), [TargetGroup((address,), labels), TargetGroup(("ok:1",), {"cluster": "a"})])
    assert [one.node for one in found] == ["ok"]
    assert len(left_out) == 1
    assert address in left_out[0]


def test_token_is_not_sent_in_plain_text() -> None:
    group = TargetGroup(("gpu-1:9400",))
    assert len(targets(group, cluster="a", token_file="/t")[1]) == 1
    assert len(targets(group, cluster="a", token_file="/t", insecure=True)[0]) == 1
    assert len(targets(group, cluster="a", token_file="/t", scheme="https")[0]) == 1


def test_node_is_scraped_once_and_targets_are_bounded() -> None:
    found, left_out = targets(TargetGroup(("gpu-1:9400", "gpu-1:9401", "gpu-1:9400")), cluster="a")
    assert [one.url for one in found] == ["http://gpu-1:9400/metrics"]
    assert len(left_out) == 1
    assert "gpu-1:9401" in left_out[0]
    assert "http://gpu-1:9400/metrics" in left_out[0]
    many = TargetGroup(tuple(f"n{number}:1" for number in range(MAX_TARGETS + 2)))
    found, left_out = targets(many, cluster="a")
    assert (len(found), len(left_out)) == (MAX_TARGETS, 2)
