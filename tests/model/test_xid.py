"""XID table and event kinds."""

import pytest

from gpufleet.model.event import EVENT_KINDS, EventKind
from gpufleet.model.xid import _ROWS, XIDS, XidAction, XidClass, xid


@pytest.mark.parametrize(
    ("code", "cls", "action"),
    [
        (13, XidClass.APPLICATION, XidAction.RESTART_APP),
        (31, XidClass.APPLICATION, XidAction.RESTART_APP),
        (43, XidClass.APPLICATION, XidAction.NONE),
        (48, XidClass.MEMORY, XidAction.INVESTIGATE),
        (63, XidClass.MEMORY, XidAction.NONE),  # a successful repair
        (64, XidClass.MEMORY, XidAction.RESET_GPU),
        (74, XidClass.LINK, XidAction.INVESTIGATE),
        (79, XidClass.HARDWARE, XidAction.REBOOT_NODE),
        (94, XidClass.MEMORY, XidAction.RESTART_APP),
        (95, XidClass.MEMORY, XidAction.RESET_GPU),
        (119, XidClass.FIRMWARE, XidAction.RESET_GPU),
        (126, XidClass.HARDWARE, XidAction.RESTART_APP),
        (154, XidClass.NOTICE, XidAction.AS_REPORTED),
        (171, XidClass.MEMORY, XidAction.UNKNOWN),
    ],
)
def test_class_and_action_of_an_xid(code: int, cls: XidClass, action: XidAction) -> None:
    assert (xid(code).cls, xid(code).action) == (cls, action)


@pytest.mark.parametrize("code", [0, 87, 173, 99_999, -1])
def test_unlisted_xid_code_is_unknown(code: int) -> None:
    row = xid(code)
    assert (row.code, row.name, row.cls, row.action) == (code, "", XidClass.UNKNOWN, XidAction.UNKNOWN)


def test_each_code_has_one_row_with_a_name_and_a_class() -> None:
    assert len(XIDS) == len(_ROWS)
    assert all(row.name and row.cls is not XidClass.UNKNOWN for row in _ROWS)


def test_every_event_kind_has_a_help_text() -> None:
    assert set(EVENT_KINDS) == set(EventKind)
    assert all(row.help and row.reporter for row in EVENT_KINDS.values())
