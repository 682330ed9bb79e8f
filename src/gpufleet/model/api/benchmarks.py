"""Benchmark captures that senders posted to a hub."""

import datetime as dt
from typing import Annotated

import msgspec

from gpufleet.model.reading import Provenance

BENCHMARK_SCHEMA = "gpufleet.benchmark/1"
"""Schema of a capture's document."""

MAX_CAPTURE_BYTES = 16 << 20
"""Maximum size of a capture's document."""

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
LabelName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_.-]{0,62}\Z")]
LabelValue = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Labels = Annotated[dict[LabelName, LabelValue], msgspec.Meta(max_length=32)]


class PostedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Machine of a posted capture, by its document; see `bench.document.CapturedMachine`."""

    name: Text
    source: Provenance
    system_uuid: Text | None = None
    allocation: Text | None = None


class PostedHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a posted document that the hub reads. Other parts are stored unread."""

    schema: str
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    version: Text
    started_at: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    machine: PostedMachine
    labels: Labels = {}


class PostedCapture(msgspec.Struct, frozen=True, kw_only=True):
    """Row of `GET /v1/benchmarks`.

    Attributes:
        id: SHA-256 digest of the document.
        cluster: cluster of the sender.
        name, started_at, machine, labels: by the document, which is the sender's claim.
        received_at: by the hub.
        bytes: size of the document.
    """

    id: str
    cluster: str
    name: str
    started_at: dt.datetime
    machine: PostedMachine
    labels: dict[str, str]
    received_at: dt.datetime
    bytes: int


class PostedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/benchmarks`: `status` is accepted or duplicate."""

    status: str
    id: str
