"""Archive of posted benchmark captures: a folder with one document and one record for each.

The document is hostile input. Its header is checked and its size is bounded; the rest is stored unread, for the
engineer who compares captures.
"""

import datetime as dt
import hashlib
import threading
from pathlib import Path

import msgspec

from gpufleet.model.api.benchmarks import BENCHMARK_SCHEMA, MAX_CAPTURE_BYTES, PostedCapture, PostedHeader
from gpufleet.model.errors import GpufleetError, NotFoundError, WireError, WireLimitError, WireVersionError
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.spool.folder import write_durably

MAX_CAPTURES = 1000
MAX_BYTES = 1 << 30
"""Maximum number and total size of the captures of a cluster. Beyond them further captures are refused."""

_header_decoder = msgspec.json.Decoder(PostedHeader)
_record_decoder = msgspec.json.Decoder(PostedCapture)


class ArchiveFullError(GpufleetError):
    """The captures of a cluster have reached their limit."""


def parse_header(content: bytes) -> PostedHeader:
    """Parse the header of a posted document.

    Raises:
        WireLimitError: if the document is larger than `MAX_CAPTURE_BYTES`.
        WireVersionError: if it has another schema.
        WireError: if it is not the JSON of a capture; `field` is the JSON path.
    """
    if len(content) > MAX_CAPTURE_BYTES:
        raise WireLimitError("", f"the document has {len(content)} bytes, more than {MAX_CAPTURE_BYTES}")
    try:
        header = _header_decoder.decode(content)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        raise WireError(path.strip("`"), reason) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("", f"not JSON: {error}"[:300]) from error
    if header.schema != BENCHMARK_SCHEMA:
        raise WireVersionError("schema", f"{header.schema[:80]!r} is not {BENCHMARK_SCHEMA}")
    try:
        return msgspec.structs.replace(header, started_at=header.started_at.astimezone(dt.UTC))
    except OverflowError as error:
        raise WireError("started_at", "out of range") from error


class CaptureArchive:
    """Captures of all clusters. Its methods block; any thread may call them.

    Args:
        folder: created on the first capture.
        clock: of the hub.

    Raises:
        OSError: if the folder exists and cannot be read.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self._lock = threading.Lock()
        self._records: dict[str, PostedCapture] = {}
        for path in sorted(folder.glob("*.record")) if folder.is_dir() else ():
            try:
                record = _record_decoder.decode(path.read_bytes())
            except msgspec.MsgspecError:
                continue  # not written by a hub
            if path.stem == record.id and self._document(record.id).is_file():
                self._records[record.id] = record

    def add(self, cluster: str, content: bytes) -> tuple[PostedCapture, bool]:
        """Store a document durably; return its record, and whether it is new.

        Raises:
            ArchiveFullError: if the captures of the cluster have reached their limit.
            WireError: if it is not a capture; see `parse_header`.
            OSError: if it cannot be written.
        """
        header = parse_header(content)
        digest = hashlib.sha256(content).hexdigest()
        with self._lock:
            if (known := self._records.get(digest)) is not None:
                return known, False
            own = [one.bytes for one in self._records.values() if one.cluster == cluster]
            if len(own) >= MAX_CAPTURES or sum(own) + len(content) > MAX_BYTES:
                raise ArchiveFullError(
                    f"{cluster} has {len(own)} captures of {sum(own)} bytes: remove files from {self._folder}, and "
                    "restart the hub"
                )
            record = PostedCapture(
                id=digest,
                cluster=cluster,
                name=header.name,
                started_at=header.started_at,
                machine=header.machine,
                labels=header.labels,
                received_at=to_datetime(self._clock.now_ns()),
                bytes=len(content),
            )
            self._folder.mkdir(parents=True, exist_ok=True)
            write_durably(self._document(digest), content)
            write_durably(self._folder / f"{digest}.record", msgspec.json.encode(record))
            self._records[digest] = record
            return record, True

    def records(self, cluster: str | None) -> tuple[PostedCapture, ...]:
        """Return the records of all clusters, or of one."""
        with self._lock:
            return tuple(one for one in self._records.values() if cluster in (None, one.cluster))

    def content(self, id: str) -> bytes:  # noqa: A002 - the term of the domain
        """Return a document.

        Raises:
            NotFoundError: if there is no such capture, or its file was removed.
        """
        with self._lock:
            known = id in self._records
        try:
            if known:
                return self._document(id).read_bytes()
        except FileNotFoundError:
            pass
        raise NotFoundError(f"there is no capture {id[:64]!r}")

    def _document(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"
