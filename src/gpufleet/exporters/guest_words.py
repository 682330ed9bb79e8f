"""What is known of a virtual machine and of every way into it, in the words that people use. Pure."""

import datetime as dt
from collections.abc import Iterable

from gpufleet.exporters.words import seconds_words
from gpufleet.model.snapshot import Guest, WayReport, WayState
from gpufleet.model.time import NANOS, to_datetime

STAMPS = (
    ("guest_seen_timestamp_seconds", "told of"),
    ("guest_channel_open_timestamp_seconds", "a way into it was open"),
    ("guest_first_answer_timestamp_seconds", "it first answered"),
    ("guest_driver_ready_timestamp_seconds", "its driver was ready"),
)


def guest_facts(guest: Guest, now: dt.datetime) -> tuple[str, ...]:
    """Return sentences: its state, who told of it, what it should have, each way, and when it got how far."""
    expected = guest.host.readings.get("guest_expected_gpus")
    shown = guest.host.readings.get("guest_gpus")
    facts = [f"state {guest.state}: {guest.detail}" if guest.detail else f"state {guest.state}"]
    facts.append(f"found by {guest.found_by}")
    if guest.allocation:
        facts.append(f"for allocation {guest.allocation}")
    if expected is not None and expected.value is not None:
        counted = "not known" if shown is None or shown.value is None else str(shown.value)
        facts.append(f"should have {expected.value} GPUs, and how many it shows is {counted}")
    facts += [way_words(way, now) for way in guest.ways]
    facts += _stamps(guest, now)
    return tuple(facts)


def way_words(way: WayReport, now: dt.datetime) -> str:
    """Return what is known of one way into it."""
    words = f"way to its {way.asks}: {way.way}: {way.state.replace('_', ' ')}"
    if way.state is WayState.ANSWERS and way.last_success is not None:
        words += f", last {_ago(way.last_success, now)}"
    if way.last_failure is not None:
        words += f"; last error {_ago(way.last_failure, now)}: {way.reason}: {way.last_error}"
    return words


def _stamps(guest: Guest, now: dt.datetime) -> Iterable[str]:
    told: float | None = None
    for metric, words in STAMPS:
        reading = guest.host.readings.get(metric)
        if reading is None or not isinstance(reading.value, int | float):
            yield f"{words}: not yet"
            continue
        at = to_datetime(int(reading.value * NANOS))
        after = "" if told is None else f", {seconds_words(max(0.0, reading.value - told))} after it was told of"
        told = reading.value if told is None else told
        yield f"{words} {_ago(at, now)} ({at:%Y-%m-%dT%H:%M:%SZ}){after}"


def _ago(at: dt.datetime, now: dt.datetime) -> str:
    return f"{seconds_words(max(0.0, (now - at).total_seconds()))} ago"
