"""Recovery time after a fault: until the hub has fresh values, and until all backlogs are drained."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.crash.load import Sender
from tests.crash.site import AGENTS, Site
from tests.support.processes import answers

PATIENCE_SECONDS = 150.0
"""Time after which a recovery counts as failed."""

POLL_SECONDS = 0.15
AGENT_RECORDS, RELAY_RECORDS, HUB_RECORDS = 3, 100, 250
"""Normal backlogs: a few seconds of the load."""


class Times(msgspec.Struct, frozen=True):
    """Seconds from the end of a fault.

    Attributes:
        fresh: until the hub had a batch of every sender that was posted after the fault.
        drained: until all backlogs were sent, and no number was missing except known losses.
    """

    fresh: float
    drained: float


class Recovery:
    """Measurement of one recovery, created at the end of the fault."""

    def __init__(self, site: Site, senders: Sequence[Sender]) -> None:
        self._site = site
        self._senders = senders
        self._since = time.monotonic()
        self._made = {one.name: one.made for one in senders}
        self._received: dict[str, int] = {}
        self._state = "no response from the hub"

    def measure(self) -> Times:
        """Wait until the fleet has recovered.

        Raises:
            AssertionError: if it has not after `PATIENCE_SECONDS`, with the last state.
        """
        fresh: float | None = None
        while True:
            passed = time.monotonic() - self._since
            if passed > PATIENCE_SECONDS:
                raise AssertionError(f"not recovered after {PATIENCE_SECONDS:.0f} s: {self._state}")
            senders = self._site.senders()
            if senders is not None:
                if fresh is None and self._is_fresh(senders):
                    fresh = time.monotonic() - self._since
                if fresh is not None and self._is_drained(senders):
                    return Times(fresh, time.monotonic() - self._since)
            time.sleep(POLL_SECONDS)

    def _is_fresh(self, senders: dict[str, Any]) -> bool:
        missing = []
        for one in self._senders:
            if _highest(senders.get(one.name)) <= self._made[one.name]:
                missing.append(one.name)
        for name in AGENTS:
            received = sum(epoch["received"] for epoch in senders.get(name, {}).get("epochs", ()))
            if received <= self._received.setdefault(name, received):
                missing.append(name)
        self._state = f"nothing new of {', '.join(missing)}"
        return not missing

    def _is_drained(self, senders: dict[str, Any]) -> bool:
        problems = [
            f"{one.name} lacks {senders[one.name]['missing']}"
            for one in self._senders
            if senders[one.name]["missing"] > len(one.unacknowledged)
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
                problems.append(f"{daemon}: {gauge} is {value}")
        problems += [
            f"{name} is not ready" for name in ("hub", "relay") if not answers(f"{self._site.url(name)}/readyz")
        ]
        self._state = "; ".join(problems)
        return not problems


def _highest(sender: Any) -> int:
    return max((epoch["highest"] for epoch in sender["epochs"]), default=0) if sender else 0
