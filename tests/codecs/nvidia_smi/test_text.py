"""Text output of `nvidia-smi -q`: sections, processes, messages, truncation and bounds."""

import pytest

from gpufleet.codecs.nvidia_smi import parse_text, split_text_rounds
from gpufleet.codecs.nvidia_smi.records import MAX_DEPTH, MAX_LINES, MAX_ROUNDS
from gpufleet.model.errors import WireError, WireLimitError
from tests.fakes.nvidia_smi.standin import DATA

EXAMPLE = b"""
==============NVSMI LOG==============

Timestamp                       : Fri Jul  3 22:22:26 2026
Attached GPUs                   : 1
GPU 00000000:83:00.0
    Product Name                : NVIDIA H200
    MIG Device
        Index                   : 0
        Shared FB Memory Usage
            Total               : 71424 MiB
    MIG Device
        Index                   : 1
    Chassis Serial Number       :
    Clocks Event Reasons
        HW Slowdown             : Not Active
            HW Thermal Slowdown : Active
    Processes
        GPU instance ID         : 2
        Process ID              : 12249
            Type                : C
            Name                : a : b
        GPU instance ID         : 3
        Process ID              : 12250
            Type                : G
"""


def test_values_are_named_by_their_sections() -> None:
    log = parse_text(EXAMPLE)
    (gpu,) = log.devices
    assert log.leaves == {"timestamp": "Fri Jul  3 22:22:26 2026", "attached_gpus": "1"}
    assert gpu.name == "00000000:83:00.0"
    assert gpu.leaves == {
        "product_name": "NVIDIA H200",
        "chassis_serial_number": "",
        "clocks_event_reasons/hw_slowdown": "Not Active",
        "clocks_event_reasons/hw_slowdown/hw_thermal_slowdown": "Active",
    }
    assert [mig.leaves for mig in gpu.mig] == [
        {"index": "0", "shared_fb_memory_usage/total": "71424 MiB"},
        {"index": "1"},
    ]
    assert gpu.processes == (
        {"gpu_instance_id": "2", "process_id": "12249", "type": "C", "name": "a : b"},
        {"gpu_instance_id": "3", "process_id": "12250", "type": "G"},
    )


def test_vgpu_instances_belong_to_their_gpus() -> None:
    log = parse_text((DATA / "text-vgpu-host-vgpu-q-edited.txt").read_bytes())
    assert {gpu.name: len(gpu.vgpus) for gpu in log.devices if gpu.vgpus} == {
        "00000000:10:00.0": 2,
        "00000000:21:00.0": 3,
        "00000000:81:00.0": 3,
        "00000000:85:00.0": 1,
    }
    vgpu = log.devices[0].vgpus[1]
    assert vgpu.name == "3251634217"
    assert vgpu.leaves["vm_uuid"] == "c77c546c-c5a2-4093-bc1b-8051983e7a61"
    assert vgpu.leaves["fb_memory_usage/used"] == "0 MiB"


def test_truncated_last_line_is_dropped() -> None:
    log = parse_text(b"GPU 00000000:83:00.0\n    FB Memory Usage\n        Total : 143771 MiB\n        Used : 14")
    assert log.devices[0].leaves == {"fb_memory_usage/total": "143771 MiB"}
    assert "truncated" in log.messages[0]


def test_text_before_and_between_devices_is_a_message() -> None:
    log = parse_text(
        b"Unable to determine the device handle for GPU0000:65:00.0: Unknown Error\n"
        b"GPU 00000000:83:00.0\n    Fan Speed : 30 %\nGPU is lost.\nGPU 00000000:84:00.0\n    Fan Speed : 31 %\n"
    )
    assert log.messages == (
        "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error",
        "GPU is lost.",
    )
    assert [gpu.leaves for gpu in log.devices] == [{"fan_speed": "30 %"}, {"fan_speed": "31 %"}]


def test_text_without_a_device_is_an_error() -> None:
    with pytest.raises(WireError) as caught:
        parse_text(b"No devices were found\n")
    assert caught.value.field == "-q"


def test_too_deep_nesting_is_rejected() -> None:
    lines = "\n".join(" " * (depth + 1) + "a" for depth in range(MAX_DEPTH + 1))
    with pytest.raises(WireLimitError):
        parse_text(f"GPU 00000000:83:00.0\n{lines} : 1\n".encode())


def test_too_many_rounds_are_rejected() -> None:
    one = b"==NVSMI LOG==\nGPU 00000000:83:00.0\n"
    assert len(split_text_rounds(one * MAX_ROUNDS)) == MAX_ROUNDS
    with pytest.raises(WireLimitError, match="4096") as caught:
        split_text_rounds(one * (MAX_ROUNDS + 1))
    assert caught.value.field == "-q"


def test_too_many_lines_are_rejected() -> None:
    with pytest.raises(WireLimitError, match="50000") as caught:
        parse_text(b"GPU 00000000:83:00.0\n" + b"\n" * MAX_LINES)
    assert caught.value.field == "-q"


GPU = b"GPU 00000000:01:00.0\n    Product Name      : NVIDIA H200\n    Processes\n"
PROCESS = b"        GPU instance ID : N/A\n            Process ID  : %d\n            Type        : C\n"


def test_truncated_output_has_no_processes() -> None:
    whole, cut = GPU + PROCESS % 12 + PROCESS % 13, GPU + PROCESS % 12 + b"        GPU inst"
    assert len(parse_text(whole).devices[0].processes or ()) == 2
    assert parse_text(cut).devices[0].processes is None


def test_first_of_several_outputs_is_read() -> None:
    banner = b"\n==============NVSMI LOG==============\n\nTimestamp : Fri Jul  3 22:10:%d 2026\n"
    one, two = banner % 45 + GPU + PROCESS % 12, banner % 46 + GPU + PROCESS % 13
    log, first = parse_text(one + two), parse_text(one)
    assert (log.leaves, log.devices) == (first.leaves, first.devices)
    assert len(log.messages) == 1
