"""In which syntax, and how compressed, a page of metrics is asked for (RFC 9110, sections 12.4 and 12.5)."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpufleet.exporters.exposition import Syntax

_OFFERED = (("text/plain", "0.0.4", Syntax.TEXT), ("application/openmetrics-text", "1.0.0", Syntax.OPENMETRICS))
"""Media type, the version it has here, and the syntax; who likes several alike gets the first."""

_ESCAPINGS = frozenset({"allow-utf-8", "underscores", "values"})
"""Ways to write names that leave those as they are that are legal anyway, as all of ours are; `dots` does not."""


class Range(NamedTuple):
    """One of the things that a header accepts: its name in lower case, its parameters, and how much it is liked."""

    name: str
    parameters: dict[str, str]
    quality: float


class Choice(NamedTuple):
    """What is answered: the syntax, and the media type that names it."""

    syntax: Syntax
    content_type: str


def choose_syntax(accept: str) -> Choice:
    """Return the syntax that an `Accept` header likes best; the text format if it names none that there is.

    The text format is version 0.0.4, OpenMetrics 1.0.0: a range that asks for another version is not for these. Where a
    range asks for an escaping of names (`escaping=`), the answer says so if it is true of the page.
    """
    ranges = list(_ranges(accept))
    best, liked, escaping = Syntax.TEXT, 0.0, ""
    for media, version, syntax in _OFFERED:
        found = _best_match(ranges, media, version)
        if found is not None and found.quality > liked:
            best, liked = syntax, found.quality
            escaping = found.parameters.get("escaping", "").lower()
    more = f"; escaping={escaping}" if escaping in _ESCAPINGS else ""
    return Choice(best, best.value + more)


def accepts_gzip(accept_encoding: str) -> bool:
    """Tell whether an `Accept-Encoding` header likes gzip at least as much as the plain page."""
    liked = {one.name: one.quality for one in _ranges(accept_encoding)}
    quality = liked.get("gzip", liked.get("x-gzip", liked.get("*", 0.0)))
    return quality > 0 and quality >= liked.get("identity", 0.0)


def _best_match(ranges: Iterable[Range], media: str, version: str) -> Range | None:
    """Return what a header says of a media type: the most specific range decides, whatever its quality."""
    family = media.partition("/")[0]
    best: tuple[tuple[int, int], Range] | None = None
    for one in ranges:
        asked = one.parameters.get("version")
        if one.name not in (media, f"{family}/*", "*/*") or asked not in (None, version):
            continue
        specific = (3 if one.name == media else 1 if one.name == "*/*" else 2, int(asked is not None))
        if best is None or specific > best[0]:
            best = specific, one
    return best[1] if best is not None else None


def _ranges(header: str) -> Iterator[Range]:
    """Cut a header into what it accepts; what cannot be read is passed over."""
    for part in header.split(","):
        name, *parameters = [word.strip() for word in part.split(";")]
        if not name:
            continue
        pairs = {
            key.strip().lower(): value.strip().strip('"') for key, _, value in (p.partition("=") for p in parameters)
        }
        quality = _quality(pairs.pop("q", "1"))
        if quality is not None:
            yield Range(name.lower(), pairs, quality)


def _quality(text: str) -> float | None:
    """Read a weight between 0 and 1, or None for anything else."""
    whole, dot, rest = text.partition(".")
    if whole not in ("0", "1") or (rest and not (rest.isascii() and rest.isdigit())) or len(rest) > 3:
        return None
    value = float(f"{whole}.{rest or '0'}") if dot else float(whole)
    return value if value <= 1 else None
