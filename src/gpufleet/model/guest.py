"""How a virtual machine is doing that an agent reads from inside."""

from gpufleet.model.absence import Reason

OK = "ok"

REMOVED = "removed"
"""The agent was told to read it no more."""

SILENT = (Reason.GUEST_UNREACHABLE, Reason.GUEST_BOOTING, Reason.TIMEOUT)
"""States in which nothing is heard from inside: what was heard before ages, and is not contradicted."""

STATES = (
    OK,
    *(str(reason) for reason in SILENT),
    *(
        str(reason)
        for reason in (
            Reason.GUEST_REFUSED,
            Reason.IDENTITY_MISMATCH,
            Reason.NOT_ENABLED,
            Reason.INCOMPATIBLE_VERSION,
            Reason.GPU_COUNT_DIFFERS,
            Reason.NO_LIBRARY,
            Reason.NO_DRIVER,
            Reason.DRIVER_MISMATCH,
            Reason.DRIVER_ERROR,
            Reason.NO_SUPPORTED_GPU,
            Reason.GPU_LOST,
            Reason.RESET_REQUIRED,
            Reason.NOT_PERMITTED,
            Reason.READER_FAILED,
        )
    ),
    REMOVED,
)
"""Names of `guest_state`, in the order of their stored numbers: new ones go to the end."""


def state_of(reason: Reason) -> str:
    """Return the state that a failure puts a guest in."""
    return str(reason) if str(reason) in STATES else str(Reason.READER_FAILED)
