"""Prices of GPU-hours in force: of the configuration and of its CSV file, which is read again after a change."""

import logging
import threading
from pathlib import Path

import msgspec

from gpufleet.config.hub import UsageConfig
from gpufleet.config.load import ConfigProblemsError
from gpufleet.fleet.usage.prices import PriceTable
from gpufleet.model.api.usage import Price

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int] | None
"""Inode, time of change and size of a file; None if it cannot be read."""


class CurrentPrices:
    """Prices of GPUs. To change the file, rename a new file over it: a file that is being written is incomplete.

    Raises:
        ConfigProblemsError: if the file is invalid, or has a price that the configuration has too.
    """

    def __init__(self, config: UsageConfig) -> None:
        self._config = config
        self._file = None if config.price_file is None else Path(config.price_file)
        self._lock = threading.Lock()
        self._stamp = self._read_stamp()
        self._table = self._load()

    def table(self) -> PriceTable:
        """Return the prices, after a change of the file the new ones. Blocking.

        An invalid file is logged once. The loaded prices stay in force.
        """
        with self._lock:
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._table = self._load()
                except ConfigProblemsError as error:
                    log.error("cannot read the changed prices, the loaded ones stay in force: %s", error)
                else:
                    log.info("prices of %s read again", self._file)
            return self._table

    def _read_stamp(self) -> _Stamp:
        if self._file is None:
            return None
        try:
            status = self._file.stat()
        except OSError:
            return None  # loading reports why
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _load(self) -> PriceTable:
        prices = [Price(**msgspec.structs.asdict(one)) for one in self._config.all_prices]
        return PriceTable(prices, self._config.currency, self._config.commitment_pairs)
