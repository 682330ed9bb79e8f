"""How a guest is doing: what it should have against what it shows, and how long silence is patience."""

import pytest

from gpufleet.agent.guests.health import AWAITED, Standing, judge
from gpufleet.config.guests import DcgmChannel, GuestConfig
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.machine import OK, STATES, state_of

CHANNELS = (DcgmChannel(address="vsock://3:5555"),)
UID = "6f1ed002-ab5b-4f4f-8f2c-0a2b3c4d5e6f"


def guest(gpus: int | None = None, **types: int) -> GuestConfig:
    return GuestConfig(name="vm", vm_uuid=UID, gpus=gpus, gpu_types=types, channels=CHANNELS)


def judged(
    one: GuestConfig,
    failure: Reason | None,
    *shown: str,
    before: Standing = AWAITED,
    awaited: bool = False,
    late: bool = False,
) -> str:
    absent = None if failure is None else Absent(failure, "words")
    keys = {f"gpu/{number}": name for number, name in enumerate(shown)}
    return judge(one, absent, keys, before=before, awaited=awaited, late=late).state


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
def test_what_it_should_have_is_counted(
    gpus: int | None, types: dict[str, int], shown: tuple[str, ...], state: str
) -> None:
    assert judged(guest(gpus, **types), None, *shown) == state


def test_none_is_a_number_too() -> None:
    assert judged(guest(2), Reason.NO_SUPPORTED_GPU) == Reason.GPU_COUNT_DIFFERS
    assert judged(guest(0), Reason.NO_SUPPORTED_GPU) == OK
    assert judged(guest(), Reason.NO_SUPPORTED_GPU) == Reason.NO_SUPPORTED_GPU


def test_silence_is_booting_then_unreachable_and_one_lost_pass_is_nothing() -> None:
    quiet = Reason.GUEST_UNREACHABLE
    assert judged(guest(), quiet, awaited=True) == Reason.GUEST_BOOTING
    assert judged(guest(), quiet) == quiet
    assert judged(guest(), quiet, before=Standing(OK)) == OK
    assert judged(guest(), quiet, before=Standing(OK), late=True) == quiet


@pytest.mark.parametrize("reason", [Reason.IDENTITY_MISMATCH, Reason.NO_DRIVER, Reason.GUEST_REFUSED])
def test_what_is_said_is_believed_at_once(reason: Reason) -> None:
    assert judged(guest(), reason, before=Standing(OK), awaited=True) == reason


@pytest.mark.parametrize("reason", list(Reason))
def test_every_failure_is_a_state_of_the_catalogue(reason: Reason) -> None:
    assert state_of(reason) in STATES
    assert judged(guest(), reason, late=True) in STATES
