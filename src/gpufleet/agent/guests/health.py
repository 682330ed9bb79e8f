"""How a virtual machine is doing: from what its readers came to. Pure.

When a virtual machine got how far: the boot and readiness times that people compare.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from gpufleet.config.guests import GuestConfig
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.machine import OK, SILENT, state_of
from gpufleet.model.reading import Value
from gpufleet.model.time import NANOS


class Standing(msgspec.Struct, frozen=True):
    """A state of `guest_state`, and what is wrong in words (empty while nothing is)."""

    state: str
    detail: str = ""

    @property
    def is_silent(self) -> bool:
        """Whether nothing is heard from inside."""
        return self.state in SILENT


AWAITED = Standing(Reason.GUEST_BOOTING, "it has not answered yet")

NO_WAY = Standing(Reason.NOT_ENABLED, "no way into it: it has no vsock device, and nothing describes another way")


def judge(
    guest: GuestConfig, failure: Absent | None, shown: Mapping[str, str], *, before: Standing, awaited: bool, late: bool
) -> Standing:
    """Return how it is doing after a pass over its GPUs.

    Args:
        guest: what it should have.
        failure: why the pass gave nothing, or None.
        shown: GPUs of the pass by key, with their product names (empty where it is not told).
        before: how it was doing.
        awaited: it was never heard from inside, and not so long ago told of that this is a failure.
        late: nothing was heard for several intervals: one lost pass is no outage.
    """
    if failure is None:
        return _counted(guest, shown)
    if failure.reason is Reason.NO_SUPPORTED_GPU and guest.gpus == 0:
        return Standing(OK)
    if failure.reason is Reason.NO_SUPPORTED_GPU and guest.gpus:
        return Standing(Reason.GPU_COUNT_DIFFERS, f"it should have {guest.gpus} GPUs and shows none")
    found = Standing(state_of(failure.reason), failure.detail)
    if not found.is_silent:
        return found
    if awaited:
        return Standing(Reason.GUEST_BOOTING, failure.detail)
    return before if before.state == OK and not late else found


def _counted(guest: GuestConfig, shown: Mapping[str, str]) -> Standing:
    if guest.gpus is not None and len(shown) != guest.gpus:
        return Standing(Reason.GPU_COUNT_DIFFERS, f"it should have {guest.gpus} GPUs and shows {len(shown)}")
    have = Counter(shown.values())
    lacking = [f"{count} {name}" for name, count in guest.gpu_types.items() if have[name] != count]
    if lacking and "" not in have:  # a name that is not told contradicts nothing
        there = ", ".join(f"{count} {name}" for name, count in sorted(have.items())) or "none"
        return Standing(Reason.GPU_COUNT_DIFFERS, f"it should have {', '.join(lacking)} and shows {there}")
    return Standing(OK)


_NOT_YET = Absent(Reason.NO_DATA, "not yet")


class Stamps(msgspec.Struct, kw_only=True):
    """Nanoseconds since 1970, each set once.

    Attributes:
        seen: the agent was told of it.
        channel_open: a way into it was open.
        first_answer: somebody inside answered.
        driver_ready: there were readings of a GPU.
    """

    seen: int
    channel_open: int | None = None
    first_answer: int | None = None
    driver_ready: int | None = None

    def readings(self) -> dict[str, Value | Absent]:
        """Return the rows of the catalogue."""
        named = {
            "seen": self.seen,
            "channel_open": self.channel_open,
            "first_answer": self.first_answer,
            "driver_ready": self.driver_ready,
        }
        return {f"guest_{name}_timestamp_seconds": _NOT_YET if at is None else at / NANOS for name, at in named.items()}
