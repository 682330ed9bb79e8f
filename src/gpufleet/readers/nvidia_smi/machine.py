"""Machine readings: versions, number of devices, and the state of the driver, failures included."""

from gpufleet.codecs.nvidia_smi import Failure
from gpufleet.codecs.nvidia_smi.values import shown, token
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
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


def _version(text: str | None) -> Value | Absent:
    if text is None:
        return Absent(Reason.NOT_REPORTED)
    why = token(text)
    return shown(text) if why is None else Absent(why)
