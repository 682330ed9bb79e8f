"""Short forms of identities, and suggestions for unknown names. Pure."""

import difflib
import re
from collections.abc import Iterable

from gpufleet.model.view import ViewKind

MIN_PREFIX = 4
"""Minimum number of characters of a UUID prefix after `GPU-` or `MIG-`, as in `gpufleet why` on a node."""

MAX_NAME = 253
"""Maximum length of a view key."""

MAX_SUGGESTIONS = 5

_UUID_START = {ViewKind.GPU: "GPU-", ViewKind.MIG: "MIG-", ViewKind.VGPU: ""}


def is_name(text: str) -> bool:
    """Return whether the text can be part of a view key or a name; registry and store are not queried for others."""
    return text.isprintable() and 0 < len(text) <= MAX_NAME


def view_prefixes(text: str) -> tuple[str, ...]:
    """Return the starts of view keys that a UUID or its prefix stands for; empty if the text is too short.

    `GPU-` and `MIG-` may be missing, and letters may be in either case.
    """
    if not is_name(text):
        return ()
    found: dict[str, None] = {}
    for kind, start in _UUID_START.items():
        digits = text[len(start) :] if text.upper().startswith(start) else text
        if len(digits) >= MIN_PREFIX:
            found[f"{kind}/{start}{digits}"] = None
            found[f"{kind}/{start}{digits.lower()}"] = None
    return tuple(found)


def similar_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known names that are most similar to an unknown one, the most similar first."""
    if not is_name(name):
        return ()
    folded: dict[str, str] = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=MAX_SUGGESTIONS, cutoff=0.6)
    return tuple(folded[one] for one in close)


def suggestion_text(candidates: Iterable[str]) -> str:
    """Return the end of an error message that lists the suggestions, or an empty text."""
    listed = ", ".join(candidates)
    return f"; did you mean {listed}?" if listed else ""


_IDS = re.compile(r"(?::| \()? ?m-[a-z2-7]{12}(?:, m-[a-z2-7]{12})*\)?")


def without_machine_ids(text: str) -> str:
    """Return an explanation without the ids of machines, which can be another tenant's."""
    return _IDS.sub("", text)
