"""Health of a virtual machine, derived from the passes of its readers, and its boot and readiness times. Pure."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from gpufleet.config.guests import GuestConfig
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.machine import OK, UNANSWERED_STATES, state_of
from gpufleet.model.reading import Value
from gpufleet.model.time import NANOS


class GuestHealth(msgspec.Struct, frozen=True):
    """A state of `guest_state` and a description of the problem, empty while the guest is healthy."""

    state: str
    detail: str = ""

    @property
    def is_unanswered(self) -> bool:
        """Return whether the state means that nothing inside the guest answers."""
        return self.state in UNANSWERED_STATES


AWAITING_ANSWER = GuestHealth(Reason.GUEST_BOOTING, "it has not answered yet")

NO_ACCESS_PATH = GuestHealth(Reason.NOT_ENABLED, "it has no vsock device, and no other access path is configured")


def judge_health(
    guest: GuestConfig,
    failure: Absent | None,
    shown: Mapping[str, str],
    *,
    before: GuestHealth,
    is_booting: bool,
    is_late: bool,
) -> GuestHealth:
    """Return the guest's health after a pass over its GPUs.

    Args:
        guest: its configuration with the expected GPUs.
        failure: why the pass failed, or None.
        shown: product names of the pass's GPUs by key; empty where unknown.
        before: the previous health.
        is_booting: it never answered and was discovered recently, so that failures are expected.
        is_late: it has not answered for several intervals. A single lost pass is no outage.
    """
    if failure is None:
        return _counted(guest, shown)
    if failure.reason is Reason.NO_SUPPORTED_GPU and guest.gpus == 0:
        return GuestHealth(OK)
    if failure.reason is Reason.NO_SUPPORTED_GPU and guest.gpus:
        return GuestHealth(Reason.GPU_COUNT_DIFFERS, f"expected {guest.gpus} GPUs, found none")
    found = GuestHealth(state_of(failure.reason), failure.detail)
    if not found.is_unanswered:
        return found
    if is_booting:
        return GuestHealth(Reason.GUEST_BOOTING, failure.detail)
    return before if before.state == OK and not is_late else found


def _counted(guest: GuestConfig, shown: Mapping[str, str]) -> GuestHealth:
    if guest.gpus is not None and len(shown) != guest.gpus:
        return GuestHealth(Reason.GPU_COUNT_DIFFERS, f"expected {guest.gpus} GPUs, found {len(shown)}")
    counts = Counter(shown.values())
    missing = [f"{count} {name}" for name, count in guest.gpu_types.items() if counts[name] != count]
    if missing and "" not in counts:  # an unknown product name contradicts nothing
        present = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
        return GuestHealth(Reason.GPU_COUNT_DIFFERS, f"expected {', '.join(missing)}, found {present}")
    return GuestHealth(OK)


_NOT_YET = Absent(Reason.NO_DATA, "not yet")


class ReadinessTimes(msgspec.Struct, kw_only=True):
    """Boot and readiness times in nanoseconds since 1970. Each is set once.

    Attributes:
        seen: the agent discovered the guest.
        channel_open: the first connection to it was open.
        first_answer: the first answer came from inside.
        driver_ready: the first GPU readings were available.
    """

    seen: int
    channel_open: int | None = None
    first_answer: int | None = None
    driver_ready: int | None = None

    def readings(self) -> dict[str, Value | Absent]:
        """Return the times as catalogue metrics."""
        named = {
            "seen": self.seen,
            "channel_open": self.channel_open,
            "first_answer": self.first_answer,
            "driver_ready": self.driver_ready,
        }
        return {f"guest_{name}_timestamp_seconds": _NOT_YET if at is None else at / NANOS for name, at in named.items()}
