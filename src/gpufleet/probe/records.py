"""Records of the probe and of captures: facts, measurements, and the commands that gave them."""

import datetime as dt
import enum
from typing import Annotated

import msgspec

from gpufleet.model.absence import Reason

MAX_VALUE = 1e18
"""Maximum of a plausible value in any unit."""

MAX_REPEATS = 100
MAX_OUTPUT_TEXT = 64 << 10
"""Maximum length of one stored output, in characters."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]
"""Name of a fact or a measurement."""
Text = Annotated[str, msgspec.Meta(max_length=256)]
Detail = Annotated[str, msgspec.Meta(max_length=1024)]
FactValue = (
    bool
    | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    | float
    | Annotated[str, msgspec.Meta(max_length=1024)]
)
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Arguments = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=4096)], ...], msgspec.Meta(max_length=64)]


class MeasuredUnit(enum.StrEnum):
    """Unit of a measurement or a fact."""

    NONE = ""
    SECONDS = "seconds"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes_per_second"
    OPERATIONS_PER_SECOND = "operations_per_second"
    TRANSFERS_PER_SECOND = "transfers_per_second"
    WATTS = "watts"
    HERTZ = "hertz"


class Better(enum.StrEnum):
    """Direction in which a measurement improves."""

    LOWER = "lower"
    HIGHER = "higher"


class RawOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Raw output of a command. Its SHA-256 digest, over all bytes, is its key in the document.

    Attributes:
        bytes: length of the whole output.
        text: its beginning, decoded as UTF-8.
        truncated: whether the text is shorter than the output.
    """

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    text: Annotated[str, msgspec.Meta(max_length=MAX_OUTPUT_TEXT)]
    truncated: bool = False


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Command that a capture ran.

    Attributes:
        name: name of the command in the capture.
        argv: program and arguments.
        tool_version: of the program, if the capture read it before.
        started_at: by the clock of the capturing process.
        duration_seconds: by its monotonic clock, with the time of the channel.
        exit_code: None without a result.
        stdout, stderr: digests of the outputs; None without a result.
        absent, detail: reason without a result.
    """

    name: Name
    argv: Arguments
    tool_version: Text = ""
    started_at: dt.datetime
    duration_seconds: Seconds
    exit_code: int | None = None
    stdout: Digest | None = None
    stderr: Digest | None = None
    absent: Reason | None = None
    detail: Detail = ""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Property of the machine; exactly one of `value` and `absent` is set.

    Attributes:
        name: name in `probe.facts.FACTS`.
        subject: device of the fact, such as a PCI address; empty for the machine.
        value: in the unit.
        unit: of the value.
        source: file or command of the value.
        absent, detail: reason of the absence.
    """

    name: Name
    subject: Text = ""
    value: FactValue | None = None
    unit: MeasuredUnit = MeasuredUnit.NONE
    source: Text = ""
    absent: Reason | None = None
    detail: Detail = ""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the repeats of a measurement, in its unit.

    Attributes:
        count: number of values.
        median, mean, minimum, maximum: of the values.
        standard_deviation: of the sample; None for a single value.
    """

    count: Annotated[int, msgspec.Meta(ge=1)]
    median: float
    mean: float
    minimum: float
    maximum: float
    standard_deviation: float | None = None


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Repeated measurement; without values, `absent` is set.

    Attributes:
        name: name in the capture.
        unit: of the values.
        better: direction of improvement.
        tool: program that measured.
        tool_version: only if results of other versions are not comparable; else empty.
        arguments: of the program, with the target replaced by a placeholder.
        target: file, device or peer of the placeholder; empty if there is none.
        values: one for each successful repeat.
        statistics: of the values; None without values.
        failed: number of repeats without a value.
        absent, detail: reason of the last failed repeat, or why there are no repeats.
    """

    name: Name
    unit: MeasuredUnit
    better: Better
    tool: Text
    tool_version: Text = ""
    arguments: Arguments = ()
    target: Detail = ""
    values: Annotated[
        tuple[Annotated[float, msgspec.Meta(ge=0, le=MAX_VALUE)], ...], msgspec.Meta(max_length=MAX_REPEATS)
    ] = ()
    statistics: Statistics | None = None
    failed: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPEATS)] = 0
    absent: Reason | None = None
    detail: Detail = ""
