"""Calls for PCIe, NVLink, the chip-to-chip link and the NVLink fabric.

The number of NVLinks is a field value. The state of a link does not show whether the board has it: a board without
NVLink can report every link as down. PCIe throughput is never read by `nvmlDeviceGetPcieThroughput`: it blocks for
20 ms per direction while it measures.
"""

import struct
from collections.abc import Iterator

from gpufleet.readers.nvml.calls.call import (
    Call,
    Calls,
    Function,
    custom,
    getter,
    query_each,
    read_struct,
)
from gpufleet.readers.nvml.calls.fields import FIELD_VALUES, FieldBatch, Fields, field
from gpufleet.readers.nvml.context import NOT_SUPPORTED, Context, check
from gpufleet.readers.nvml.protocol import NOT_OFFERED, Value

PCIE_ERRORS = (
    ("replay_rollover", 95),
    ("l0_to_recovery", 169),
    ("correctable", 173),
    ("naks_received", 174),
    ("receiver", 175),
    ("bad_tlp", 176),
    ("naks_sent", 177),
    ("bad_dllp", 178),
    ("non_fatal", 179),
    ("fatal", 180),
    ("unsupported_request", 181),
    ("lcrc", 182),
    ("lane", 183),
)
"""Kind of error and its field id."""

ALL_LINKS = 0xFFFFFFFF
"""Scope of a field value: all NVLinks together."""

NVLINKS = 91
"""Field id of the number of NVLinks."""

MAX_LINKS = 64
"""More than any chip has (36 in nvml.h of branch 610)."""

NVLINK_STATE, NVLINK_VERSION, NVLINK_PEER, NVLINK_PEER_PCI = (
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
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
"""Reading of one link, its field id, and the driver branch that introduced it.

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
"""Kind of error, its field id, and the driver branch that introduced it.

The first three are of chips before Blackwell, the others of Blackwell and later.
"""

CORRECTED = tuple([(str(number), 235 + number, 570) for number in range(16)])
"""Bin of the error correction histogram, its field id, and the driver branch that introduced it. Blackwell only.

On the static lane: 16 values per link are too many for the slow lane.
"""

C2C_MODE, C2C_LINKS = "nvmlDeviceGetC2cModeInfoV", 170
C2C_FIELDS = (("status", 171, 535), ("speed", 172, 535))
C2C_ERRORS = (("interrupt", 231, 570), ("replay", 232, 570), ("replay_back_to_back", 233, 570))
"""Reading or kind of error of one chip-to-chip link, its field id, and the driver branch that introduced it."""

PEERS = ("gpu", "npu", "switch", "unknown")
_PEER_OF = {0: "gpu", 1: "npu", 2: "switch"}
"""nvmlNvLinkDeviceType_t."""

FABRIC_INFO = "nvmlDeviceGetGpuFabricInfoV"
_C2C_MODE = struct.Struct("<I4x")
_FABRIC_V3, _FABRIC_V2 = struct.Struct("<I16sIIB3xIB3x"), struct.Struct("<I16sIIB3xI")

_BATCH_SIZE = 120

LinkFields = tuple[tuple[str, int, int], ...]


def _query_count(context: Context, id_: int) -> int:
    """Query a field with a number of links, at most `MAX_LINKS`.

    Raises:
        NVMLError: if the field has no value.
    """
    context.mark(FIELD_VALUES)
    count = FieldBatch(((id_, 0),)).query(context)[0]
    if isinstance(count, list):
        check(context, NOT_SUPPORTED if count[0] < 0 else count[0])
    return min(max(int(count), 0), MAX_LINKS)


def _link_numbers(context: Context) -> range:
    """Return the numbers of the GPU's NVLinks.

    Raises:
        NVMLError: if there are none, or if their number is unknown.
    """
    count = context.cache.get_or_create("nvlinks", lambda: _query_count(context, NVLINKS))
    if not count:
        context.mark(FIELD_VALUES)
        check(context, NOT_SUPPORTED)
    return range(count)


HAS_NVLINK = custom("NVLinks", lambda context: len(_link_numbers(context)), inner=(FIELD_VALUES,))
"""Number of NVLinks; not supported without any. The driver may count 0 bytes for a board without NVLink."""


def _link_states(context: Context) -> Value:
    def state(link: int) -> Value:
        up: int = context.nvml.nvmlDeviceGetNvLinkState(context.handle, link)
        return up

    links = _link_numbers(context)
    context.mark(NVLINK_STATE)
    return query_each(context, NVLINK_STATE, state, links)


def _link_version(context: Context) -> Value:
    first = _link_numbers(context)[0]
    context.mark(NVLINK_VERSION)
    version: int = context.nvml.nvmlDeviceGetNvLinkVersion(context.handle, first)
    return version


def _active_links(context: Context) -> Iterator[tuple[int, str]]:
    """Yield number and type of the remote device of each link that is up."""
    for link in _link_numbers(context):
        context.mark(NVLINK_STATE)
        if not context.nvml.nvmlDeviceGetNvLinkState(context.handle, link):
            continue
        context.mark(NVLINK_PEER)
        yield link, _PEER_OF.get(context.nvml.nvmlDeviceGetNvLinkRemoteDeviceType(context.handle, link), "unknown")


def _link_peers(context: Context) -> Value:
    counts = dict.fromkeys(PEERS, 0)
    for _, peer in _active_links(context):
        counts[peer] += 1
    return list(counts.values())


def _linked_gpus(context: Context) -> Value:
    """Return PCI address and number of active links of each GPU at the other end of a link."""
    counts: dict[str, int] = {}
    for link, peer in _active_links(context):
        if peer == "gpu":
            context.mark(NVLINK_PEER_PCI)
            address = str(context.nvml.nvmlDeviceGetNvLinkRemotePciInfo(context.handle, link).busId)
            counts[address] = counts.get(address, 0) + 1
    return [[address, count] for address, count in counts.items()]


def _query_fields(context: Context, name: str, fields: LinkFields, links: int) -> Value:
    """Query each field of each link; return a list per field with an entry per link, as `decode_fields` returns it."""
    ids = [(id_, link, since) for _, id_, since in fields for link in range(links)]

    def batches() -> list[FieldBatch]:
        found = []
        for start in range(0, len(ids), _BATCH_SIZE):
            part = ids[start : start + _BATCH_SIZE]
            fixed: dict[int, Value] = {
                position: [NOT_OFFERED, None]
                for position, (_, _, since) in enumerate(part)
                if context.driver < (since,)
            }
            found.append(FieldBatch(tuple([(id_, link) for id_, link, _ in part]), fixed))
        return found

    entries: list[Value] = []
    for batch in context.cache.get_or_create(name, batches):
        entries += batch.query(context)
    return [entries[start : start + links] for start in range(0, len(entries), links)]


def _nvlink_fields(context: Context) -> Value:
    links = len(_link_numbers(context))
    context.mark(FIELD_VALUES)
    return _query_fields(context, "nvlink fields", LINK_FIELDS + LINK_ERRORS, links)


def _nvlink_corrections(context: Context) -> Value:
    links = len(_link_numbers(context))
    context.mark(FIELD_VALUES)
    return _query_fields(context, "nvlink corrections", CORRECTED, links)


def _c2c_links(context: Context) -> int:
    """Return the number of chip-to-chip links. Raises NVMLError if there are none, or if their number is unknown."""
    count: int = context.cache.get_or_create("c2c links", lambda: _query_count(context, C2C_LINKS))
    if not count:
        check(context, NOT_SUPPORTED)
    return count


def _c2c_fields(context: Context) -> Value:
    count = _c2c_links(context)
    return _query_fields(context, "c2c fields", C2C_FIELDS + C2C_ERRORS, count)


def _c2c_mode(context: Context) -> Value:
    """Query the mode, 0 or 1. Raises NVMLError for 0 without links: the driver returns it also then (H100, H200)."""
    (mode,) = read_struct(context, C2C_MODE, _C2C_MODE)
    if not mode:
        _c2c_links(context)
    return [mode]


def _fabric_v3(context: Context) -> Value:
    _, cluster, status, clique, state, mask, summary = read_struct(context, FABRIC_INFO, _FABRIC_V3, 0x03000028)
    return [state, status, clique, cluster.hex(), mask, summary]


def _fabric_v2(context: Context) -> Value:
    _, cluster, status, clique, state, mask = read_struct(context, FABRIC_INFO, _FABRIC_V2, 0x02000024)
    return [state, status, clique, cluster.hex(), mask]


CALLS: Calls = {
    "fast": (
        getter("nvmlDeviceGetCurrPcieLinkGeneration"),
        getter("nvmlDeviceGetCurrPcieLinkWidth"),
        getter("nvmlDeviceGetPcieReplayCounter"),
    ),
    "slow": (
        custom(NVLINK_STATE, _link_states, inner=(FIELD_VALUES,)),
        custom("NVLink field values", _nvlink_fields, inner=(FIELD_VALUES,)),
        custom("C2C field values", _c2c_fields, inner=(FIELD_VALUES,)),
        # State, status, clique, cluster (hex digits), health mask, and health summary. Drivers before 580 reject
        # version 3 of the struct, which adds the summary.
        Call(FABRIC_INFO, (Function(f"{FABRIC_INFO}(v3)", _fabric_v3), Function(f"{FABRIC_INFO}(v2)", _fabric_v2))),
    ),
    "static": (
        getter("nvmlDeviceGetMaxPcieLinkGeneration"),
        getter("nvmlDeviceGetMaxPcieLinkWidth"),
        custom(NVLINK_VERSION, _link_version, inner=(FIELD_VALUES,)),
        custom("NVLink corrections", _nvlink_corrections, inner=(FIELD_VALUES,)),
        custom("NVLink peers", _link_peers, inner=(FIELD_VALUES, NVLINK_STATE, NVLINK_PEER)),
        custom("linked GPUs", _linked_gpus, inner=(FIELD_VALUES, NVLINK_STATE, NVLINK_PEER, NVLINK_PEER_PCI)),
        custom(C2C_MODE, _c2c_mode, inner=(FIELD_VALUES,)),
    ),
}

FIELDS: Fields = {
    "fast": (
        # The bindings name 197 and 198 since branch 560; 550 supports them without a name.
        field("pcie, transmitted", 197, since=560),
        field("pcie, received", 198, since=560),
        field("nvlink, transmitted", 138, scope=ALL_LINKS),
        field("nvlink, received", 139, scope=ALL_LINKS),
    ),
    "slow": (
        *[field(f"pcie error, {kind}", id_, since=535 if id_ > 168 else 0) for kind, id_ in PCIE_ERRORS],
        field("nvswitch links", 147),
    ),
}
