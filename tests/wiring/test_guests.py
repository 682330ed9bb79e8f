"""Virtual machines of the agent's sources, found by name for a capture."""

from pathlib import Path

import pytest

from gpufleet.config.agent import AgentConfig
from gpufleet.config.guests import DcgmChannel, GuestConfig
from gpufleet.model.errors import ChannelError, ConfigError
from gpufleet.runtime import SystemClock
from gpufleet.wiring.guests import find_guest, open_guest


def guest(number: int, name: str, namespace: str = "ml", allocation: str = "") -> GuestConfig:
    return GuestConfig(
        name=name,
        namespace=namespace,
        allocation=allocation,
        vm_uuid=f"00000000-0000-4000-8000-{number:012x}",
        channels=(DcgmChannel(address="vsock://42:5555"),),
    )


ONE, TWO, OTHER = guest(1, "train-0", allocation="slice-1"), guest(2, "train-1"), guest(3, "train-1", "dev")
CONFIG = AgentConfig(guests=(ONE, TWO, OTHER))


@pytest.mark.parametrize(
    ("name", "found"), [("train-0", ONE), ("ml/train-0", ONE), ("slice-1", ONE), (TWO.uid, TWO), ("dev/train-1", OTHER)]
)
async def test_guest_is_found_by_each_of_its_names(name: str, found: GuestConfig) -> None:
    assert await find_guest(CONFIG, name, SystemClock()) == found


@pytest.mark.parametrize("name", ["train-1", "train", "", "other"])
async def test_unknown_and_ambiguous_names_are_errors(name: str) -> None:
    with pytest.raises(ConfigError):
        await find_guest(CONFIG, name, SystemClock())


async def test_guest_without_a_shell_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ChannelError):
        await open_guest(ONE, tmp_path, SystemClock())
