"""How long it takes until all is well again: fresh values at the hub, then nothing waiting anywhere."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.crash.load import Sender
from tests.crash.site import AGENTS, Site
from tests.support.processes import answers

PATIENCE_SECONDS = 150.0
"""A fleet that is not well by then never will be."""

POLL_SECONDS = 0.15
AGENT_RECORDS, RELAY_RECORDS, HUB_RECORDS = 3, 100, 250
"""What may wait at any moment without anything being behind: a few seconds' worth of the load."""


class Times(msgspec.Struct, frozen=True):
    """Seconds from the end of a fault.

    Attributes:
        fresh: until the hub had something of every sender that was posted after it.
        drained: until nothing waited anywhere from before, and no number was missing that is not known to be lost.
    """

    fresh: float
    drained: float


class Recovery:
    """Watches one recovery; made at the instant when the fault ended."""

    def __init__(self, site: Site, senders: Sequence[Sender]) -> None:
        self._site = site
        self._senders = senders
        self._since = time.monotonic()
        self._made = {one.name: one.made for one in senders}
        self._received: dict[str, int] = {}
        self._state = "nothing heard of the hub"

    def measure(self) -> Times:
        """Wait until all is well.

        Raises:
            AssertionError: if that does not come, saying what was amiss.
        """
        fresh: float | None = None
        while True:
            passed = time.monotonic() - self._since
            if passed > PATIENCE_SECONDS:
                raise AssertionError(f"not recovered after {PATIENCE_SECONDS:.0f} s: {self._state}")
            heard = self._site.senders()
            if heard is not None:
                if fresh is None and self._is_fresh(heard):
                    fresh = time.monotonic() - self._since
                if fresh is not None and self._is_drained(heard):
                    return Times(fresh, time.monotonic() - self._since)
            time.sleep(POLL_SECONDS)

    def _is_fresh(self, heard: dict[str, Any]) -> bool:
        silent = []
        for one in self._senders:
            if _highest(heard.get(one.name)) <= self._made[one.name]:
                silent.append(one.name)
        for name in AGENTS:
            received = sum(epoch["received"] for epoch in heard.get(name, {}).get("epochs", ()))
            if received <= self._received.setdefault(name, received):
                silent.append(name)
        self._state = f"nothing new of {', '.join(silent)}"
        return not silent

    def _is_drained(self, heard: dict[str, Any]) -> bool:
        amiss = [
            f"{one.name} lacks {heard[one.name]['missing']}"
            for one in self._senders
            if heard[one.name]["missing"] > len(one.unacknowledged)
        ]
        bounds = [
            ("relay", "gpufleet_relay_wal_records", RELAY_RECORDS),
            ("hub", "gpufleet_hub_wal_records", HUB_RECORDS),
        ]
        for name in AGENTS:
            bounds += [(name, "gpufleet_spool_records", AGENT_RECORDS), (name, "gpufleet_spool_memory_records", 0)]
        for daemon, gauge, most in bounds:
            value = self._site.gauge(daemon, gauge)
            if value is None or value > most:
                amiss.append(f"{daemon}: {gauge} is {value}")
        amiss += [f"{name} is not ready" for name in ("hub", "relay") if not answers(f"{self._site.url(name)}/readyz")]
        self._state = "; ".join(amiss)
        return not amiss


def _highest(sender: Any) -> int:
    return max((epoch["highest"] for epoch in sender["epochs"]), default=0) if sender else 0
