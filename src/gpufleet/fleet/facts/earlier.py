"""Evidence of findings that were open when the hub started: it replaces what the history of a GPU does not have yet.

The history is in memory only. Without the evidence, the verdict about such a GPU would be unknown for an hour or a day,
or the finding would close although its cause lasts.
"""

from collections.abc import Iterable

import numpy as np

from gpufleet.fleet.facts.core_readings import missing_mask
from gpufleet.fleet.facts.memory import DAY_SECONDS
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.finding import Finding

METRICS_MISSING, NVLINK_DOWN = "gpu.metrics_missing", "gpu.nvlink_down"
"""Rules that need the evidence."""

VALID_SECONDS = DAY_SECONDS + 3600
"""Time after the first judgement from which on the history has what it needs."""


class EarlierFindings:
    """Numbers that open findings of an earlier process state about GPUs."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        """Take the open findings; those of other rules are ignored."""
        missing: dict[str, float] = {}
        links: dict[str, float] = {}
        for one in findings:
            if one.rule == METRICS_MISSING and (mask := missing_mask(one.evidence.get("missing_readings", ""))):
                missing[one.scope] = mask
            elif one.rule == NVLINK_DOWN and (most := _most_links(one)) is not None:
                links[one.scope] = most
        self._missing, self._links = _NumbersByHash(missing), _NumbersByHash(links)

    def missing_core(self, keys: Column, second: int) -> Column:
        """Return the bit set of missing core readings of each GPU; see `CoreObservation`.

        Args:
            keys: hash of the key of each GPU.
            second: time of the judgement by the memory's clock.
        """
        return np.nan_to_num(self._missing.find(keys, second)).astype(np.uint8)

    def nvlinks(self, keys: Column, second: int) -> Column:
        """Return the active NVLinks with which each GPU was compared, NaN if it has no such finding.

        Args:
            keys: hash of the key of each GPU.
            second: time of the judgement by the memory's clock.
        """
        return self._links.find(keys, second)


class _NumbersByHash:
    """Numbers by the hash of a key."""

    def __init__(self, numbers: dict[str, float]) -> None:
        hashes = np.fromiter(map(hash, numbers), np.int64, len(numbers))
        order = np.argsort(hashes)
        self._hashes, self._numbers = hashes[order], np.array([*numbers.values()], np.float64)[order]

    def find(self, keys: Column, second: int) -> Column:
        """Return the number of each key, NaN without one, and for all keys after `VALID_SECONDS`."""
        if not len(self._hashes) or second > VALID_SECONDS:
            return np.full(len(keys), np.nan)
        places = np.minimum(np.searchsorted(self._hashes, keys), len(self._hashes) - 1)
        return np.where(self._hashes[places] == keys, self._numbers[places], np.nan)


def _most_links(finding: Finding) -> float | None:
    """Return the larger one of the links of the peers and of the day before."""
    texts = [finding.evidence.get(name, "") for name in ("nvlinks_of_peers", "nvlinks_day_before")]
    return max((float(text) for text in texts if text.isdecimal()), default=None)
