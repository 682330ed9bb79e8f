"""What product names show."""

import pytest

from gpufleet.model.engines import ENCODER, JPEG, is_vgpu_type, lacking_engines


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "GRID A100D-80C", "NVIDIA H100XM-80C"), (ENCODER,)),
        (("NVIDIA A30", "NVIDIA H20-3e", "NVIDIA GH200 480GB", "NVIDIA B200", "NVIDIA GB300"), (ENCODER,)),
        (
            ("Tesla T4", "NVIDIA T1000 8GB", "GRID RTX6000P-8Q", "NVIDIA GeForce RTX 2080 SUPER"),
            (JPEG,),
        ),
        (("Quadro RTX 6000", "NVIDIA A10G", "NVIDIA A40-48Q", "NVIDIA RTXA6000-24Q", "GeForce RTX 3090"), (JPEG,)),
        (("NVIDIA L40S", "NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX6000-Ada-48Q", "NVIDIA GeForce RTX 5090"), ()),
        (("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA GB10", "Tesla V100-SXM2-16GB", ""), ()),
    ],
)
def test_product_name_shows_which_engines_a_chip_lacks(names: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert {name: lacking_engines(name) for name in names} == dict.fromkeys(names, found)


def test_vgpu_types_are_no_board_names() -> None:
    types = ("NVIDIA A40-48Q", "GRID A100D-1-10C", "NVIDIA A100-1-5CME", "NVIDIA RTX6000-Ada-48Q", "GRID T4-2B")
    boards = ("NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB", "NVIDIA H20-3e", "NVIDIA L40S", "NVIDIA B300 SXM6 AC")
    assert [name for name in (*types, *boards) if is_vgpu_type(name)] == list(types)
