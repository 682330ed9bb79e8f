"""What product names show."""

import pytest

from gpufleet.model.products import (
    ENCODER,
    FAN,
    JPEG,
    MEMORY,
    NVLINK,
    OPTICAL_FLOW,
    is_module,
    is_vgpu_type,
    lacking_parts,
    supports_mig,
)

PRODUCTS = {
    "TU117": """NVIDIA GeForce GTX 1650; NVIDIA GeForce GTX 1630; NVIDIA GeForce GTX 1650 with Max-Q Design;
        NVIDIA GeForce GTX 1650 Ti; NVIDIA GeForce GTX 1650 Ti with Max-Q Design; NVIDIA GeForce MX450;
        NVIDIA GeForce MX550; NVIDIA T1000; NVIDIA DGX Display; NVIDIA T600; NVIDIA T400; NVIDIA T600 Laptop GPU;
        NVIDIA T550 Laptop GPU; Quadro T2000; Quadro T2000 with Max-Q Design; Quadro T1000; NVIDIA T500;
        NVIDIA T1200 Laptop GPU; NVIDIA T1000 8GB; NVIDIA T400 4GB; NVIDIA T400E""",
    "Turing": """NVIDIA GeForce RTX 2080 Super with Max-Q Design; NVIDIA GeForce RTX 2080 SUPER;
        NVIDIA GeForce RTX 2070 SUPER; NVIDIA GeForce RTX 2060; NVIDIA TITAN RTX; NVIDIA GeForce GTX 1660 Ti;
        NVIDIA GeForce GTX 1660 SUPER; NVIDIA GeForce GTX 1650 SUPER; Quadro RTX 3000; Quadro RTX 4000; Quadro RTX 5000;
        Quadro RTX 6000; Quadro RTX 8000; Tesla T4; NVIDIA T4G; Tesla T40 24GB; Matrox D-Series D2450; NVIDIA CMP 30HX;
        NVIDIA CMP 40HX; NVIDIA CMP 50HX; GRID T4-16Q; GRID RTX6000-24Q; GRID RTX6000P-8Q; GRID RTX8000-48Q""",
    "GA10x": """NVIDIA GeForce RTX 3090 Ti; NVIDIA GeForce RTX 3090; NVIDIA GeForce RTX 3080 Ti Laptop GPU;
        NVIDIA GeForce RTX 3050 OEM; NVIDIA GeForce RTX 3050Ti Laptop GPU; NVIDIA GeForce RTX 3050 6GB Laptop GPU;
        NVIDIA GeForce RTX 2050; NVIDIA GeForce MX570; NVIDIA GeForce MX570 A; NVIDIA RTX A6000; NVIDIA RTX A4000H;
        NVIDIA RTX A400; NVIDIA RTX A2000 12GB; NVIDIA RTX A500 Laptop GPU; NVIDIA CMP 70HX; NVIDIA CMP 90HX;
        NVIDIA RTXA6000-24Q""",
    "GA10x, passive": "NVIDIA A40; NVIDIA A10; NVIDIA A10G; NVIDIA A10M; NVIDIA A16; NVIDIA A2; NVIDIA A40-48Q",
    "GA100, GH100, GB100, GB110": """NVIDIA A100-SXM4-40GB; NVIDIA A100-PG509-200; NVIDIA PG509-210; NVIDIA PG506-232;
        NVIDIA A100 80GB PCIe; NVIDIA A30; NVIDIA A800-SXM4-80GB; NVIDIA A800 40GB Active; NVIDIA AX800; NVIDIA A100X;
        NVIDIA CMP 170HX; NVIDIA H20 NVL16; NVIDIA H20-3e; NVIDIA H100 80GB HBM3; NVIDIA H100 NVL; NVIDIA H800 PCIe;
        NVIDIA H200; NVIDIA GH200 480GB; NVIDIA GH200 144G HBM3e; NVIDIA B200; NVIDIA GB200; NVIDIA B300 SXM6 AC;
        NVIDIA GB300; GRID A100D-80C; NVIDIA H100XM-80C; GRID A100D-1-10C""",
    "others": """NVIDIA GeForce RTX 4090 D; NVIDIA RTX 6000 Ada Generation; NVIDIA RTX 4000 SFF Ada Generation;
        NVIDIA RTX 2000E Ada Generation; NVIDIA RTX 3000 Ada Generation Laptop GPU; NVIDIA RTX 5880 Ada Generation;
        NVIDIA L40; NVIDIA L40S; NVIDIA L20; NVIDIA L2; NVIDIA L4; NVIDIA GeForce RTX 3050 A Laptop GPU;
        NVIDIA GeForce RTX 5090 D v2; NVIDIA RTX PRO 6000 Blackwell Server Edition; NVIDIA RTX PRO 500 Blackwell;
        NVIDIA RTX 6000D; NVIDIA GB10; NVIDIA RTX6000-Ada-48Q; Tesla V100-SXM2-16GB; Tesla P100-PCIE-16GB;
        NVIDIA Graphics Device""",
}
"""Chip to product names, mostly of the table of PCI ids in NVIDIA's open kernel modules 610.43."""

LACKING = {
    "TU117": (JPEG, OPTICAL_FLOW),
    "Turing": (JPEG,),
    "GA10x": (JPEG,),
    "GA10x, passive": (JPEG, FAN),
    "GA100, GH100, GB100, GB110": (ENCODER,),
    "others": (),
}


@pytest.mark.parametrize("chip", PRODUCTS)
def test_product_name_shows_which_parts_are_missing(chip: str) -> None:
    names = [" ".join(name.split()) for name in PRODUCTS[chip].split(";")]
    assert len(names) > 5
    found = {name: tuple(part for part in lacking_parts(name) if part not in (NVLINK, MEMORY)) for name in names}
    assert found == dict.fromkeys(names, LACKING[chip])


def test_products_without_nvlink() -> None:
    without = """NVIDIA GeForce GTX 1650; NVIDIA GeForce RTX 2060; NVIDIA GeForce RTX 3080 Ti; NVIDIA GeForce RTX 5090;
        NVIDIA GeForce RTX 4090 D; NVIDIA T1000; Tesla T4; NVIDIA A2; NVIDIA A10G; NVIDIA A16; NVIDIA RTX A4000;
        NVIDIA L4; NVIDIA L40S; NVIDIA L40S-48Q; NVIDIA RTX 6000 Ada Generation; NVIDIA GB10; Tesla V100-PCIE-16GB;
        Tesla V100-FHHL-16GB; NVIDIA RTX PRO 6000 Blackwell Server Edition;
        NVIDIA RTX Pro 6000 Blackwell DC-4-96Q; NVIDIA GeForce RTX 2070; Quadro RTX 4000; NVIDIA TITAN V"""
    possible = """NVIDIA GeForce RTX 2070 SUPER; NVIDIA GeForce RTX 2080 Ti;
        NVIDIA GeForce RTX 3090; NVIDIA TITAN RTX; Quadro RTX 5000; NVIDIA A30;
        Quadro RTX 8000; NVIDIA RTX A4500; NVIDIA RTX A6000; NVIDIA A40; NVIDIA A100-SXM4-40GB; NVIDIA A100 80GB PCIe;
        NVIDIA H100 PCIe; NVIDIA H100 NVL; NVIDIA H200; NVIDIA GH200 480GB; NVIDIA B200; NVIDIA GB200; NVIDIA GB300;
        Tesla V100-SXM2-16GB; Tesla P100-SXM2-16GB; NVIDIA Graphics Device"""
    names = [" ".join(name.split()) for name in f"{without};{possible}".split(";")]
    assert [name for name in names if NVLINK in lacking_parts(name)] == names[: without.count(";") + 1]


def test_products_without_memory_of_their_own() -> None:
    names = ("NVIDIA GB10", "NVIDIA Thor", "NVIDIA GB100", "NVIDIA GH200 480GB", "NVIDIA Graphics Device")
    assert [name for name in names if MEMORY in lacking_parts(name)] == ["NVIDIA GB10", "NVIDIA Thor"]


def test_vgpu_types_are_no_board_names() -> None:
    types = (
        "NVIDIA A40-48Q",
        "GRID A100D-1-10C",
        "NVIDIA A100-1-5CME",
        "NVIDIA RTX6000-Ada-48Q",
        "GRID T4-2B",
        "GRID T4-2B4",
    )
    boards = ("NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB", "NVIDIA H20-3e", "NVIDIA L40S", "NVIDIA B300 SXM6 AC")
    assert [name for name in (*types, *boards) if is_vgpu_type(name)] == list(types)


MODULES = """NVIDIA A100-SXM4-80GB; Tesla V100-SXM2-16GB; NVIDIA H100 80GB HBM3; NVIDIA H200; NVIDIA H20-3e;
    NVIDIA GH200 480GB; NVIDIA B200; NVIDIA GB200; NVIDIA B300 SXM6 AC"""
CARDS = """NVIDIA A100 80GB PCIe; NVIDIA A100-PCIE-40GB; NVIDIA H100 PCIe; NVIDIA H100 NVL; NVIDIA H200 NVL;
    NVIDIA H800 PCIe; NVIDIA A30; NVIDIA L40S; Tesla T4; NVIDIA GeForce RTX 2080 SUPER; NVIDIA GB10;
    NVIDIA RTX PRO 6000 Blackwell Server Edition; NVIDIA H100XM-80C; NVIDIA H100 CNX"""


def test_modules_are_known_by_product() -> None:
    modules, cards = ([name.strip() for name in names.split(";")] for names in (MODULES, CARDS))
    assert [name for name in (*modules, *cards) if is_module(name)] == modules


def test_chips_with_mig_are_known_by_product() -> None:
    yes = ("NVIDIA A30", "NVIDIA H100 NVL", "NVIDIA GB200", "NVIDIA RTX PRO 5000 72GB Blackwell")
    no = (
        "NVIDIA CMP 170HX",
        "NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU",
        "Tesla T4",
        "NVIDIA A10",
        "NVIDIA L40S",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA GeForce RTX 5090",
    )
    assert [name for name in (*yes, *no) if supports_mig(name)] == list(yes)
