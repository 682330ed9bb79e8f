"""Posting of a recording to a hub, with the recording's own times."""

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpufleet.cli.fetch import Access
from gpufleet.cli.options import CommandError
from gpufleet.model.text import clean

if TYPE_CHECKING:
    from gpufleet.delivery.post import HubAnswer, HubClient
    from gpufleet.model.snapshot import Snapshot
    from gpufleet.recording.reports import RecordedBatches

BUNDLE = 32
"""Frames per request."""

ATTEMPTS = 6
"""Attempts of a request that fails temporarily; the pauses between them double from one second."""

TIMEOUT_SECONDS = 60.0


async def post_recording(
    frames: Iterator[tuple[int, "Snapshot"]], batches: "RecordedBatches", hub: str, access: Access
) -> int:
    """Post the frames of a recording, each with its time; return their number.

    A frame counts as received at its own time, as a relay's backlog does. So its readings are never current, and never
    newer than what the hub has received since.

    Raises:
        CommandError: if the hub rejects a frame, or cannot be reached.
    """
    from gpufleet.wiring.connections import make_hub_client

    posted = 0
    client = make_hub_client(
        hub,
        name="gpufleet-replay",
        timeout_seconds=TIMEOUT_SECONDS,
        token_file=None if access.token_file is None else str(access.token_file),
        ca=None if access.ca is None else str(access.ca),
    )
    async with client:
        for bundle in _bundles(frames):
            now = time.time_ns()
            waited = [max(0, now - at) for at, _ in bundle]
            await _post(client, [batches.batch(snapshot, at) for at, snapshot in bundle], waited, hub)
            posted += len(bundle)
    return posted


def _bundles(frames: Iterator[tuple[int, "Snapshot"]]) -> Iterator[list[tuple[int, "Snapshot"]]]:
    bundle: list[tuple[int, Snapshot]] = []
    for one in frames:
        bundle.append(one)
        if len(bundle) == BUNDLE:
            yield bundle
            bundle = []
    if bundle:
        yield bundle


async def _post(client: "HubClient", bodies: list[bytes], waited: list[int], hub: str) -> None:
    """Post bodies until the hub has all of them."""
    from gpufleet.delivery.post import HubVerdict

    for attempt in range(ATTEMPTS):
        answers = await client.post_bundle(bodies, waited)
        refused = next((one for one in answers if one.verdict in (HubVerdict.REJECTED, HubVerdict.CONFLICT)), None)
        if refused is not None or any(one.status in (401, 403) for one in answers):
            raise CommandError(f"{hub} {refused or answers[0]}")
        left = [place for place, one in enumerate(answers) if one.verdict is not HubVerdict.ACCEPTED]
        if not left:
            return
        bodies, waited = [bodies[place] for place in left], [waited[place] for place in left]
        failure: HubAnswer = answers[left[0]]
        if attempt < ATTEMPTS - 1:
            print(f"gpufleet: {clean(f'{hub} {failure}')}: trying again", file=sys.stderr)
            await asyncio.sleep(2**attempt)
    raise CommandError(f"{hub} {failure}: run the command again; the hub keeps the frames that it has")
