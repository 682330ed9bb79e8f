"""Readings of the machine: versions, number of devices, and state of the driver, also for a failed round."""

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.device_state import shared_reason
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.readers.nvml.context import UNKNOWN
from gpufleet.readers.nvml.mapping import cuda_version
from gpufleet.readers.nvml.mapping.board import SYSTEM_METRICS, map_system
from gpufleet.readers.nvml.parse import REASONS, absence_of, label_of
from gpufleet.readers.nvml.protocol import DEFECT, CallResult, SessionRecord
from gpufleet.readers.nvml.watch import RoundFailedError

NAME = "nvml"
NO_PERMISSION = 4

DRIVER_STATES = {
    Reason.NO_LIBRARY: "no_library",
    Reason.NO_DRIVER: "no_driver",
    Reason.DRIVER_MISMATCH: "mismatch",
    Reason.NO_SUPPORTED_GPU: "no_supported_gpu",
    Reason.NOT_PERMITTED: "no_access",
    Reason.TIMEOUT: "hung",
}
"""Reason of a failure to the catalogue's `nvidia_driver_state`; any other is `error`."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_STATIC = ("nvidia_driver_version", "nvidia_library_version", "nvidia_cuda_version")


def bound_devices(root: Path) -> frozenset[str]:
    """Return the PCI addresses of the GPUs bound to the kernel's driver; empty if sysfs does not show it."""
    try:
        names = [entry.name for entry in (root / "sys/bus/pci/drivers/nvidia").iterdir()]
    except OSError:
        return frozenset()
    return frozenset(name for name in names if _ADDRESS.fullmatch(name))


def machine_sample(session: SessionRecord, lane: Lane, *, all_hung: bool, driver_session: int) -> Sample | None:
    """Return the machine's sample of a lane, or None if the lane has no readings of the machine."""
    values: dict[str, Value | Absent]
    if lane is Lane.FAST:
        values = {"nvidia_devices": session.count, "nvidia_driver_state": "hung" if all_hung else "ok"}
    elif lane is Lane.STATIC:
        values = {
            "nvidia_driver_version": _text(session.driver),
            "nvidia_library_version": _text(session.library),
            "nvidia_cuda_version": _cuda(session.cuda),
            **map_system(session.system),
        }
    else:
        return None
    return _sample(lane, session.measured_at, values, driver_session)


def failure(failed: RoundFailedError, lane: Lane) -> ReaderError:
    """Return the error for a failed round, with the machine's readings that are known all the same."""
    record = failed.record
    message = str(failed)
    if failed.hung:
        reason = Reason.TIMEOUT
    elif record is None or record.code == DEFECT:
        reason = Reason.READER_FAILED
    elif record.code == UNKNOWN and record.open_error:
        reason, message = Reason.NOT_PERMITTED, f"{message} ({record.open_error})"
    elif record.code == NO_PERMISSION:
        reason = Reason.NOT_PERMITTED
    else:
        reason = shared_reason(REASONS.get(record.code, Reason.DRIVER_ERROR))
    at = record.measured_at if record is not None else failed.at
    age = 0.0 if failed.began is None else time.monotonic() - failed.began
    return _error(reason, message, lane, at, age_seconds=age)


def no_devices(session: SessionRecord, lane: Lane) -> ReaderError:
    """Return the error for a running driver without GPUs."""
    message = "the driver shows no GPU to this process"
    return _error(Reason.NO_SUPPORTED_GPU, message, lane, session.measured_at, session)


class DriverSession:
    """Numbers for the loads of the driver."""

    def __init__(self, root: Path) -> None:
        """Create it.

        Args:
            root: directory of the machine's /proc and /sys.
        """
        self._root = root
        self._boot = ""
        self._module = f"{root}/sys/module/nvidia"
        self._load, self._number = "", 0

    def number(self, driver: CallResult) -> int:
        """Return the number of this load of the driver: constant until a reload or reboot.

        Derived from the boot id and the inode of /sys/module/nvidia, which changes with each load of the module. (The
        times of sysfs and procfs files are of their lookup, not of their creation.) If sysfs does not show the module,
        the driver's version replaces the inode. The boot id is read once: no process outlives its boot.
        """
        if not self._boot:
            with contextlib.suppress(OSError):
                self._boot = (self._root / "proc/sys/kernel/random/boot_id").read_text().strip()
        try:
            load = str(os.stat(self._module).st_ino)  # noqa: PTH116 - called in every pass, with a path built once
        except OSError:
            load = str(driver.value)
        if load != self._load or not self._boot:
            digest = hashlib.blake2b(f"{self._boot}/{load}".encode(), digest_size=8).digest()
            self._load, self._number = load, int.from_bytes(digest, "big") >> 11  # 53 bits: exact in any JSON reader
        return self._number


def _error(
    reason: Reason,
    message: str,
    lane: Lane,
    at: int,
    session: SessionRecord | None = None,
    *,
    age_seconds: float = 0.0,
) -> ReaderError:
    why = Absent(reason)
    values: dict[str, Value | Absent]
    if lane is Lane.FAST:
        values = {
            "nvidia_devices": session.count if session is not None else why,
            "nvidia_driver_state": DRIVER_STATES.get(reason, "error"),
        }
    elif lane is Lane.STATIC and session is not None:
        sample = machine_sample(session, lane, all_hung=False, driver_session=0)
        values = sample.values if sample is not None else {}
    elif lane is Lane.STATIC:
        values = dict.fromkeys((*_STATIC, *SYSTEM_METRICS), why)
    else:
        return ReaderError(reason, message, age_seconds=age_seconds)
    done = Round(samples=(_sample(lane, at, values, 0),), errors=(message,))
    return ReaderError(reason, message, round=done, age_seconds=age_seconds)


def _sample(lane: Lane, at: int, values: dict[str, Value | Absent], session: int) -> Sample:
    return Sample(view=None, reader=NAME, lane=lane, measured_at=at, values=values, driver_session=session)


def _text(answer: CallResult) -> Value | Absent:
    if answer.code:
        return absence_of(answer.code, label_of(answer.breadcrumb), answer.value)
    return str(answer.value).strip() or Absent(Reason.NO_DATA, label_of(answer.breadcrumb))


def _cuda(answer: CallResult) -> Value | Absent:
    call = label_of(answer.breadcrumb)
    if answer.code:
        return absence_of(answer.code, call, answer.value)
    return cuda_version(answer.value) or Absent(Reason.INVALID_VALUE, call)
