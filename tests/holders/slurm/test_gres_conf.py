"""SLURM's list of GPUs: gres.conf, `slurmd -G`, and the order that indexes count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.holders.slurm.gres_conf import (
    capability,
    minor,
    order,
    parse_gres_conf,
    parse_slurmd_gres,
)
from gpufleet.holders.slurm.parse import parse_gres
from gpufleet.holders.slurm.records import GpuFiles
from gpufleet.model.errors import WireError
from tests.holders.slurm.recorded import text


def conf(content: str, node: str = "n1", **included: str) -> tuple[GpuFiles, ...] | None:
    return parse_gres_conf({"gres.conf": content, **included}, "gres.conf", node)


def files(entries: tuple[GpuFiles, ...] | None) -> list[str]:
    assert entries is not None
    return [",".join(entry.files) for entry in entries]


def test_lines_for_other_nodes_are_left_out() -> None:
    content = (
        "AutoDetect=off\n"
        "# comment\n"
        "NodeName=n[1-2],x9 Name=gpu Type=h100 File=/dev/nvidia[3,0-1] Cores=0-3 # comment\n"
        'nodename=n1 NAME=GPU type="h100" \\\n file=/dev/nvidia2\n'
        "NodeName=n3 Name=gpu Type=h100 File=/dev/nvidia7\n"
        "NodeName=n1 Name=nic File=/dev/mlx0\n"
        "NodeName=n9 AutoDetect=nvml\n"
    )
    assert files(conf(content)) == [f"/dev/nvidia{n}" for n in (3, 0, 1, 2)]
    assert files(conf(content, "n3")) == ["/dev/nvidia7"]
    assert conf(content, "n9") is None
    assert files(conf(content, "x9")) == [f"/dev/nvidia{n}" for n in (3, 0, 1)]


def test_included_files_are_read_and_required() -> None:
    assert files(conf("Include gpus.conf\n", **{"gpus.conf": "Name=gpu File=/dev/nvidia0"})) == ["/dev/nvidia0"]
    for content in ("Include gpus.conf\n", "Include gres.conf\n"):
        with pytest.raises(WireError):
            conf(content)


def test_detected_gpus_have_no_list() -> None:
    assert conf("AutoDetect=nvml\n") is None
    assert conf("AutoDetect=nvml\nName=gpu File=/dev/nvidia0\n") is None


def test_multiple_files_are_one_device() -> None:
    entries = conf("Name=gpu Type=1g.5gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]\n")
    assert files(entries) == ["/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22"]


def test_slurmd_prints_the_order_of_slurm_conf() -> None:
    entries = parse_slurmd_gres(text("slurmd-gres"))
    assert [(entry.type, entry.files) for entry in entries] == [
        ("b", ("/srv/slurm/dev/nvidia7",)),
        ("a", ("/srv/slurm/dev/nvidia6",)),
    ]
    from_file = conf("Name=gpu Type=a File=/srv/slurm/dev/nvidia6\nName=gpu Type=b File=/srv/slurm/dev/nvidia7")
    assert from_file is not None
    configured = parse_gres("gpu:b:1,gpu:a:1,shard:b:2,shard:a:2")
    assert order(from_file, configured) == order(entries, configured) == entries


def test_slurmd_lines_of_capabilities_belong_to_the_gpu_before() -> None:
    line = "slurmd: Gres Name=gpu Type=1g Count=1 Index=0 ID=7696487 File={} (null)\n"
    printed = "".join(line.format(f"/dev/{name}") for name in ("nvidia0", "nvidia-caps/nvidia-cap21") * 2)
    assert [len(entry.files) for entry in parse_slurmd_gres(printed.encode())] == [2, 2]


@pytest.mark.parametrize(
    ("content", "configured"),
    [
        ("Name=gpu Type=a File=/dev/nvidia[0-2]", "gpu:a:4"),
        ("Name=gpu Type=a File=/dev/nvidia[0-3]", "gpu:b:4"),
        ("Name=gpu File=/dev/nvidia[0-3]", "gpu:a:2,gpu:b:2"),
        ("Name=gpu Type=a File=/dev/nvidia[0-3]", "gpu:a:2,gpu:a:2"),
        ("Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1", "gpu:a:1"),
        ("Name=gpu Type=a File=/dev/nvidia0", "(null)"),
    ],
)
def test_contradicting_configuration_has_no_order(content: str, configured: str) -> None:
    entries = conf(content)
    assert entries is not None
    with pytest.raises(WireError):
        order(entries, parse_gres(configured))


def test_single_untyped_list_has_an_order() -> None:
    for content, configured in (("File=/dev/nvidia[0-1]", "gpu:h100:2"), ("Type=h100 File=/dev/nvidia[0-1]", "gpu:2")):
        entries = conf(f"Name=gpu {content}")
        assert entries is not None
        assert files(order(entries, parse_gres(configured))) == ["/dev/nvidia0", "/dev/nvidia1"]


def test_device_numbers_and_capabilities() -> None:
    assert [minor(file) for file in ("/dev/nvidia12", "/dev/nvidiactl", "/dev/dri/renderD128", "nvidia1")] == [
        12,
        None,
        None,
        None,
    ]
    assert capability("/dev/nvidia-caps/nvidia-cap21") == 21


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=8, unique_by=lambda x: x[1]))
def test_index_counts_by_type_and_then_by_line(gpus: list[tuple[str, int]]) -> None:
    types = list(dict.fromkeys(kind for kind, _ in reversed(gpus)))
    configured = ",".join(f"gpu:{kind}:{sum(other == kind for other, _ in gpus)}" for kind in types)
    entries = conf("\n".join(f"Name=gpu Type={kind} File=/dev/nvidia{number}" for kind, number in gpus))
    assert entries is not None
    expected = [f"/dev/nvidia{number}" for kind in types for other, number in gpus if other == kind]
    assert files(order(entries, parse_gres(configured))) == expected


@given(st.text('NameGpuFile=/dvni[0-9],"\\#\n ', max_size=80) | st.text(max_size=80))
def test_any_text_is_a_list_or_a_wire_error(content: str) -> None:
    try:
        entries = conf(f"Name=gpu {content}")
    except WireError:
        return
    assert entries is None or len(entries) <= 1024
