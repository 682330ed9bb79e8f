"""Help, device list, captures, exit codes and messages of nvidia-smi."""

import pytest

from gpufleet.codecs.nvidia_smi import classify_failure, parse_capture, parse_help, parse_listing
from gpufleet.codecs.nvidia_smi.failure import named_device
from gpufleet.codecs.nvidia_smi.values import slug
from gpufleet.model.absence import Reason
from gpufleet.model.errors import WireError
from tests.fakes.nvidia_smi.standin import DATA

SECTIONS = parse_capture((DATA / "capture-h200-mig__590.48.01.txt").read_bytes())


def section(group: str, start: str) -> bytes:
    return next(one.body for one in SECTIONS if one.group == group and one.arguments.startswith(start))


def test_help_lists_fields_and_aliases() -> None:
    names = parse_help(section("capabilities", "--help-query-gpu"))
    assert {"name", "gpu_name", "fabric.health.summary", "temperature.gpu.tlimit"} <= names
    assert "--query-gpu" not in names
    header = section("idle", "--query-gpu").split(b"\n")[0].decode()
    assert {column.partition(" [")[0] for column in header.split(", ")} <= names


def test_help_without_fields_is_an_error() -> None:
    with pytest.raises(WireError):
        parse_help(b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")


def test_device_list_has_mig_uuids() -> None:
    listing = parse_listing(section("capabilities", "-L"))
    (gpu,) = listing.gpus
    assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert [(mig.index, mig.profile) for mig in gpu.mig] == [
        (0, "1c.3g.71gb"),
        (1, "2c.3g.71gb"),
        (2, "2g.35gb"),
        (3, "1g.18gb"),
        (4, "1g.18gb"),
    ]
    assert gpu.mig[4].uuid == "MIG-00000004-0000-0000-0000-000000000004"


def test_device_list_with_parentheses_and_old_mig_uuids() -> None:
    listing = parse_listing(
        b"Unable to determine the device handle for gpu 0000:02:00.0: GPU is lost.\n"
        b"GPU 1: Odd (UUID: x) (UUID: GPU-1)\n  MIG 3g.20gb Device 0: (UUID: MIG-GPU-1/3/0)\n"
    )
    assert (listing.gpus[0].name, listing.gpus[0].mig[0].uuid) == ("Odd (UUID: x)", "MIG-GPU-1/3/0")
    assert listing.messages == ("Unable to determine the device handle for gpu 0000:02:00.0: GPU is lost.",)


def test_capture_is_split_by_command() -> None:
    assert [(one.group, one.arguments.partition("=")[0]) for one in SECTIONS if one.group == "load"] == [
        ("load", ""),
        ("load", "-q"),
        ("load", "--query-gpu"),
        ("load", "--query-compute-apps"),
        ("load", "--query-accounted-apps"),
        ("load", "--query-retired-pages"),
        ("load", "pmon -c 5"),
        ("load", "dmon -c 5"),
    ]
    assert section("load", "-q").startswith(b"==============NVSMI LOG")


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "reason"),
    [
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that", "",
         Reason.NO_DRIVER),
        (9, "", "", Reason.NO_DRIVER),
        (6, "No devices were found\n", "", Reason.NO_SUPPORTED_GPU),
        (255, "Failed to initialize NVML: No supported GPUs were found\nUnable to determine the number of GPUs\n", "",
         Reason.NO_SUPPORTED_GPU),
        (18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n", "",
         Reason.DRIVER_MISMATCH),
        (18, "", "", Reason.DRIVER_MISMATCH),
        (255, "Failed to initialize NVML: Unknown Error\n", "", Reason.NOT_PERMITTED),
        (15, "Unable to determine the device handle for GPU 0000:65:00.0: GPU is lost.  Reboot the system to recover",
         "", Reason.DRIVER_ERROR),
        (15, "GPU is lost\n", "", Reason.DRIVER_ERROR),
        (15, "", "", Reason.DRIVER_ERROR),
        (4, "Unable to determine the device handle for GPU 0000:65:00.0: Insufficient Permissions\n", "",
         Reason.DRIVER_ERROR),
        (15, "Unable to determine the device handle for GPU 0000:65:00.0: GPU is lost\nNo devices were found\n", "",
         Reason.NO_SUPPORTED_GPU),
        (4, "", "", Reason.NOT_PERMITTED),
        (12, "", "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", Reason.NO_LIBRARY),
        (2, 'Field "kmd_version" is not a valid field to query.\n', "", Reason.NOT_IN_DRIVER),
        (124, "", "", Reason.TIMEOUT),
        (137, "0, 5", "", Reason.TIMEOUT),
        (127, "", "sh: 1: nvidia-smi: not found\n", Reason.READER_FAILED),
        (255, "", "", Reason.DRIVER_ERROR),
        (0, "", "", Reason.NO_DATA),
        (139, "", "", Reason.DRIVER_ERROR),
    ],
)  # fmt: skip
def test_failure_reason(code: int, stdout: str, stderr: str, reason: Reason) -> None:
    failure = classify_failure(code, stdout.encode(), stderr.encode())
    assert failure.reason is reason
    assert failure.message
    assert (stdout or stderr).split("\n")[0] in failure.message


def test_failure_message_is_clean_and_bounded() -> None:
    failure = classify_failure(1, b"\x1b[2Jfirst\x07\r\nfirst\n" + b"second " * 10_000, b"third\xff\n")
    assert "\x1b" not in failure.message
    assert failure.message.startswith("[2Jfirst; first; second")
    assert len(failure.message) < 1024


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("Unable to determine the device handle for GPU0000:65:00.0: Unknown Error",
         ("0000:65:00.0", Reason.DRIVER_ERROR)),
        ("Unable to determine the device handle for GPU1: 0000:34:00.0: GPU is lost",
         ("0000:34:00.0", Reason.GPU_LOST)),
        ("Unable to determine the device handle for gpu 0000:02:00.0: GPU is lost.", ("0000:02:00.0", Reason.GPU_LOST)),
        ("WARNING: infoROM is corrupted at gpu 0000:01:00.0", None),
        ("GPU 00000000:AF:00.0: GPU requires reset", ("0000:af:00.0", Reason.RESET_REQUIRED)),
        ("No devices were found", None),
    ],
)  # fmt: skip
def test_device_named_by_a_message(message: str, found: tuple[str, Reason] | None) -> None:
    assert named_device(message) == found


def test_names_of_xml_and_text_are_equal() -> None:
    assert slug("FB Memory Usage") == slug("fb_memory_usage") == "fb_memory_usage"
    assert slug("GPU T.Limit Temp") == "gpu_t_limit_temp"
