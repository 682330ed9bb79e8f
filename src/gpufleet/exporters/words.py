"""Values in the words that people use; documents and pages for machines never do this.

What is known of a virtual machine and of every way into it, in the words that people use. Pure.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping

from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.snapshot import Guest, WayReport, WayState
from gpufleet.model.time import NANOS, to_datetime

Words = Callable[[float], str]

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = (("G", 1e9), ("M", 1e6), ("k", 1e3))


def bytes_words(value: float) -> str:
    """Write bytes with three figures and a binary unit."""
    step = 0
    while value >= 999.5 and step < len(_BINARY) - 1:
        value /= 1024
        step += 1
    return f"{value:.3g} {_BINARY[step]}"


def percent_words(value: float) -> str:
    """Write a ratio as percent."""
    return f"{value * 100:.0f} %" if value == 0 or value >= 0.1 else f"{value * 100:.1f} %"


def seconds_words(value: float) -> str:
    """Write a span with the unit that fits."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h" if value < 48 * 3600 else f"{value / 86400:.0f} days"


def hertz_words(value: float) -> str:
    """Write a frequency."""
    for prefix, size in _DECIMAL:
        if value >= size:
            return f"{value / size:.4g} {prefix}Hz"
    return f"{value:g} Hz"


_UNITS: dict[str, Words] = {
    "bytes": bytes_words,
    "bytes_per_second": lambda value: f"{bytes_words(value)}/s",
    "ratio": percent_words,
    "hertz": hertz_words,
    "celsius": lambda value: f"{value:g} °C",
    "watts": lambda value: f"{value:.4g} W",
    "joules": lambda value: f"{value:.6g} J",
    "seconds": lambda value: f"{value:.10g} s",
}


def value_words(metric: str, value: float | str) -> str:
    """Write a value of a metric with its unit."""
    if isinstance(value, str):
        return value
    words = _UNITS.get(CATALOGUE[metric].unit)
    if words is not None:
        return words(value)
    return str(value) if isinstance(value, int) else f"{value:.6g}"


_SAID_ELSEWHERE = frozenset({"name", "class", "action", "log_seq"})


def event_words(attributes: Mapping[str, str]) -> str:
    """Return an event's attributes as people read them: what it is first, then what to do, then the rest."""
    first = [attributes[name] for name in ("name", "class") if attributes.get(name)]
    action = attributes.get("action", "")
    advised = [f"advised: {action}"] if action and action != "unknown" else []
    rest = [f"{name} {text}" for name, text in attributes.items() if name not in _SAID_ELSEWHERE]
    return ", ".join([*first, *advised, *rest])


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
