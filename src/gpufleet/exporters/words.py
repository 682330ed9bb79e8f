"""Values in the words that people use; documents and pages for machines never do this."""

from collections.abc import Callable, Mapping

from gpufleet.model.catalogue import CATALOGUE

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
