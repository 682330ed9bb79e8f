"""Guest health: expected against shown GPUs, and time without an answer."""

import pytest

from gpufleet.agent.guests.health import AWAITING_ANSWER, GuestHealth, judge_health
from gpufleet.config.guests import DcgmChannel, GuestConfig
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.machine import OK, STATES, state_of

CHANNELS = (DcgmChannel(address="vsock://3:5555"),)
UID = "6f1ed002-ab5b-4f4f-8f2c-0a2b3c4d5e6f"


def guest(gpus: int | None = None, **types: int) -> GuestConfig:
    return GuestConfig(name="vm", vm_uuid=UID, gpus=gpus, gpu_types=types, channels=CHANNELS)


def health_state(
    one: GuestConfig,
    failure: Reason | None,
    *shown: str,
    before: GuestHealth = AWAITING_ANSWER,
    is_booting: bool = False,
    is_late: bool = False,
) -> str:
    absent = None if failure is None else Absent(failure, "detail")
    keys = {f"gpu/{number}": name for number, name in enumerate(shown)}
    return judge_health(one, absent, keys, before=before, is_booting=is_booting, is_late=is_late).state


@pytest.mark.parametrize(
    ("gpus", "types", "shown", "state"),
    [
        (None, {}, ("A",), OK),
        (2, {}, ("A", "A"), OK),
        (2, {}, ("A",), Reason.GPU_COUNT_DIFFERS),
        (1, {}, ("A", "A"), Reason.GPU_COUNT_DIFFERS),
        (None, {"A": 2}, ("A", "A"), OK),
        (None, {"A": 2}, ("A", "B"), Reason.GPU_COUNT_DIFFERS),
        (2, {"A": 2}, ("", ""), OK),
        (2, {"A": 2}, ("B", "B"), Reason.GPU_COUNT_DIFFERS),
    ],
)
def test_gpus_are_compared_with_the_expected_count(
    gpus: int | None, types: dict[str, int], shown: tuple[str, ...], state: str
) -> None:
    assert health_state(guest(gpus, **types), None, *shown) == state


def test_no_gpu_is_compared_with_the_expected_count() -> None:
    assert health_state(guest(2), Reason.NO_SUPPORTED_GPU) == Reason.GPU_COUNT_DIFFERS
    assert health_state(guest(0), Reason.NO_SUPPORTED_GPU) == OK
    assert health_state(guest(), Reason.NO_SUPPORTED_GPU) == Reason.NO_SUPPORTED_GPU


def test_guest_without_answers_is_booting_then_unreachable() -> None:
    unreachable = Reason.GUEST_UNREACHABLE
    assert health_state(guest(), unreachable, is_booting=True) == Reason.GUEST_BOOTING
    assert health_state(guest(), unreachable) == unreachable
    assert health_state(guest(), unreachable, before=GuestHealth(OK)) == OK
    assert health_state(guest(), unreachable, before=GuestHealth(OK), is_late=True) == unreachable


@pytest.mark.parametrize("reason", [Reason.IDENTITY_MISMATCH, Reason.NO_DRIVER, Reason.GUEST_REFUSED])
def test_reported_reason_applies_at_once(reason: Reason) -> None:
    assert health_state(guest(), reason, before=GuestHealth(OK), is_booting=True) == reason


@pytest.mark.parametrize("reason", list(Reason))
def test_every_failure_has_a_guest_state(reason: Reason) -> None:
    assert state_of(reason) in STATES
    assert health_state(guest(), reason, is_late=True) in STATES
