"""Authentication at a relay, by its own tokens."""

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.config.hub import ForwardConfig, HubConfig, RelayConfig
from gpufleet.model.errors import ConfigError
from gpufleet.wiring.relay import running_relay
from tests.fakes.batches import body
from tests.fakes.hub import FakeHub
from tests.support.command import gpufleet
from tests.support.waiting import wait_until_async

NOW = 1_767_225_600_000_000_000


async def request(
    url: str, *, content: bytes | None = None, content_type: str = CONTENT_TYPE, token: str = ""
) -> tuple[int, Any]:
    def exchange() -> tuple[int, Any]:
        headers = {"Content-Type": content_type} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data=content, headers=headers), timeout=20
            ) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return await asyncio.to_thread(exchange)


def new_token(state: Path, *arguments: str) -> str:
    done = gpufleet("token", "create", *arguments, "--state", str(state))
    assert done.returncode == 0, done.stderr
    (token,) = [text for text in done.stdout.split() if text.startswith("gpf_")]
    return token


async def test_relay_uses_its_own_token_at_the_next_hub(tmp_path: Path) -> None:
    state = tmp_path / "state"
    sender = await asyncio.to_thread(new_token, state, "--role", "sender", "--cluster", "local")
    (tmp_path / "token").write_text("gpf_of_the_relay")
    async with FakeHub.running() as hub:
        config = HubConfig(
            listen="127.0.0.1:0",
            state=str(state),
            auth="tokens",
            clusters=("local", "other"),
            relay=RelayConfig(to=hub.url, token_file=str(tmp_path / "token")),
        )
        async with running_relay(config) as relay:
            batches = f"{relay.url}/v1/batches"
            assert (await request(batches, content=body(1, NOW)))[0] == 401
            assert (await request(batches, content=body(1, NOW), token="gpf_unknown"))[0] == 401
            assert (await request(batches, content=body(1, NOW, cluster="other"), token=sender))[0] == 403
            assert (await request(f"{relay.url}/v1/senders", token=sender))[0] == 403
            assert (await request(f"{relay.url}/v1/senders"))[0] == 401
            assert (await request(f"{relay.url}/healthz"))[0] == 200
            assert (await request(batches, content=body(1, NOW), token=sender))[0] == 200

            async def passed_on() -> bool:
                return hub.seqs == [1]

            await wait_until_async(passed_on)
            assert hub.tokens == {"Bearer gpf_of_the_relay"}


async def test_forward_url_is_rejected_on_a_relay(tmp_path: Path) -> None:
    forward = ForwardConfig(url="http://127.0.0.1:8428/api/v1/write")
    config = HubConfig(
        listen="127.0.0.1:0", state=str(tmp_path), relay=RelayConfig(to="http://127.0.0.1:1"), forward=forward
    )
    with pytest.raises(ConfigError, match=r"forward\.url"):
        async with running_relay(config):
            pass
