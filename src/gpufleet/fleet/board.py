"""Readings of a board that belong to something it may not have: a place in a rack, ECC. Pure; shared by readers."""

from collections.abc import MutableMapping

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Value

CHASSIS_SERIAL, FABRIC_GUID = "gpu_chassis_serial", "gpu_fabric_guid"

RACK_PLACE = ("gpu_chassis_slot", "gpu_tray_index", "gpu_host_id")
"""Place of the GPU in a chassis; without a chassis the driver returns 0, 0 and 1."""

ECC_COUNTS = frozenset(
    name
    for name in CATALOGUE
    if name.startswith(("gpu_ecc_corrected_", "gpu_ecc_uncorrected_", "gpu_ecc_location_", "gpu_sram_"))
)
"""Metrics that count only while ECC is enabled."""


def drop_rack_defaults(values: MutableMapping[str, Value | Absent]) -> None:
    """Replace the driver's defaults for a board that is not in a rack by `not_supported`.

    The place counts only with the serial number of a chassis. A serial number or GUID that is empty or zero is none.
    """
    for name in (CHASSIS_SERIAL, FABRIC_GUID):
        value = values.get(name)
        if value is not None and _is_none(value):
            values[name] = Absent(Reason.NOT_SUPPORTED, value.detail if isinstance(value, Absent) else name)
    serial = values.get(CHASSIS_SERIAL)
    if not isinstance(serial, Absent):
        return
    for name in RACK_PLACE:
        if name in values and not isinstance(values[name], Absent):
            values[name] = serial


def ecc_absence(metric: str, value: Value | Absent, *, has_ecc: bool, where: str) -> Value | Absent:
    """Return the reading, or `not_supported` for a count of errors of a board whose ECC is off or does not exist."""
    if has_ecc or metric not in ECC_COUNTS:
        return value
    if isinstance(value, Absent) and value.reason is not Reason.NOT_REPORTED:
        return value
    return Absent(Reason.NOT_SUPPORTED, where)


def _is_none(value: Value | Absent) -> bool:
    if isinstance(value, Absent):
        return value.reason is Reason.NO_DATA
    return not str(value).removeprefix("0x").strip("0- ")
