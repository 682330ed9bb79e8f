"""Attribution of random pods whose claims travel over gRPC: every device is right or explicitly unknown."""

import itertools

import pytest

from tests.support.kubelet_placements import is_of_pods, run_over_grpc

SEEDS = tuple(itertools.islice(filter(is_of_pods, itertools.count()), 3))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("permitted", [True, False])
def test_no_placement_is_attributed_to_the_wrong_pod(seed: int, permitted: bool) -> None:
    score = run_over_grpc(seed, 30, permitted=permitted)
    assert score.wrong == 0
    assert score.right > 0
