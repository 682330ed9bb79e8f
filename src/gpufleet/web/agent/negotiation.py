"""Content negotiation of the metrics page: syntax and compression (RFC 9110, sections 12.4 and 12.5)."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpufleet.exporters.exposition import PageFormat

_OFFERED = (("text/plain", "0.0.4", PageFormat.TEXT), ("application/openmetrics-text", "1.0.0", PageFormat.OPENMETRICS))
"""Media type, version and syntax of each format. The first one wins between equal qualities."""

_ESCAPINGS = frozenset({"allow-utf-8", "underscores", "values"})
"""Name escaping schemes that do not change legal names, such as all names here; `dots` does."""


class AcceptedRange(NamedTuple):
    """Element of an `Accept` header: name in lower case, parameters and quality."""

    name: str
    parameters: dict[str, str]
    quality: float


class NegotiatedSyntax(NamedTuple):
    """Negotiated syntax and its media type."""

    syntax: PageFormat
    content_type: str


def choose_syntax(accept: str) -> NegotiatedSyntax:
    """Return the preferred syntax of an `Accept` header, or the text format if it lists no supported one.

    The text format has version 0.0.4 and OpenMetrics 1.0.0; ranges with another version do not match. A requested name
    escaping (`escaping=`) is confirmed in the media type if it holds for the page.
    """
    ranges = list(_ranges(accept))
    best, quality, escaping = PageFormat.TEXT, 0.0, ""
    for media, version, syntax in _OFFERED:
        found = _best_match(ranges, media, version)
        if found is not None and found.quality > quality:
            best, quality = syntax, found.quality
            escaping = found.parameters.get("escaping", "").lower()
    more = f"; escaping={escaping}" if escaping in _ESCAPINGS else ""
    return NegotiatedSyntax(best, best.value + more)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether an `Accept-Encoding` header prefers gzip, or accepts it equally, to the plain page."""
    qualities = {one.name: one.quality for one in _ranges(accept_encoding)}
    quality = qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0.0)))
    return quality > 0 and quality >= qualities.get("identity", 0.0)


def _best_match(ranges: Iterable[AcceptedRange], media: str, version: str) -> AcceptedRange | None:
    """Return the range that applies to a media type: the most specific one, regardless of quality."""
    family = media.partition("/")[0]
    best: tuple[tuple[int, int], AcceptedRange] | None = None
    for one in ranges:
        requested = one.parameters.get("version")
        if one.name not in (media, f"{family}/*", "*/*") or requested not in (None, version):
            continue
        specific = (3 if one.name == media else 1 if one.name == "*/*" else 2, int(requested is not None))
        if best is None or specific > best[0]:
            best = specific, one
    return best[1] if best is not None else None


def _ranges(header: str) -> Iterator[AcceptedRange]:
    """Parse the elements of a header; invalid ones are skipped."""
    for part in header.split(","):
        name, *parameters = [text.strip() for text in part.split(";")]
        if not name:
            continue
        pairs = {
            key.strip().lower(): value.strip().strip('"') for key, _, value in (p.partition("=") for p in parameters)
        }
        quality = _quality(pairs.pop("q", "1"))
        if quality is not None:
            yield AcceptedRange(name.lower(), pairs, quality)


def _quality(text: str) -> float | None:
    """Parse a quality between 0 and 1; None if it is invalid."""
    whole, dot, rest = text.partition(".")
    if whole not in ("0", "1") or (rest and not (rest.isascii() and rest.isdigit())) or len(rest) > 3:
        return None
    value = float(f"{whole}.{rest or '0'}") if dot else float(whole)
    return value if value <= 1 else None
