"""What an exit code and the driver's words mean, when there is no output to read.

Most words come on standard output, and an error line can precede good rows: a failure is judged only by whoever
found nothing in the output. Codes and sentences: nvidia-smi's manual page, and public logs of drivers 450 to 610.
"""

import re

import msgspec

from gpufleet.codecs.nvidia_smi.values import MAX_SHOWN, decode, messages_of, shown
from gpufleet.model.absence import Reason
from gpufleet.model.view import normalise_pci_address

SENTENCES = (
    ("couldn't communicate with the nvidia driver", Reason.NO_DRIVER),
    ("driver not loaded", Reason.NO_DRIVER),
    ("driver/library version mismatch", Reason.DRIVER_MISMATCH),
    ("no supported gpus were found", Reason.NO_SUPPORTED_GPU),
    ("no devices were found", Reason.NO_SUPPORTED_GPU),
    ("gpu is lost", Reason.GPU_LOST),
    ("gpu requires reset", Reason.RESET_REQUIRED),
    ("insufficient permissions", Reason.NOT_PERMITTED),
    ("couldn't find libnvidia-ml.so", Reason.NO_LIBRARY),
    ("nvml shared library", Reason.NO_LIBRARY),
    ("is not a valid field to query", Reason.NOT_IN_DRIVER),
    ("failed to initialize nvml: unknown error", Reason.NOT_PERMITTED),
)
"""Words that are looked for, in this order, in lower case.

`Failed to initialize NVML: Unknown Error` is what a container prints whose cgroup lost its devices.
"""

CODES = {
    2: Reason.NOT_IN_DRIVER,
    3: Reason.NOT_SUPPORTED,
    4: Reason.NOT_PERMITTED,
    6: Reason.NO_SUPPORTED_GPU,
    9: Reason.NO_DRIVER,
    12: Reason.NO_LIBRARY,
    13: Reason.NOT_IN_DRIVER,
    15: Reason.GPU_LOST,
    18: Reason.DRIVER_MISMATCH,
    28: Reason.NO_SUPPORTED_GPU,
    124: Reason.TIMEOUT,
    126: Reason.READER_FAILED,
    127: Reason.READER_FAILED,
    137: Reason.TIMEOUT,
}
"""Exit code to reason, where no words tell: nvidia-smi's own, timeout(1)'s 124 and 137, a shell's 126 and 127."""

_OF_CODE = {
    124: "nvidia-smi did not end in time",
    126: "nvidia-smi may not be run",
    127: "there is no nvidia-smi",
    137: "nvidia-smi was killed: it did not end in time",
}

_ADDRESS = re.compile(r"\bGPU ?(?:[0-9]{1,3}: )?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")


class Failure(msgspec.Struct, frozen=True):
    """Why there is nothing to read, and the words for it: the driver's own where there are any."""

    reason: Reason
    words: str


def judge(exit_code: int, stdout: bytes, stderr: bytes) -> Failure:
    """Return why an output that holds no rows and no devices is as it is."""
    lines = messages_of(decode(stdout[: 1 << 16]).split("\n") + decode(stderr[: 1 << 16]).split("\n"))
    told = " | ".join(lines).lower()
    reason = CODES.get(exit_code) if exit_code in _OF_CODE else None
    reason = reason or next((reason for words, reason in SENTENCES if words in told), None) or CODES.get(exit_code)
    if not lines:
        said = _OF_CODE.get(exit_code, f"nvidia-smi printed nothing and ended with code {exit_code}")
    else:
        said = "; ".join(lines)
        said = said if len(said) <= 2 * MAX_SHOWN else said[: 2 * MAX_SHOWN - 1] + "…"
        if exit_code in _OF_CODE:
            said = f"{_OF_CODE[exit_code]}: {said}"
    if reason is None:
        reason = Reason.NO_DATA if exit_code == 0 else Reason.DRIVER_ERROR
    return Failure(reason, said)


def named_device(message: str) -> tuple[str, Reason] | None:
    """Return the PCI address of the GPU that a message is about, and what it says of it; None if it names none."""
    found = _ADDRESS.search(shown(message))
    if found is None:
        return None
    lower = message.lower()
    reason = next((reason for words, reason in SENTENCES if words in lower), Reason.DRIVER_ERROR)
    return normalise_pci_address(found[1]), reason
