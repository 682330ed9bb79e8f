"""Why a question could not be carried."""

import enum


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
