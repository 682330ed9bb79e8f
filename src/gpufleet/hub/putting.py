"""Whether an allocation can be meant. Pure."""

import re
from collections.abc import Container

from gpufleet.hub.history import QuestionError
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, AllocationSpec
from gpufleet.model.time import to_ns

MAX_DEVICES = 100_000
"""Devices that one allocation may list."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TARGET_FIELDS = tuple(dict.fromkeys(REQUIRED_TARGET_FIELD.values()))


def check_id(id: str) -> None:  # noqa: A002 - the word of the domain
    """Refuse an id that could not be written in a path and a table.

    Raises:
        QuestionError: saying what an id is.
    """
    if not _ID.fullmatch(id):
        raise QuestionError(
            "id", "must be 1 to 128 letters, digits, '.', '_', ':' or '-', and start with a letter or digit"
        )


def check_spec(spec: AllocationSpec, clusters: Container[str]) -> None:
    """Refuse a spec that contradicts itself or this hub.

    Raises:
        QuestionError: naming the field.
    """
    target = spec.target
    if target.cluster not in clusters:
        raise QuestionError("target.cluster", f"{target.cluster!r} is not served here: register it")
    required = REQUIRED_TARGET_FIELD[spec.kind]
    for field in _TARGET_FIELDS:
        given = getattr(target, field) is not None
        if field == required and not given:
            raise QuestionError(f"target.{field}", f"a {spec.kind} allocation needs it")
        if field != required and given:
            raise QuestionError(f"target.{field}", f"a {spec.kind} allocation is told by target.{required} alone")
    for field in ("valid_from", "valid_to"):
        at = getattr(spec, field)
        if at is not None and at.tzinfo is None:
            raise QuestionError(field, "has no time zone: write it with Z or an offset")
    if spec.valid_from and spec.valid_to and to_ns(spec.valid_to) <= to_ns(spec.valid_from):
        raise QuestionError("valid_to", "must be after valid_from")
    if spec.devices is not None and len(spec.devices) > MAX_DEVICES:
        raise QuestionError("devices", f"lists more than {MAX_DEVICES}")
