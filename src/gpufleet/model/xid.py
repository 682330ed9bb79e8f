"""XIDs, the error codes of NVIDIA's driver: one dated table.

The facts are from NVIDIA's public documentation "Xid Errors" (https://docs.nvidia.com/deploy/xid-errors/), its
catalogue for Ampere and newer as of `TABLE_DATE`, and for a few codes of older chips its older list. The names are
our own. A code that is not in the table has class and action `unknown`; they are never guessed from adjacent codes.
"""

import enum
from typing import NamedTuple

TABLE_SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
TABLE_DATE = "2025-10-29"
"""Date of the catalogue snapshot."""

LAST_NUMBER = 0xFFFF
"""Largest number that can be an XID. Larger numbers are sentinels of drivers and exporters."""


class XidClass(enum.StrEnum):
    """Most likely origin of an XID; a code can have several origins."""

    APPLICATION = "application"  # an invalid operation of a program
    DRIVER = "driver"  # the driver or its programming of the device
    FIRMWARE = "firmware"  # a processor on the device that the driver relies on
    MEMORY = "memory"  # the device's memory: errors and their repair
    LINK = "link"  # NVLink, C2C
    HARDWARE = "hardware"  # the board, its power, its place on the bus
    NOTICE = "notice"  # informational
    UNKNOWN = "unknown"  # not in the table


class XidAction(enum.StrEnum):
    """First action that NVIDIA recommends."""

    NONE = "none"
    RESTART_APP = "restart_app"
    RESTART_VM = "restart_vm"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    UPDATE_SOFTWARE = "update_software"
    CHECK_HARDWARE = "check_hardware"  # power, seating, cables
    INVESTIGATE = "investigate"  # has its own procedure, which depends on accompanying events
    AS_REPORTED = "as_reported"  # the message names the action
    CONTACT_VENDOR = "contact_vendor"
    UNKNOWN = "unknown"  # not in the table, or listed without advice


class Xid(NamedTuple):
    """Row of the table."""

    code: int
    name: str
    cls: XidClass
    action: XidAction


_APP, _DRV, _FW, _MEM = XidClass.APPLICATION, XidClass.DRIVER, XidClass.FIRMWARE, XidClass.MEMORY
_LINK, _HW, _NOTE = XidClass.LINK, XidClass.HARDWARE, XidClass.NOTICE
_A = XidAction


def _series(codes: range, unit: str, first: int, cls: XidClass = XidClass.HARDWARE) -> list[Xid]:
    """Return rows of engines of one type with consecutive codes."""
    return [Xid(code, f"{unit} {first + at} error", cls, _A.RESTART_APP) for at, code in enumerate(codes)]


_ROWS = (
    Xid(8, "GPU stopped processing", _DRV, _A.RESTART_APP),
    Xid(11, "invalid or corrupted push buffer", _APP, _A.RESTART_APP),
    Xid(13, "graphics engine exception", _APP, _A.RESTART_APP),
    Xid(25, "invalid or illegal push buffer", _APP, _A.RESTART_APP),
    Xid(31, "memory page fault", _APP, _A.RESTART_APP),
    Xid(32, "invalid or corrupted push buffer", _APP, _A.RESTART_APP),
    Xid(37, "driver firmware error", _FW, _A.NONE),
    Xid(38, "driver firmware error", _FW, _A.NONE),
    *_series(range(39, 42), "copy engine", 0),
    Xid(43, "GPU stopped processing (channel reset)", _APP, _A.NONE),
    Xid(44, "fault while switching contexts", _DRV, _A.NONE),
    Xid(45, "preemptive cleanup after an earlier error", _APP, _A.INVESTIGATE),
    Xid(46, "GPU stopped processing (timeout)", _DRV, _A.RESET_GPU),
    Xid(48, "double-bit ECC error", _MEM, _A.INVESTIGATE),
    Xid(54, "auxiliary power is not connected", _HW, _A.CHECK_HARDWARE),
    Xid(56, "display engine error", _HW, _A.CONTACT_VENDOR),
    Xid(57, "memory interface could not be programmed", _HW, _A.CONTACT_VENDOR),
    Xid(58, "unstable memory interface", _HW, _A.CONTACT_VENDOR),
    Xid(59, "internal microcontroller error", _FW, _A.CONTACT_VENDOR),
    Xid(60, "video processor exception", _APP, _A.RESTART_APP),
    Xid(61, "internal microcontroller breakpoint", _FW, _A.CONTACT_VENDOR),
    Xid(62, "internal microcontroller halt", _FW, _A.RESET_GPU),
    Xid(63, "memory row remapped or page retired", _MEM, _A.NONE),
    Xid(64, "memory row could not be remapped or page retired", _MEM, _A.RESET_GPU),
    Xid(65, "video encoder exception", _HW, _A.CONTACT_VENDOR),
    Xid(66, "illegal access by the driver", _DRV, _A.NONE),
    Xid(67, "illegal access by the driver", _DRV, _A.NONE),
    Xid(68, "video decoder 0 exception", _HW, _A.RESTART_APP),
    Xid(69, "graphics engine class error", _APP, _A.RESTART_APP),
    *_series(range(70, 73), "copy engine", 3),
    Xid(74, "NVLink error", _LINK, _A.INVESTIGATE),
    *_series(range(75, 78), "copy engine", 6),
    Xid(78, "vGPU could not be started", _DRV, _A.UPDATE_SOFTWARE),
    Xid(79, "GPU has fallen off the bus", _HW, _A.REBOOT_NODE),
    Xid(80, "corrupted data sent to the GPU", _HW, _A.RESTART_APP),
    *_series(range(82, 83), "JPEG engine", 0),
    *_series(range(83, 85), "video decoder", 1),
    *_series(range(85, 86), "copy engine", 9),
    Xid(86, "optical flow engine exception", _HW, _A.RESTART_APP),
    *_series(range(88, 90), "video decoder", 3),
    Xid(92, "high rate of single-bit ECC errors", _MEM, _A.NONE),
    Xid(93, "InfoROM written too often", _FW, _A.NONE),
    Xid(94, "contained memory error", _MEM, _A.RESTART_APP),
    Xid(95, "uncontained memory error", _MEM, _A.RESET_GPU),
    *_series(range(96, 99), "video decoder", 5),
    *_series(range(99, 106), "JPEG engine", 1),
    Xid(106, "SMBPBI test message", _NOTE, _A.NONE),
    Xid(107, "SMBPBI test message (no effect)", _NOTE, _A.NONE),
    Xid(108, "NVLink remote translation error", _LINK, _A.NONE),
    Xid(109, "context switch timeout", _DRV, _A.RESET_GPU),
    Xid(110, "security fault", _HW, _A.RESET_GPU),
    Xid(119, "GSP RPC timeout", _FW, _A.RESET_GPU),
    Xid(120, "GSP error", _FW, _A.RESET_GPU),
    Xid(121, "C2C link error", _LINK, _A.NONE),
    *_series(range(126, 136), "copy engine", 10),
    Xid(136, "link training failed", _LINK, _A.RESET_GPU),
    Xid(137, "NVLink privilege error", _LINK, _A.NONE),
    Xid(139, "optical flow engine 1 error", _HW, _A.RESTART_APP),
    Xid(140, "ECC error was not recovered", _MEM, _A.RESET_GPU),
    Xid(141, "CUDA fast path error", _DRV, _A.NONE),
    Xid(142, "video encoder 3 error", _HW, _A.CONTACT_VENDOR),
    Xid(143, "GPU could not be initialised", _HW, _A.RESET_GPU),
    Xid(144, "NVLink SAW error", _LINK, _A.INVESTIGATE),
    Xid(145, "NVLink RLW error", _LINK, _A.INVESTIGATE),
    Xid(146, "NVLink TLW error", _LINK, _A.INVESTIGATE),
    Xid(147, "NVLink TREX error", _LINK, _A.INVESTIGATE),
    Xid(148, "NVLink NVLPW_CTRL error", _LINK, _A.INVESTIGATE),
    Xid(149, "NVLink NETIR error", _LINK, _A.INVESTIGATE),
    Xid(150, "NVLink MSE error", _LINK, _A.INVESTIGATE),
    Xid(151, "key rotation error", _DRV, _A.RESTART_VM),
    Xid(152, "DLA SMMU error", _HW, _A.NONE),
    Xid(153, "DLA timeout", _HW, _A.NONE),
    Xid(154, "recovery action changed", _NOTE, _A.AS_REPORTED),
    Xid(155, "NVLink error defined by software", _LINK, _A.RESET_GPU),
    Xid(156, "resource retired", _MEM, _A.RESET_GPU),
    Xid(157, "resource could not be retired", _MEM, _A.NONE),
    Xid(158, "fatal timeout", _HW, _A.RESET_GPU),
    Xid(159, "CHI non-data error", _LINK, _A.INVESTIGATE),
    Xid(160, "channel retired", _MEM, _A.NONE),
    Xid(161, "channel could not be retired", _MEM, _A.NONE),
    Xid(162, "power smoothing circuit engaged again", _NOTE, _A.UNKNOWN),
    Xid(163, "power smoothing circuit disengaged", _NOTE, _A.UNKNOWN),
    Xid(164, "power smoothing circuit near the end of its life", _HW, _A.UNKNOWN),
    Xid(165, "power smoothing circuit at the end of its life", _HW, _A.UNKNOWN),
    Xid(166, "NVLink traffic before encryption was set up", _LINK, _A.UNKNOWN),
    Xid(167, "fatal PCIe timeout", _HW, _A.UNKNOWN),
    Xid(168, "memory capacity is reduced", _MEM, _A.UNKNOWN),
    Xid(169, "internal microcontroller halt (SEC2)", _FW, _A.UNKNOWN),
    Xid(170, "NVLink interrupt in confidential mode", _LINK, _A.UNKNOWN),
    Xid(171, "uncorrectable DRAM error (details of XID 48)", _MEM, _A.UNKNOWN),
    Xid(172, "uncorrectable SRAM error (details of XID 48)", _MEM, _A.UNKNOWN),
)

XIDS: dict[int, Xid] = {row.code: row for row in _ROWS}
"""Every row by its code."""


def xid(code: int) -> Xid:
    """Return the row of a code, or an `unknown` row for a code that is not in the table."""
    return XIDS.get(code) or Xid(code, "", XidClass.UNKNOWN, XidAction.UNKNOWN)
