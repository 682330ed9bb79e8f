"""The machine's own rows: versions, number of devices, and the state of the driver, failures included."""

import contextlib
import hashlib
import os
import re
from pathlib import Path

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.readers.nvml.mapping import confidential, cuda_version
from gpufleet.readers.nvml.parse import REASONS, absence_of, label_of
from gpufleet.readers.nvml.protocol import DEFECT, Answer, SessionRecord
from gpufleet.readers.nvml.watch import Failed

NAME = "nvml"
NO_PERMISSION, UNKNOWN = 4, 999

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
    """Return the PCI addresses of the GPUs that the kernel's driver has; none where sysfs does not show it."""
    try:
        names = [entry.name for entry in (root / "sys/bus/pci/drivers/nvidia").iterdir()]
    except OSError:
        return frozenset()
    return frozenset(name for name in names if _ADDRESS.fullmatch(name))


def machine_sample(session: SessionRecord, lane: Lane, *, all_hung: bool, driver_session: int) -> Sample | None:
    """Return the machine's sample of a lane, or None where the lane has no row of it."""
    values: dict[str, Value | Absent]
    if lane is Lane.FAST:
        values = {"nvidia_devices": session.count, "nvidia_driver_state": "hung" if all_hung else "ok"}
    elif lane is Lane.STATIC:
        values = {
            "nvidia_driver_version": _text(session.driver),
            "nvidia_library_version": _text(session.library),
            "nvidia_cuda_version": _cuda(session.cuda),
            **confidential.map_system(session.system),
        }
    else:
        return None
    return _sample(lane, session.measured_at, values, driver_session)


def failure(failed: Failed, lane: Lane) -> ReaderError:
    """Return the error for a round that there is none of, with what can be told of the machine all the same."""
    record = failed.record
    words = str(failed)
    if failed.hung:
        reason = Reason.TIMEOUT
    elif record is None or record.code == DEFECT:
        reason = Reason.READER_FAILED
    elif record.code == UNKNOWN and record.no_access:
        reason, words = Reason.NOT_PERMITTED, f"{words} ({record.no_access})"
    elif record.code == NO_PERMISSION:
        reason = Reason.NOT_PERMITTED
    else:
        reason = REASONS.get(record.code, Reason.DRIVER_ERROR)
    at = record.measured_at if record is not None else failed.at
    return _error(reason, words, lane, at)


def no_devices(session: SessionRecord, lane: Lane) -> ReaderError:
    """Return the error for a driver that runs and shows no GPU."""
    words = "the driver shows no GPU to this process"
    return _error(Reason.NO_SUPPORTED_GPU, words, lane, session.measured_at, session)


class DriverSession:
    """Numbers the loads of the driver."""

    def __init__(self, root: Path) -> None:
        """Take where the machine's /proc and /sys are."""
        self._root = root
        self._boot = ""
        self._module = f"{root}/sys/module/nvidia"
        self._load, self._number = "", 0

    def number(self, driver: Answer) -> int:
        """Return a number for this load of the driver: the same while it lasts, another after a reload or reboot.

        Made of the boot's id and the inode of /sys/module/nvidia, which the kernel numbers afresh whenever the
        module is loaded (times of sysfs and procfs files say when they were looked at, not when they were made).
        Where sysfs does not show the module, the driver's version stands in for it. No process outlives its boot, so
        the boot's id is read once.
        """
        if not self._boot:
            with contextlib.suppress(OSError):
                self._boot = (self._root / "proc/sys/kernel/random/boot_id").read_text().strip()
        try:
            load = str(os.stat(self._module).st_ino)  # noqa: PTH116 - asked in every pass, with a path made once
        except OSError:
            load = str(driver.value)
        if load != self._load or not self._boot:
            digest = hashlib.blake2b(f"{self._boot}/{load}".encode(), digest_size=8).digest()
            self._load, self._number = load, int.from_bytes(digest, "big") >> 11  # 53 bits: exact in any JSON reader
        return self._number


def _error(reason: Reason, words: str, lane: Lane, at: int, session: SessionRecord | None = None) -> ReaderError:
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
        values = dict.fromkeys((*_STATIC, *confidential.SYSTEM_METRICS), why)
    else:
        return ReaderError(reason, words)
    return ReaderError(reason, words, round=Round(samples=(_sample(lane, at, values, 0),), errors=(words,)))


def _sample(lane: Lane, at: int, values: dict[str, Value | Absent], session: int) -> Sample:
    return Sample(view=None, reader=NAME, lane=lane, measured_at=at, values=values, driver_session=session)


def _text(answer: Answer) -> Value | Absent:
    if answer.code:
        return absence_of(answer.code, label_of(answer.asked), answer.value)
    return str(answer.value).strip() or Absent(Reason.NO_DATA, label_of(answer.asked))


def _cuda(answer: Answer) -> Value | Absent:
    call = label_of(answer.asked)
    if answer.code:
        return absence_of(answer.code, call, answer.value)
    return cuda_version(answer.value) or Absent(Reason.INVALID_VALUE, call)
