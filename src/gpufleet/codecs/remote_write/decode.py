"""Decoding of remote-write bodies from untrusted writers."""

import math
import struct
from collections.abc import Callable

import cramjam

from gpufleet.codecs.protobuf import BYTES, FIXED64, VARINT, skip, span, text, varint
from gpufleet.codecs.remote_write.records import WriteLimits, WriteProblem, WriteRequest
from gpufleet.codecs.remote_write.series_cache import NAME, Key, SeriesCache, SeriesError, series_of
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.text import clean

STALE = (0x7FF0_0000_0000_0002).to_bytes(8, "little")
"""Bits of the stale marker, the NaN that ends a series."""

MILLISECOND = 1_000_000
_LAST = 2**63 - 1
_OTHER = 1
"""Mark of an unwanted series; its problems are not counted."""

_DOUBLE = struct.Struct("<d")
_TYPES = ("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")

# protobuf keys: field number << 3 | wire type
_SERIES_1, _METADATA_1 = 1 << 3 | BYTES, 3 << 3 | BYTES
_SYMBOL, _SERIES_2 = 4 << 3 | BYTES, 5 << 3 | BYTES
_LABELS, _SAMPLE, _METADATA_2 = (number << 3 | BYTES for number in (1, 2, 5))
_EXEMPLAR_1, _HISTOGRAM_1 = 3 << 3 | BYTES, 4 << 3 | BYTES
_HISTOGRAM_2, _EXEMPLAR_2 = _EXEMPLAR_1, _HISTOGRAM_1  # swapped in 2.0
_VALUE, _TIME = 1 << 3 | FIXED64, 2 << 3 | VARINT
_FIRST, _SECOND = 1 << 3 | BYTES, 2 << 3 | BYTES
_TYPE = 1 << 3 | VARINT


def decompress(body: bytes, limits: WriteLimits) -> bytes:
    """Decompress a snappy block.

    Raises:
        WireLimitError: if the body, or the size in its header, is too large.
        WireError: if it is not a snappy block.
    """
    if len(body) > limits.body_bytes:
        raise WireLimitError("body", f"{len(body)} bytes, more than {limits.body_bytes}")
    size, _ = varint(body, 0)
    if size > limits.message_bytes:
        raise WireLimitError("body", f"{size} bytes after decompression, more than {limits.message_bytes}")
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise WireError("body", f"not a snappy block: {error}") from None


class WriteDecoder:
    """Decoder of the successive requests of one writer. Not thread-safe.

    Attributes:
        known: cache of series.
    """

    def __init__(self, limits: WriteLimits | None = None, is_wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Create a decoder.

        Args:
            limits: None for the default limits.
            is_wanted: returns whether a metric of that name is wanted. Samples of other metrics are attributed to one
                series without labels, so that a server with a million series does not fill the memory.
        """
        self._limits = limits or WriteLimits()
        self._is_wanted = is_wanted
        self.known = SeriesCache(self._limits)
        self._found, self._others = self.known.found, self.known.others
        self._request = WriteRequest([], [], [], [], {}, {})

    def decode_1(self, body: bytes) -> WriteRequest:
        """Decode a body of remote write 1.0 (`prometheus.WriteRequest`).

        Raises:
            WireError: if it does not follow the format; WireLimitError if it exceeds a limit.
        """
        data = self._begin(body)
        at, end, count = 0, len(data), 0
        while at < end:
            key, at = varint(data, at)
            if key == _SERIES_1:
                start, at = span(data, at, end)
                count += 1
                self._bound("series", count, self._limits.series)
                self._series_1(data, start, at)
            elif key == _METADATA_1:
                start, at = span(data, at, end)
                self._metadata_1(data, start, at)
            elif key in (_SYMBOL, _SERIES_2):  # these fields exist only in 2.0
                raise WireError("symbols", "a 2.0 request declared as 1.0: set proto=io.prometheus.write.v2.Request")
            else:
                at = skip(data, at, end, key)
        return self._request

    def decode_2(self, body: bytes) -> WriteRequest:
        """Decode a body of remote write 2.0 (`io.prometheus.write.v2.Request`); raises as `decode_1` does."""
        data = self._begin(body)
        symbols: list[str] = []
        spans: list[tuple[int, int]] = []
        at, end = 0, len(data)
        while at < end:
            key, at = varint(data, at)
            if key == _SYMBOL:
                start, at = span(data, at, end)
                symbols.append(text(data, start, at))
                self._bound("symbols", len(symbols), self._limits.symbols)
            elif key == _SERIES_2:
                start, at = span(data, at, end)
                spans.append((start, at))  # symbols may come after them
                self._bound("series", len(spans), self._limits.series)
            elif key in (_SERIES_1, _METADATA_1):
                raise WireError("timeseries", "a 1.0 request declared as 2.0: set proto=prometheus.WriteRequest")
            else:
                at = skip(data, at, end, key)
        if symbols and symbols[0]:
            raise WireError("symbols[0]", "the first symbol must be empty")
        for start, stop in spans:
            self._series_2(data, start, stop, symbols)
        return self._request

    def _begin(self, body: bytes) -> bytes:
        self._request = WriteRequest([], [], [], [], {}, {})
        self.known.begin()
        return decompress(body, self._limits)

    def _series_1(self, data: bytes, at: int, end: int) -> None:
        """Decode one series. All known writers send labels first; they are looked up as bytes."""
        start = first = at
        while at < end and data[at] == _LABELS:
            at = span(data, at + 1, end)[1]
            if first == start:
                first = at
        name = data[start:first]
        series = self._others.get(name)
        try:
            if series is None:
                key = data[start:at]
                series = self._found.get(key)
                if series is None:
                    series = self._new(key, name, self._pairs(data, start, at))
        except SeriesError as error:
            self._problem(error.problem)
            return
        self._samples(data, at, end, series, _HISTOGRAM_1, _EXEMPLAR_1)

    def _pairs(self, data: bytes, at: int, end: int) -> list[tuple[str, str]]:
        pairs = []
        while at < end:
            at, stop = span(data, at + 1, end)
            name = value = ""
            while at < stop:
                key, at = varint(data, at)
                if key in (_FIRST, _SECOND):
                    start, at = span(data, at, stop)
                    if key == _FIRST:
                        name = text(data, start, at)
                    else:
                        value = text(data, start, at)
                else:
                    at = skip(data, at, stop, key)
            pairs.append((name, value))
        return pairs

    def _series_2(self, data: bytes, at: int, end: int, symbols: list[str]) -> None:
        if at == end or data[at] != _LABELS:
            self._problem(WriteProblem.NO_NAME)
            return
        at, stop = span(data, at + 1, end)
        texts = []
        while at < stop:
            number, at = varint(data, at)
            if number >= len(symbols):
                raise WireError("labels_refs", f"symbol {number}, of {len(symbols)}")
            texts.append(symbols[number])
        if len(texts) % 2:
            raise WireError("labels_refs", f"{len(texts)} references, expected pairs")
        name = tuple(texts[:2])
        series = self._others.get(name)
        try:
            if series is None:
                key = tuple(texts)
                series = self._found.get(key)
                if series is None:
                    series = self._new(key, name, list(zip(texts[::2], texts[1::2], strict=True)))
        except SeriesError as error:
            self._problem(error.problem)
            return
        self._samples(data, at, end, series, _HISTOGRAM_2, _EXEMPLAR_2, is_second=True)

    def _new(self, key: Key, first: Key, pairs: list[tuple[str, str]]) -> ImportedSeries:
        """Return an uncached series; `first` is the key of its first label alone."""
        name = clean(next((value for label, value in pairs if label == NAME), "")[: self._limits.name_bytes])
        if not name or self._is_wanted(name):
            return self.known.keep(key, series_of(pairs, self._limits))
        other = ImportedSeries(name, {})
        other.mark = _OTHER
        size = len(first) if isinstance(first, bytes) else sum(map(len, first))
        if pairs[0][0] == NAME and size <= self._limits.value_bytes:
            self._others[first] = other  # not cached if other labels sort before the name, or the name is long
        return other

    def _samples(
        self,
        data: bytes,
        at: int,
        end: int,
        series: ImportedSeries,
        histogram: int,
        exemplar: int,
        *,
        is_second: bool = False,
    ) -> None:
        """Decode the fields after a series' labels."""
        request, before = self._request, len(self._request.values)
        while at < end:
            key, at = varint(data, at)
            if key == _SAMPLE:
                at, stop = span(data, at, end)
                self._sample(data, at, stop, series)
                at = stop
            elif key == _LABELS:
                raise WireError("labels", "labels must come before samples")
            elif key == histogram:
                at = skip(data, at, end, key)
                if series.mark == _OTHER:
                    self._take(series, math.nan, 0)
                    request.other_histograms += 1
                else:
                    self._problem(WriteProblem.HISTOGRAM)
            elif key == exemplar and series.mark == _OTHER:
                at = skip(data, at, end, key)
                request.other_exemplars += 1
            elif key == _METADATA_2 and is_second:
                at, stop = span(data, at, end)
                self._type(data, at, stop, series.name)
                at = stop
            else:
                at = skip(data, at, end, key)
        if len(request.values) > before:
            self._bound("samples", len(request.values), self._limits.samples)

    def _sample(self, data: bytes, at: int, end: int, series: ImportedSeries) -> None:
        request = self._request
        bits, instant = b"\0" * 8, 0
        while at < end:
            key = data[at]
            if key == _VALUE and end - at > 8:
                bits = data[at + 1 : at + 9]
                at += 9
            elif key == _TIME:
                number, at = varint(data, at + 1)
                instant = (number - (1 << 64) if number >> 63 else number) * MILLISECOND  # as int64
            else:
                key, at = varint(data, at)
                at = skip(data, at, end, key)
        if not 0 < instant <= _LAST and series.mark != _OTHER:
            self._problem(WriteProblem.TIMESTAMP)
            return
        if bits == STALE:
            request.stale.append(len(request.values))
        self._take(series, _DOUBLE.unpack(bits)[0], instant)

    def _take(self, series: ImportedSeries, value: float, instant: int) -> None:
        request = self._request
        request.series.append(series)
        request.values.append(value)
        request.times.append(instant)

    def _metadata_1(self, data: bytes, at: int, end: int) -> None:
        kind, name = 0, ""
        while at < end:
            key, at = varint(data, at)
            if key == _TYPE:
                kind, at = varint(data, at)
            elif key == _SECOND:
                start, at = span(data, at, end)
                name = text(data, start, at)
            else:
                at = skip(data, at, end, key)
        self._name_type(name, kind)

    def _type(self, data: bytes, at: int, end: int, name: str) -> None:
        while at < end:
            key, at = varint(data, at)
            if key == _TYPE:
                kind, at = varint(data, at)
                self._name_type(name, kind)
            else:
                at = skip(data, at, end, key)

    def _name_type(self, name: str, kind: int) -> None:
        types = self._request.types
        if 0 < kind < len(_TYPES) and 0 < len(name) <= self._limits.name_bytes:
            types[name] = _TYPES[kind]
            self._bound("metadata", len(types), self._limits.series)

    def _problem(self, problem: WriteProblem) -> None:
        problems = self._request.problems
        problems[problem] = problems.get(problem, 0) + 1

    @staticmethod
    def _bound(field: str, count: int, most: int) -> None:
        if count > most:
            raise WireLimitError(field, f"more than {most}")
