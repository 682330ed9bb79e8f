"""Classification of a failed nvidia-smi call by exit code and messages.

Most messages are on standard output, and an error line can precede valid rows: classify a failure only if the output
has no rows. Codes and messages are from nvidia-smi's manual page, and public logs of drivers 450 to 610.
"""

import re
from collections.abc import Iterable

import msgspec

from gpufleet.codecs.nvidia_smi.values import MAX_SHOWN, decode, messages_of, shown
from gpufleet.model.absence import Reason
from gpufleet.model.device_state import device_reason, shared_reason
from gpufleet.model.view import normalise_pci_address

SENTENCES = (
    ("couldn't communicate with the nvidia driver", Reason.NO_DRIVER),
    ("driver not loaded", Reason.NO_DRIVER),
    ("driver/library version mismatch", Reason.DRIVER_MISMATCH),
    ("no supported gpus were found", Reason.NO_SUPPORTED_GPU),
    ("no devices were found", Reason.NO_SUPPORTED_GPU),
    ("gpu is lost", Reason.GPU_LOST),
    ("gpu requires reset", Reason.RESET_REQUIRED),
    ("gpu requires restart", Reason.RESET_REQUIRED),
    ("insufficient permissions", Reason.NOT_PERMITTED),
    ("couldn't find libnvidia-ml.so", Reason.NO_LIBRARY),
    ("nvml shared library", Reason.NO_LIBRARY),
    ("is not a valid field to query", Reason.NOT_IN_DRIVER),
    ("failed to initialize nvml: unknown error", Reason.NOT_PERMITTED),
)
"""Message fragments in lower case, in order of precedence.

A container whose cgroup lost its devices prints `Failed to initialize NVML: Unknown Error`.
"""

CODES = {
    2: Reason.NOT_IN_DRIVER,
    3: Reason.NOT_SUPPORTED,
    4: Reason.NOT_PERMITTED,
    6: Reason.NO_SUPPORTED_GPU,
    9: Reason.NO_DRIVER,
    12: Reason.NO_LIBRARY,
    13: Reason.NOT_IN_DRIVER,
    18: Reason.DRIVER_MISMATCH,
    28: Reason.NO_SUPPORTED_GPU,
    124: Reason.TIMEOUT,
    126: Reason.READER_FAILED,
    127: Reason.READER_FAILED,
    137: Reason.TIMEOUT,
}
"""Exit code to reason if no message matches: nvidia-smi's own, timeout(1)'s 124 and 137, a shell's 126 and 127.

15 (a GPU is lost) has no reason: it names no GPU.
"""

_OF_CODE = {
    124: "nvidia-smi timed out",
    126: "no permission to run nvidia-smi",
    127: "nvidia-smi not found",
    137: "nvidia-smi timed out and was killed",
}

_ADDRESS = re.compile(
    r"\b(?:GPU|handle for gpu) ?(?:[0-9]{1,3}: )?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"
)
"""Address in a message about a failed GPU. A warning `infoROM is corrupted at gpu ...` is about a GPU that works."""


class Failure(msgspec.Struct, frozen=True):
    """Reason and messages of a failed call; the messages are the driver's own if there are any.

    Attributes:
        reason: of the call as a whole. `named_devices` returns the reasons of single GPUs.
        lines: messages; each can name another GPU.
    """

    reason: Reason
    lines: tuple[str, ...]

    @property
    def message(self) -> str:
        """Messages in one text."""
        message = "; ".join(self.lines)
        return message if len(message) <= 2 * MAX_SHOWN else message[: 2 * MAX_SHOWN - 1] + "…"


def classify_failure(exit_code: int, stdout: bytes, stderr: bytes) -> Failure:
    """Classify output without rows and devices."""
    lines = messages_of(decode(stdout[: 1 << 16]).split("\n") + decode(stderr[: 1 << 16]).split("\n"))
    if exit_code in _OF_CODE:
        return Failure(CODES[exit_code], (_OF_CODE[exit_code], *lines))
    shared = [line for line in lines if named_device(line) is None]
    reason = _reason_in(" | ".join(shared))
    if reason is None and len(shared) < len(lines):
        reason = Reason.DRIVER_ERROR  # all that is known is about the named GPUs, also by the exit code
    reason = reason or CODES.get(exit_code) or (Reason.NO_DATA if exit_code == 0 else Reason.DRIVER_ERROR)
    return Failure(shared_reason(reason), lines or (f"nvidia-smi printed nothing and ended with code {exit_code}",))


def named_devices(messages: Iterable[str]) -> dict[str, Reason]:
    """Return the GPUs that messages name: PCI address to reason. A reason about the whole device takes precedence."""
    found: dict[str, Reason] = {}
    for address, reason in filter(None, map(named_device, messages)):
        found[address] = device_reason((found.get(address, reason), reason)) or found.get(address, reason)
    return found


def named_device(message: str) -> tuple[str, Reason] | None:
    """Return the PCI address of the GPU in a message, and the reason; None if it has no address."""
    found = _ADDRESS.search(shown(message))
    if found is None:
        return None
    return normalise_pci_address(found[1]), _reason_in(message) or Reason.DRIVER_ERROR


def _reason_in(text: str) -> Reason | None:
    lower = text.lower()
    return next((reason for fragment, reason in SENTENCES if fragment in lower), None)
