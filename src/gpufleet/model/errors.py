"""Exceptions that gpufleet raises on purpose. Any other exception is a defect.

GpufleetError
├── ConfigError         a configuration file, variable or flag is wrong
├── WireError           bytes from another process do not follow the format
│   ├── WireVersionError    unsupported format version
│   ├── WireLimitError      larger than a limit
│   └── RecordingError      a recording is damaged, or not a recording
├── ChannelError        a request could not be carried to its target
│   └── ChannelTimeoutError  no answer in time
├── ReaderError         a reader cannot work at all (no library, no driver, ...)
├── HolderError         a holder source gives no answer (no kubelet, no permission, ...)
│   └── KubernetesApiError  the Kubernetes API server gives no answer, or rejects the request
├── CapacityError       a limit on the number of entries is reached; existing entries are unaffected
├── SpoolError          the disk queue cannot be opened, written or read
├── StoreError          the store rejected a statement or is unreachable
│   ├── StoreStartingError  the store is still loading its newest samples
│   ├── UnstorableError     the data does not fit the store; no part was written
│   └── SqlError            a user's SQL statement is rejected
└── RegistryError       the registry rejected a request
    ├── ConflictError       the request contradicts a stored entry
    └── NotFoundError       the entry does not exist
"""

import enum
from collections.abc import Sequence

from gpufleet.model.absence import Reason
from gpufleet.model.reading import Round


class ChannelProblem(enum.StrEnum):
    """Cause of a channel failure. The set is closed; guest states are derived from it."""

    FAILED = "failed"  # any other cause
    NO_SUCH_VM = "no_such_vm"  # no machine at this address
    UNREACHABLE = "unreachable"  # the address cannot be reached
    NOT_UP = "not_up"  # the machine exists, but its side of the channel is not up yet
    NO_LISTENER = "no_listener"  # the machine answers, but no service listens
    TIMEOUT = "timeout"  # no answer in time
    NOT_PERMITTED = "not_permitted"  # this process may not use the channel
    NOT_ENABLED = "not_enabled"  # the other side has disabled it
    AUTHENTICATION = "authentication"  # the other side rejects the key
    IDENTITY_MISMATCH = "identity_mismatch"  # the peer is not the dialled machine
    TOO_LARGE = "too_large"  # the answer exceeds the limit
    PROTOCOL = "protocol"  # the answer does not follow the channel's protocol
    ENDED = "ended"  # the other side closed the connection


class GpufleetError(Exception):
    """Base of every error raised on purpose; the message names the fault, its place and the remedy."""


class ConfigError(GpufleetError):
    """Invalid configuration source.

    Attributes:
        source: the file, environment variable or flag of the value.
        key: dotted key inside that source, or an empty string for the whole source.
        reason: the fault and the allowed values.
    """

    def __init__(self, source: str, key: str, reason: str) -> None:
        self.source = source
        self.key = key
        self.reason = reason
        where = f"{source}: {key}" if key else source
        super().__init__(f"{where}: {reason}")


class WireError(GpufleetError):
    """Bytes from another process do not follow the format; `field` names where."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}" if field else reason)


class WireVersionError(WireError):
    """Unsupported format version in received bytes."""


class WireLimitError(WireError):
    """Received bytes, or their unpacked content, exceed a limit."""


class RecordingError(WireError):
    """A recording is damaged, or is not a recording; `offset` is the position in bytes."""

    def __init__(self, offset: int, reason: str) -> None:
        self.offset = offset
        super().__init__(f"byte {offset}", reason)


class ChannelError(GpufleetError):
    """Failure of a channel; `problem` is the cause."""

    def __init__(self, message: str, problem: ChannelProblem = ChannelProblem.FAILED) -> None:
        self.problem = problem
        super().__init__(message)


class ChannelTimeoutError(ChannelError):
    """Timeout of a request over a channel."""


class ReaderError(GpufleetError):
    """A reader cannot work at all.

    Attributes:
        absence: absence reason of all readings of this reader.
        round: readings that are available all the same (the machine's driver state), or None.
        age_seconds: time since the attempt that failed began, if an earlier pass made it; 0 for the current pass.
    """

    def __init__(
        self,
        absence: Reason,
        message: str,
        *,
        round: Round | None = None,  # noqa: A002 - the domain term
        age_seconds: float = 0.0,
    ) -> None:
        self.absence = absence
        self.round = round
        self.age_seconds = age_seconds
        super().__init__(message)


class HolderError(GpufleetError):
    """A holder source gives no answer.

    Attributes:
        absence: the reason; `not_enabled` if the source does not exist on this machine.
    """

    def __init__(self, absence: Reason, message: str) -> None:
        self.absence = absence
        super().__init__(message)


class KubernetesApiError(HolderError):
    """The Kubernetes API server gives no answer, or rejects the request.

    Attributes:
        status: HTTP status, or 0 without an answer.
        code: `reason` of the API's Status object (`Expired`, `Forbidden`, ...), or empty.
        retry_after: seconds after which the server permits another request, or None.
    """

    def __init__(self, message: str, *, status: int = 0, code: str = "", retry_after: float | None = None) -> None:
        self.status = status
        self.code = code
        self.retry_after = retry_after
        super().__init__(Reason.NOT_PERMITTED if status in (401, 403) else Reason.READER_FAILED, message)


class CapacityError(GpufleetError):
    """Limit on the number of entries reached; existing entries are unaffected."""


class SpoolError(GpufleetError):
    """The disk queue cannot be opened, written or read."""


class StoreError(GpufleetError):
    """The store rejected a statement or cannot be reached."""


class StoreStartingError(StoreError):
    """The store is loading its newest samples after a start; the same request succeeds later."""


class UnstorableError(StoreError):
    """The data does not fit the store; no part was written."""


class SqlError(StoreError):
    """A user's SQL statement is invalid, not permitted, or exceeds a limit; the message names the cause."""


class RegistryError(GpufleetError):
    """The registry rejected a request."""


class ConflictError(RegistryError):
    """The request contradicts a stored entry."""


class NotFoundError(RegistryError):
    """The registry has no such entry; `candidates` are similar names."""

    def __init__(self, detail: str, candidates: Sequence[str] = ()) -> None:
        self.candidates = tuple(candidates)
        super().__init__(detail)
