"""NVLink and the chip-to-chip link: per link, and all links together.

Links are found by asking for their state until the driver says that there is no such link.
"""

from gpufleet.readers.nvml.calls.call import Calls, custom, each, plain
from gpufleet.readers.nvml.calls.fields import FIELD_VALUES, Batch, Fields, field
from gpufleet.readers.nvml.calls.raw import struct_call
from gpufleet.readers.nvml.context import ENDS_DEVICE, INVALID_ARGUMENT, NOT_SUPPORTED, Context, check
from gpufleet.readers.nvml.protocol import NOT_OFFERED, Value

ALL_LINKS = 0xFFFFFFFF
"""Scope of a field value that is about all links together."""

MOST_LINKS = 64
"""More than any chip has (36 in nvml.h of branch 610)."""

STATE, VERSION, PEER = (
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
)
LINK_FIELDS = (
    ("speed", 164, 0),
    ("transmitted, KiB", 138, 0),
    ("received, KiB", 139, 0),
    ("transmitted", 202, 560),
    ("received", 204, 560),
    ("effective bit errors", 220, 560),
    ("symbol bit errors", 222, 560),
)
"""Reading of one link, its field id, and the branch that it came with.

Chips before Blackwell count in KiB, Blackwell in bytes.
"""

LINK_ERRORS = (
    ("replay", 161, 0),
    ("recovery", 162, 0),
    ("crc", 163, 0),
    ("malformed_packet", 206, 560),
    ("buffer_overrun", 207, 560),
    ("receive", 208, 560),
    ("receive_remote", 209, 560),
    ("receive_general", 210, 560),
    ("local_integrity", 211, 560),
    ("transmit_discard", 212, 560),
    ("recovery_successful", 213, 560),
    ("recovery_failed", 214, 560),
    ("effective", 219, 560),
    ("symbol", 221, 560),
)
"""Kind of error, its field id, and the branch that it came with: the first three before Blackwell, the others since."""

CORRECTED = tuple([(str(number), 235 + number, 570) for number in range(16)])
"""Bin of the histogram of error correction, its field id, and the branch that it came with; Blackwell has it.

Too many for the slow lane: 16 a link.
"""

C2C_LINKS = 170
C2C_FIELDS = (("status", 171, 535), ("speed", 172, 535))
C2C_ERRORS = (("interrupt", 231, 570), ("replay", 232, 570), ("replay_back_to_back", 233, 570))
"""Reading, or kind of error, of one chip-to-chip link, its field id, and the branch that it came with."""

PEERS = ("gpu", "npu", "switch", "unknown")
_PEER_OF = {0: "gpu", 1: "npu", 2: "switch"}
"""nvmlNvLinkDeviceType_t."""

_BATCH = 120

Ids = tuple[tuple[str, int, int], ...]


def _count_links(context: Context) -> int:
    for link in range(MOST_LINKS):
        try:
            context.nvml.nvmlDeviceGetNvLinkState(context.handle, link)
        except context.nvml.NVMLError as error:
            if error.value == INVALID_ARGUMENT and link:
                return link
            if not link or error.value in ENDS_DEVICE:
                raise
    return MOST_LINKS


def _links(context: Context) -> range:
    return range(context.memory.keep("nvlinks", lambda: _count_links(context)))


def _states(context: Context) -> Value:
    def state(link: int) -> Value:
        up: int = context.nvml.nvmlDeviceGetNvLinkState(context.handle, link)
        return up

    return each(context, STATE, state, _links(context))


def _peers(context: Context) -> Value:
    counts = dict.fromkeys(PEERS, 0)
    for link in _links(context):
        if not context.nvml.nvmlDeviceGetNvLinkState(context.handle, link):
            continue
        context.mark(PEER)
        counts[_PEER_OF.get(context.nvml.nvmlDeviceGetNvLinkRemoteDeviceType(context.handle, link), "unknown")] += 1
    return list(counts.values())


def _fields(context: Context, name: str, ids: Ids, links: int) -> Value:
    """Ask for each id of each link; return a list an id, with an entry a link as of `decode_fields`."""
    wanted = [(id_, link, since) for _, id_, since in ids for link in range(links)]

    def batches() -> list[Batch]:
        found = []
        for at in range(0, len(wanted), _BATCH):
            part = wanted[at : at + _BATCH]
            told: dict[int, Value] = {
                position: [NOT_OFFERED, None] for position, one in enumerate(part) if context.driver < (one[2],)
            }
            found.append(Batch(tuple([(id_, link) for id_, link, _ in part]), told))
        return found

    entries: list[Value] = []
    for batch in context.memory.keep(name, batches):
        entries += batch.ask(context)
    return [entries[at : at + links] for at in range(0, len(entries), links)]


def _link_fields(context: Context) -> Value:
    return _fields(context, "nvlink fields", LINK_FIELDS + LINK_ERRORS, len(_links(context)))


def _corrected(context: Context) -> Value:
    return _fields(context, "nvlink corrections", CORRECTED, len(_links(context)))


def _c2c_fields(context: Context) -> Value:
    links: Batch = context.memory.keep("c2c links", lambda: Batch(((C2C_LINKS, 0),)))
    count = links.ask(context)[0]
    if isinstance(count, list):
        check(context, NOT_SUPPORTED if count[0] < 0 else count[0])
    return _fields(context, "c2c fields", C2C_FIELDS + C2C_ERRORS, min(count, MOST_LINKS))


CALLS: Calls = {
    "slow": (
        custom(STATE, _states),
        custom("NVLink field values", _link_fields, inner=(STATE, FIELD_VALUES)),
        custom("C2C field values", _c2c_fields, inner=(FIELD_VALUES,)),
    ),
    "static": (
        plain(VERSION, 0),
        custom("NVLink corrections", _corrected, inner=(STATE, FIELD_VALUES)),
        custom("NVLink peers", _peers, inner=(STATE, PEER)),
        struct_call("nvmlDeviceGetC2cModeInfoV", "<I4x"),
    ),
}

FIELDS: Fields = {
    "fast": (
        field("nvlink, transmitted", 138, scope=ALL_LINKS),
        field("nvlink, received", 139, scope=ALL_LINKS),
    ),
    "slow": (field("nvswitch links", 147),),
}
