"""Machine readings: versions, number of devices, and the state of the driver, failures included."""

import re
from collections.abc import Iterable, Mapping, Sequence

from gpufleet.codecs.nvidia_smi import Failure
from gpufleet.codecs.nvidia_smi.values import shown, version_of
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.driver_texts import text_reason
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample, Value

NAME = "nvidia_smi"

DRIVER_STATES = {
    Reason.NO_LIBRARY: "no_library",
    Reason.NO_DRIVER: "no_driver",
    Reason.DRIVER_MISMATCH: "mismatch",
    Reason.NO_SUPPORTED_GPU: "no_supported_gpu",
    Reason.NOT_PERMITTED: "no_access",
    Reason.TIMEOUT: "hung",
}
"""Reason of a failure to `nvidia_driver_state`. A failure of the command itself implies no driver state."""

DRIVER_VERSION, CUDA_VERSION = "nvidia_driver_version", "nvidia_cuda_version"


_COUNT = re.compile("[0-9]{1,5}", re.ASCII)


def machine_sample(
    lane: Lane, at: int, *, shown_gpus: int, driver: str | None, cuda: str | None, reader: str = NAME
) -> Sample | None:
    """Return the machine's sample of a lane, or None if the lane has none."""
    values: dict[str, Value | Absent]
    if lane is Lane.FAST:
        values = {"nvidia_devices": shown_gpus, "nvidia_driver_state": "ok"}
    elif lane is Lane.STATIC:
        values = {DRIVER_VERSION: _version(driver), CUDA_VERSION: _version(cuda)}
    else:
        return None
    return Sample(view=None, reader=reader, lane=lane, measured_at=at, values=values)


def reader_error(failure: Failure, lane: Lane, at: int) -> ReaderError:
    """Return the error of a failed pass, with the machine's sample in its round."""
    why = Absent(failure.reason)
    values: dict[str, Value | Absent]
    if lane is Lane.FAST:
        unknown = failure.reason is Reason.READER_FAILED
        state: Value | Absent = why if unknown else DRIVER_STATES.get(failure.reason, "error")
        values = {"nvidia_devices": why, "nvidia_driver_state": state}
    elif lane is Lane.STATIC:
        values = {DRIVER_VERSION: why, CUDA_VERSION: why}
    else:
        return ReaderError(failure.reason, failure.message)
    sample = Sample(view=None, reader=NAME, lane=lane, measured_at=at, values=values)
    return ReaderError(failure.reason, failure.message, round=Round(samples=(sample,), errors=(failure.message,)))


def driver_of(heads: Sequence[Mapping[str, str]]) -> str | None:
    """Return the driver version in heads of logs or in rows; drivers from 610 on call it `kmd_version`.

    Without a version, return the first placeholder, such as `N/A`; None if neither was printed.
    """
    return _first_version(heads, "kmd_version", "driver_version")


def cuda_of(heads: Sequence[Mapping[str, str]]) -> str | None:
    """Return the CUDA version as `driver_of` does; drivers from 610 on call it `cuda_umd_version`."""
    return _first_version(heads, "cuda_umd_version", "cuda_version")


def count_of(texts: Iterable[str | None]) -> int | None:
    """Return the driver's own count of GPUs, the largest of several, or None if there is none."""
    counts = [int(text) for text in texts if text is not None and _COUNT.fullmatch(text) is not None]
    return max(counts, default=None)


def notes_of(texts: Mapping[str, str]) -> list[str]:
    """Return the notes that nvidia-smi printed behind versions."""
    names = ("driver_version", "cuda_version", "kmd_version", "cuda_umd_version")
    notes = {name: version_of(texts[name])[1] for name in names if name in texts}
    return [f"{name}: {note}" for name, note in notes.items() if note]


def _first_version(heads: Sequence[Mapping[str, str]], *names: str) -> str | None:
    printed = [texts[name] for texts in heads for name in names if name in texts]
    versions = [version_of(text)[0] for text in printed if text_reason(text) is None]
    return next(iter((*versions, *printed)), None)


def _version(text: str | None) -> Value | Absent:
    if text is None:
        return Absent(Reason.NOT_REPORTED)
    why = text_reason(text)
    return shown(version_of(text)[0]) if why is None else Absent(why)
