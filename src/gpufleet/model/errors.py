"""The errors gpufleet raises on purpose. Everything else is a defect.

GpufleetError
├── ConfigError         a configuration file, variable or flag is wrong
├── WireError           bytes from another process are not what the format says
│   ├── WireVersionError    a version this build cannot read
│   └── WireLimitError      larger than the stated bound
├── ChannelError        a question could not be carried to where it should be read
│   └── ChannelTimeoutError  it was carried there, and no answer came in time
├── ReaderError         a reader cannot work at all (no library, no driver, ...)
├── CrowdedError        one more is more than there may be, and the rest goes on
├── SpoolError          the disk queue cannot do what was asked
├── StoreError          the store refused or is unreachable
│   ├── UnstorableError     what is to be stored does not fit, and nothing of it was written
│   └── SqlError            a person's statement is not one that is answered
└── RegistryError       the registry refused
    ├── ConflictError       what is asked contradicts what is known
    └── NotFoundError       there is no such thing

Why a question could not be carried.
"""

import enum

from gpufleet.model.absence import Reason
from gpufleet.model.reading import Round


class ChannelProblem(enum.StrEnum):
    """What stood in the way; a closed set, which guests' states are told from."""

    FAILED = "failed"  # none of the others
    NO_SUCH_VM = "no_such_vm"  # nothing at this address: the machine is not there, or gone
    UNREACHABLE = "unreachable"  # no way to the address
    NOT_UP = "not_up"  # the machine is there, and its side of the channel is not up yet
    NOBODY_LISTENS = "nobody_listens"  # the machine answers, and no service does
    TIMEOUT = "timeout"  # no answer in time
    NOT_PERMITTED = "not_permitted"  # this process may not use the channel
    NOT_ENABLED = "not_enabled"  # the other side has switched it off
    AUTHENTICATION = "authentication"  # the other side does not take our key
    IDENTITY_MISMATCH = "identity_mismatch"  # somebody else answers than who was dialled
    TOO_LARGE = "too_large"  # more was said than the stated bound
    PROTOCOL = "protocol"  # what came is not the channel's language
    ENDED = "ended"  # the other side hung up


class GpufleetError(Exception):
    """Base of every error raised on purpose; its text names what, where and what to do."""


class ConfigError(GpufleetError):
    """A configuration source is wrong.

    Attributes:
        source: the file, environment variable or flag it came from.
        key: dotted key inside that source, or an empty string for the whole of it.
        reason: what is wrong and what would be right.
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
    """The bytes claim a format version that this build cannot read."""


class WireLimitError(WireError):
    """The bytes, or what they would unpack to, pass a stated bound."""


class ChannelError(GpufleetError):
    """A channel could not carry the question; `problem` says what stood in the way."""

    def __init__(self, words: str, problem: ChannelProblem = ChannelProblem.FAILED) -> None:
        self.problem = problem
        super().__init__(words)


class ChannelTimeoutError(ChannelError):
    """What was asked over a channel did not end in time."""


class ReaderError(GpufleetError):
    """A reader cannot work at all.

    Attributes:
        absence: the reason that every reading of this reader is absent with.
        round: what could be told all the same (the machine's driver state), or None.
    """

    def __init__(self, absence: Reason, words: str, *, round: Round | None = None) -> None:  # noqa: A002 - its word
        self.absence = absence
        self.round = round
        super().__init__(words)


class CrowdedError(GpufleetError):
    """There are as many of something as there may be; those that are there go on."""


class SpoolError(GpufleetError):
    """The disk queue cannot be opened, written or read."""


class StoreError(GpufleetError):
    """The store refused a statement or cannot be reached."""


class UnstorableError(StoreError):
    """What is to be stored does not fit the store, so that nothing of it was written."""


class SqlError(StoreError):
    """A person's statement is wrong, asks for what it may not, or for more than it may; the text says which."""


class RegistryError(GpufleetError):
    """The registry refused."""


class ConflictError(RegistryError):
    """What is asked contradicts what the registry knows."""


class NotFoundError(RegistryError):
    """The registry has no such thing."""
