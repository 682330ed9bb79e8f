"""Texts of the driver in place of a value."""

import pytest

from gpufleet.model.absence import Reason
from gpufleet.model.driver_texts import text_reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[N/A]", Reason.NOT_SUPPORTED),
        ("N/A", Reason.NOT_SUPPORTED),
        ("[Not Supported]", Reason.NOT_SUPPORTED),
        ("[Requested functionality has been deprecated]", Reason.NOT_SUPPORTED),
        ("[Unknown Error]", Reason.DRIVER_ERROR),
        ("ERR!", Reason.DRIVER_ERROR),
        ("System is not in ready state", Reason.DRIVER_ERROR),
        ("[Not Ready]", Reason.DRIVER_ERROR),
        ("[Insufficient Permissions]", Reason.NOT_PERMITTED),
        ("[Function Not Found]", Reason.NOT_IN_DRIVER),
        ("[GPU is lost]", Reason.GPU_LOST),
        ("[GPU requires reset]", Reason.RESET_REQUIRED),
        ("[Not Found]", Reason.NO_DATA),
        ("", Reason.NO_DATA),
        ("Not available in WDDM driver model", Reason.NOT_SUPPORTED),
        ("[GPU is lost.]", Reason.GPU_LOST),
        ("GPU is lost.  Reboot the system to recover this GPU", Reason.GPU_LOST),
        ("[Argument version mismatch]", Reason.DRIVER_ERROR),
        ("[A message of driver 999]", Reason.DRIVER_ERROR),
        ("13.3 [Deprecated; use CUDA UMD Version]", None),
        ("Enabled (reset required)", None),
        ("0", None),
        ("None", None),
        ("Disabled", None),
    ],
)
def test_placeholder_texts_have_a_reason(text: str, reason: Reason | None) -> None:
    assert text_reason(text) is reason
