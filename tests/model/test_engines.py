"""Engines that chips lack, by product name."""

import pytest

from gpufleet.model.engines import ENCODER, JPEG, lacking_engines


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "GRID A100D-80C", "NVIDIA H100XM-80C"), (ENCODER,)),
        (("NVIDIA A30", "NVIDIA H20-3e", "NVIDIA GH200 480GB", "NVIDIA B200", "NVIDIA GB300"), (ENCODER,)),
        (("Tesla T4", "NVIDIA T1000 8GB", "Quadro RTX 6000", "NVIDIA GeForce RTX 2080 SUPER"), (JPEG,)),
        (("NVIDIA A10G", "NVIDIA A40-48Q", "NVIDIA RTXA6000-24Q", "NVIDIA GeForce RTX 3090"), (JPEG,)),
        (("NVIDIA L40S", "NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX6000-Ada-48Q", "NVIDIA GeForce RTX 5090"), ()),
        (("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA GB10", "Tesla V100-SXM2-16GB", ""), ()),
    ],
)
def test_product_name_shows_which_engines_a_chip_lacks(names: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert {name: lacking_engines(name) for name in names} == dict.fromkeys(names, found)
