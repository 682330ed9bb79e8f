"""The driver's words in place of an output: what nvidia-smi prints where it shows no GPU at all."""

from gpufleet.codecs.nvidia_smi import Failure, judge
from gpufleet.codecs.nvidia_smi.failure import SENTENCES
from gpufleet.decoding.assembling import INTERVALS, Assembling
from gpufleet.decoding.format import Decoded, Format, Source
from gpufleet.decoding.smi import NO_TIME
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.readers.nvidia_smi.machine import NAME, failure_error
from gpufleet.readers.nvidia_smi.mapping.rows import LANES

MAX_BYTES = 16 << 10
"""Eight GPUs that all fail print 1 kB of words."""

_STARTS = (b"NVIDIA-SMI has failed", b"Failed to initialize NVML", b"No devices were found", b"Unable to determine")
"""How a line of them begins."""


def _fits(content: bytes) -> bool:
    return len(content) <= MAX_BYTES and any(line.lstrip().startswith(_STARTS) for line in content.split(b"\n"))


def _decode(source: Source) -> Decoded:
    if len(source.content) > MAX_BYTES:
        raise WireLimitError("", f"{len(source.content)} bytes, more than {MAX_BYTES}")
    failure = judge(0, source.content, b"")
    if not any(words in failure.words.lower() for words, _ in SENTENCES) and not _fits(source.content):
        raise WireError("", "no words in it that nvidia-smi prints where it shows no GPU")
    if failure.reason is Reason.NO_DATA:  # without its exit code nothing tells more
        failure = Failure(Reason.DRIVER_ERROR, failure.words)
    machine = Assembling(Machine(name=source.name), source.at)
    samples: list[Sample] = []
    for lane in LANES:
        told = failure_error(failure, lane, source.at).round
        samples += told.samples if told is not None else ()
    machine.take(samples, statuses=[_failed(lane, failure, source.at) for lane in LANES])
    return Decoded(snapshots=(machine.snapshot(),), notes=(NO_TIME, failure.words))


def _failed(lane: Lane, failure: Failure, at: int) -> ReaderStatus:
    return ReaderStatus(
        reader=NAME,
        lane=lane,
        state=ReaderState.FAILED,
        interval_seconds=INTERVALS[lane],
        last_attempt=at,
        failures=1,
        error_class=failure.reason,
        last_error=failure.words,
    )


FAILURE = Format(
    name="nvidia-smi-failure",
    help="what nvidia-smi prints where it shows no GPU",
    fits=_fits,
    decode=_decode,
)
