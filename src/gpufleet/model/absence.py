"""Absence of a value: the closed set of reasons."""

import enum
from collections.abc import Iterable, Mapping

import msgspec


class Reason(enum.StrEnum):
    """Reason why a reading, or a whole answer, is absent. The set is closed: a new cause needs a new member.

    A name from a newer build decodes as `UNKNOWN`; the reading stays absent.
    """

    # the stack below the reader
    NO_LIBRARY = "no_library"  # libnvidia-ml.so.1 is not installed
    NO_DRIVER = "no_driver"  # the kernel driver is not loaded, or no driver is bound to the device
    DRIVER_MISMATCH = "driver_mismatch"  # library and kernel driver have different versions
    DRIVER_ERROR = "driver_error"  # a driver error without a more specific reason
    NO_SUPPORTED_GPU = "no_supported_gpu"  # the driver is loaded and reports no GPU
    BOUND_TO_VFIO = "bound_to_vfio"  # the device is passed through to a guest: host tools cannot see it
    OTHER_DRIVER = "other_driver"  # the bound driver is not supported by any reader
    # the device
    GPU_LOST = "gpu_lost"  # fell off the bus
    RESET_REQUIRED = "reset_required"
    TIMEOUT = "timeout"  # the call did not return in time; detail names the call
    NOT_SUPPORTED = "not_supported"  # this device does not support it
    NOT_IN_DRIVER = "not_in_driver"  # this driver version does not support it
    NOT_IN_MIG_MODE = "not_in_mig_mode"  # not defined while MIG is enabled
    NOT_IN_GUEST = "not_in_guest"  # a guest cannot see it
    NOT_PERMITTED = "not_permitted"  # needs a privilege that this process lacks; detail names it
    # the value
    NO_DATA = "no_data"  # the source exists but has no value yet
    AMBIGUOUS_ZERO = "ambiguous_zero"  # the source writes 0 both for a measured 0 and for a failed query
    INVALID_VALUE = "invalid_value"  # the source gave a sentinel, NaN or a value out of range
    NOT_REPORTED = "not_reported"  # the source does not include this metric
    # the collection
    NOT_COLLECTED = "not_collected"  # no reader is configured, or it has not completed a round yet
    READER_FAILED = "reader_failed"  # the whole reader failed; last_error has the message
    STALE = "stale"  # the newest value is older than the stated age
    # access to a guest
    GUEST_UNREACHABLE = "guest_unreachable"  # no access path answers
    GUEST_BOOTING = "guest_booting"  # it exists or is expected, but does not answer yet
    GUEST_REFUSED = "guest_refused"  # it answers but rejects the agent's key
    IDENTITY_MISMATCH = "identity_mismatch"  # the host key is not that of the dialled machine
    NOT_ENABLED = "not_enabled"  # it answers, but the service is disabled or not installed there
    INCOMPATIBLE_VERSION = "incompatible_version"  # the service in the guest has an unsupported version
    GPU_COUNT_DIFFERS = "gpu_count_differs"  # the guest's GPU count differs from the expected count; detail has both
    # the allocation contract
    TARGET_UNKNOWN = "target_unknown"  # the allocation's target was never seen
    AMBIGUOUS_TARGET = "ambiguous_target"  # more than one machine matches the target; detail names them
    GUEST_NOT_COLLECTED = "guest_not_collected"  # no reader collects from inside this guest
    NOT_ATTRIBUTED = "not_attributed"  # no source reports which device this pod, job or VM holds
    NOT_STARTED = "not_started"  # the allocation has not started
    ENDED = "ended"  # the allocation has ended
    # between builds
    UNKNOWN = "unknown"  # a reason of a newer build that this build does not know

    @classmethod
    def _missing_(cls, value: object) -> "Reason | None":
        return cls.UNKNOWN if isinstance(value, str) else None


REASON_TEXTS: Mapping[Reason, str] = {
    Reason.NO_LIBRARY: "The driver's library is not installed.",
    Reason.NO_DRIVER: "No driver is loaded, or none is bound to the device.",
    Reason.DRIVER_MISMATCH: "Library and kernel driver have different versions.",
    Reason.DRIVER_ERROR: "The driver returned an error.",
    Reason.NO_SUPPORTED_GPU: "The driver is loaded and reports no GPU.",
    Reason.BOUND_TO_VFIO: "The device is passed through to a virtual machine. Tools of the host cannot read it.",
    Reason.OTHER_DRIVER: "No reader supports the driver that is bound to the device.",
    Reason.GPU_LOST: "The GPU has fallen off the bus.",
    Reason.RESET_REQUIRED: "The GPU needs a reset.",
    Reason.TIMEOUT: "The call did not return in time.",
    Reason.NOT_SUPPORTED: "The device does not support it.",
    Reason.NOT_IN_DRIVER: "This driver version does not support it.",
    Reason.NOT_IN_MIG_MODE: "It is not defined while MIG is enabled.",
    Reason.NOT_IN_GUEST: "A virtual machine cannot see it.",
    Reason.NOT_PERMITTED: "The reader lacks a privilege.",
    Reason.NO_DATA: "The source has no value yet.",
    Reason.AMBIGUOUS_ZERO: "The source reports 0, which it also reports if it cannot read the value.",
    Reason.INVALID_VALUE: "The source returned an invalid value.",
    Reason.NOT_REPORTED: "The source does not report it.",
    Reason.NOT_COLLECTED: "No reader is configured, or none has completed a pass.",
    Reason.READER_FAILED: "The reader failed.",
    Reason.STALE: "The newest value is too old to be current.",
    Reason.GUEST_UNREACHABLE: "No access path to the virtual machine answers.",
    Reason.GUEST_BOOTING: "The virtual machine does not answer yet.",
    Reason.GUEST_REFUSED: "The virtual machine rejects the agent's key.",
    Reason.IDENTITY_MISMATCH: "The answering machine has another host key than the expected one.",
    Reason.NOT_ENABLED: "The service is disabled or not installed in the virtual machine.",
    Reason.INCOMPATIBLE_VERSION: "The service in the virtual machine has an unsupported version.",
    Reason.GPU_COUNT_DIFFERS: "The number of GPUs differs from the expected number.",
    Reason.TARGET_UNKNOWN: "No machine has reported the target of this allocation.",
    Reason.AMBIGUOUS_TARGET: "Several machines match the target of this allocation.",
    Reason.GUEST_NOT_COLLECTED: "No reader collects from inside this virtual machine.",
    Reason.NOT_ATTRIBUTED: "No source reports which devices the pod or job holds.",
    Reason.NOT_STARTED: "The allocation has not started.",
    Reason.ENDED: "The allocation has ended.",
    Reason.UNKNOWN: "A reason of a newer version.",
}
"""Sentence for each absence reason."""


class Absent(msgspec.Struct, frozen=True, gc=False):
    """An absent value with its reason.

    Attributes:
        reason: the reason.
        detail: short text with specifics, such as the name of the call that timed out. It must not change from
            round to round while the cause is the same (no counts, no times): the wire format and the store intern
            sets of absences.
    """

    reason: Reason
    detail: str = ""


_WORST_FIRST = {
    reason: order
    for order, reason in enumerate(
        (
            *(Reason.GPU_LOST, Reason.RESET_REQUIRED, Reason.NO_DRIVER, Reason.DRIVER_MISMATCH, Reason.DRIVER_ERROR),
            *(Reason.TIMEOUT, Reason.INVALID_VALUE, Reason.NOT_PERMITTED, Reason.STALE, Reason.NO_DATA),
            *(Reason.AMBIGUOUS_ZERO, Reason.NOT_REPORTED, Reason.NOT_IN_MIG_MODE, Reason.NOT_IN_GUEST),
            *(Reason.NOT_IN_DRIVER, Reason.NOT_SUPPORTED),
        )
    )
}
"""Reasons of one reading, worst first: a failure of the device or driver, an unusable value, a missing value, and
last what the device does not have."""


def worst_absence(absences: Iterable[Absent]) -> Absent:
    """Return the absence with the worst reason, the first of equal ones; other reasons are as bad as a driver error.

    Raises:
        ValueError: if there is none.
    """
    return min(absences, key=lambda absent: _WORST_FIRST.get(absent.reason, _WORST_FIRST[Reason.DRIVER_ERROR]))


def as_unsupported(value: object, where: str) -> Absent:
    """Return the reading of what a board lacks: `not_supported`, or its own absence unless that is `not_reported`.

    Args:
        value: the reading.
        where: detail of the absence.
    """
    if isinstance(value, Absent) and value.reason is not Reason.NOT_REPORTED:
        return value
    return Absent(Reason.NOT_SUPPORTED, where)
