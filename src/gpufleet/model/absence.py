"""Why there is no value: one closed set of reasons."""

import enum

import msgspec


class Reason(enum.StrEnum):
    """Why a reading, or a whole answer, is absent. The set is closed: a new cause gets a new row here.

    What a newer build calls by a name that is not here is `UNKNOWN`: the reading stays absent.
    """

    # the stack below the reader
    NO_LIBRARY = "no_library"  # libnvidia-ml.so.1 is not installed
    NO_DRIVER = "no_driver"  # the kernel driver is not loaded, or no driver is bound to the device
    DRIVER_MISMATCH = "driver_mismatch"  # library and kernel driver are of different versions
    DRIVER_ERROR = "driver_error"  # the driver answered with an error that has no better reason here
    NO_SUPPORTED_GPU = "no_supported_gpu"  # the driver is loaded and says that it drives no GPU
    BOUND_TO_VFIO = "bound_to_vfio"  # the device is handed to a guest: host tools cannot see it
    OTHER_DRIVER = "other_driver"  # a driver is bound that no reader here speaks to
    # the device
    GPU_LOST = "gpu_lost"  # fell off the bus
    RESET_REQUIRED = "reset_required"
    TIMEOUT = "timeout"  # the call did not come back in time; detail names the call
    NOT_SUPPORTED = "not_supported"  # this device does not offer it
    NOT_IN_DRIVER = "not_in_driver"  # this driver version does not offer it
    NOT_IN_MIG_MODE = "not_in_mig_mode"  # not defined while MIG is enabled
    NOT_IN_GUEST = "not_in_guest"  # a guest cannot see it
    NOT_PERMITTED = "not_permitted"  # needs a privilege that this process lacks; detail names it
    # the value
    NO_DATA = "no_data"  # the source exists and has nothing to say yet
    INVALID_VALUE = "invalid_value"  # a sentinel, NaN or a value out of range came instead
    NOT_REPORTED = "not_reported"  # the source said nothing of this metric
    # the collection
    NOT_COLLECTED = "not_collected"  # no reader was asked, or it has not completed a round yet
    READER_FAILED = "reader_failed"  # the reader failed as a whole; last_error says how
    STALE = "stale"  # the newest value is older than the stated age
    # the way into a guest
    GUEST_UNREACHABLE = "guest_unreachable"  # no way into it answers
    GUEST_BOOTING = "guest_booting"  # it is there, or is awaited, and does not answer yet
    GUEST_REFUSED = "guest_refused"  # it answers and does not take the agent's key
    IDENTITY_MISMATCH = "identity_mismatch"  # another machine answers than the one that was dialled (its host key)
    NOT_ENABLED = "not_enabled"  # it answers, and what would be asked is switched off or not installed there
    INCOMPATIBLE_VERSION = "incompatible_version"  # what answers in it is of a version that is not spoken here
    GPU_COUNT_DIFFERS = "gpu_count_differs"  # it shows other GPUs than it should have: detail counts them
    # the allocation contract
    TARGET_UNKNOWN = "target_unknown"  # the allocation's target was never seen
    AMBIGUOUS_TARGET = "ambiguous_target"  # more than one machine fits the target: detail names them
    GUEST_NOT_COLLECTED = "guest_not_collected"  # nothing collects from inside this guest
    NOT_ATTRIBUTED = "not_attributed"  # nothing tells which device this pod, job or VM holds
    NOT_STARTED = "not_started"  # the allocation's time has not begun
    ENDED = "ended"  # the allocation is over
    # between builds
    UNKNOWN = "unknown"  # a newer build said why, by a name that this one does not know

    @classmethod
    def _missing_(cls, value: object) -> "Reason | None":
        return cls.UNKNOWN if isinstance(value, str) else None


class Absent(msgspec.Struct, frozen=True, gc=False):
    """There is no value, and this is why.

    Attributes:
        reason: one of the closed set.
        detail: a short text that adds what the reason cannot say, such as the call that timed out.
            It must stay the same from round to round while the cause is the same (no counts, no times):
            sets of absences are interned on the wire and in the store.
    """

    reason: Reason
    detail: str = ""
