"""Bodies that a relay has acknowledged, and that the next hub cannot take under their epoch.

Another machine counts under it, and its sender cannot be asked any more: it was told that the batch is safe. So it is
passed on under an epoch that is made for it here. Whoever posts under the old one next is turned away, and takes a new
one itself. What is decided here is forgotten with the process: a body is then passed on under yet another epoch, and is
the same samples.
"""

import secrets

import msgspec

from gpufleet.codecs.batch import decode, renumber
from gpufleet.hub.ledger import Ledger, key_of
from gpufleet.hub.wal import WalRecord
from gpufleet.model.errors import WireError
from gpufleet.model.ledger import SequenceKey


class _Epoch(msgspec.Struct):
    name: str
    given: int = 0


class Renumbering:
    """Epochs made by one relay. Lives on the event loop."""

    def __init__(self, ledger: Ledger) -> None:
        """Take the ledger of what this relay has taken."""
        self._ledger = ledger
        self._epochs: dict[SequenceKey, _Epoch] = {}
        self._numbers: dict[int, tuple[str, int]] = {}

    def body(self, record: WalRecord) -> bytes:
        """Return a body as it is to be passed on."""
        place = self._numbers.get(record.seq)
        return record.body if place is None else renumber(record.body, *place)

    def number(self, record: WalRecord) -> bool:
        """Give a body another epoch and number; returns False if it cannot be read or has another one already."""
        if record.seq in self._numbers:
            return False
        try:
            key = key_of(decode(record.body))
        except WireError:
            return False
        self._ledger.give_up(key)
        epoch = self._epochs.setdefault(key, _Epoch(secrets.token_hex(16)))
        epoch.given += 1
        self._numbers[record.seq] = (epoch.name, epoch.given)
        return True

    def forget(self, records: list[int]) -> None:
        """Forget bodies that the log has forgotten."""
        for number in records:
            self._numbers.pop(number, None)
