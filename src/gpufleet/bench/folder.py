"""Folder of captures: one file each, and `SHA256SUMS` with their digests for `sha256sum --check`."""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpufleet.bench.compare import LoadedCapture
from gpufleet.bench.document import MAX_BYTES, BenchmarkDocument, decode_benchmark, encode_benchmark
from gpufleet.model.errors import GpufleetError, WireError

DIGESTS = "SHA256SUMS"
MAX_FILES = 1000
"""Maximum number of captures in a folder's report."""

MAX_DIGESTS_BYTES = 1 << 20

_DIGEST = re.compile(r"([0-9a-f]{64}) [ *]([^/\x00]{1,255})", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)


class CaptureFileError(GpufleetError):
    """A file of a capture cannot be read or written; the message names it."""


def prepare_folder(folder: Path) -> None:
    """Create the folder if needed, before a capture that takes minutes.

    Raises:
        CaptureFileError: if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureFileError(f"{folder}: the folder cannot be created: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CaptureFileError(f"{folder}: no permission to write")


def write_capture(folder: Path, document: BenchmarkDocument) -> Path:
    """Write a capture and add its digest; return the path.

    The file appears complete or not at all, and replaces no other. Its digest is appended before that: a crash in
    between leaves a line without a file, never a file without a digest.

    Raises:
        CaptureFileError: if the folder cannot be written.
    """
    content = encode_benchmark(document)
    stem = _UNSAFE.sub("-", document.name).strip(".-")[:64] or "capture"
    base = f"{stem}-{document.started_at:%Y%m%dT%H%M%SZ}"
    temporary = folder / f".{base}.{os.getpid()}.new"
    try:
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            for suffix in ("", *(f"-{number}" for number in range(2, 100))):
                path = folder / f"{base}{suffix}.json"
                if path.exists():
                    continue
                _append_digest(folder, path.name, content)
                with contextlib.suppress(FileExistsError):
                    path.hardlink_to(temporary)
                    return path
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CaptureFileError(f"{folder}: the capture cannot be written: {error}") from error
    raise CaptureFileError(f"{folder}: a hundred captures have the name {base}")


def read_capture(path: Path) -> LoadedCapture:
    """Read a capture. If its folder has a digest for it, the digest must match.

    Raises:
        CaptureFileError: if it is not a readable regular file, not a capture, or was changed, or if the digests of its
            folder cannot be read.
    """
    return _load(path, _digests(path.parent))


def _load(path: Path, digests: Mapping[str, set[str]]) -> LoadedCapture:
    content = _read(path)
    if path.name in digests and hashlib.sha256(content).hexdigest() not in digests[path.name]:
        raise CaptureFileError(f"{path}: the file was changed: its digest is not that of {DIGESTS}")
    try:
        document = decode_benchmark(content)
    except WireError as error:
        raise CaptureFileError(f"{path}: {error}") from error
    # Comparisons do not need the outputs, which are most of the memory.
    return LoadedCapture(path.name, msgspec.structs.replace(document, commands=(), outputs={}))


def read_folder(folder: Path) -> tuple[list[LoadedCapture], list[str]]:
    """Read all captures of a folder, sorted by name; return them without facts, and a message for each unusable file.

    Raises:
        CaptureFileError: if the folder or its digests cannot be read, or if it has too many files.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except OSError as error:
        raise CaptureFileError(f"{folder}: the folder cannot be read: {error}") from error
    if len(paths) > MAX_FILES:
        raise CaptureFileError(f"{folder}: {len(paths)} captures, at most {MAX_FILES}: move some to another folder")
    captures: list[LoadedCapture] = []
    problems: list[str] = []
    listed = _digests(folder)
    for path in paths:
        try:
            found = _load(path, listed)
        except CaptureFileError as error:
            problems.append(str(error))
            continue
        captures.append(LoadedCapture(found.file, msgspec.structs.replace(found.document, facts=())))
        if path.name not in listed:
            problems.append(f"{path}: {DIGESTS} has no digest of it")
    return captures, problems


def _append_digest(folder: Path, name: str, content: bytes) -> None:
    """Append one line in one write, so that lines of concurrent captures do not mix.

    Raises:
        CaptureFileError: if the file is a link to another file, or not a regular file. Others can write to a folder
            such as `/tmp/captures`, and a capture often runs as root.
    """
    line = f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode()
    path = folder / DIGESTS
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
            raise CaptureFileError(f"{path}: not a regular file with a single name: remove it")
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digests(folder: Path) -> dict[str, set[str]]:
    """Return file name to digests. A crash can leave a line without a file, whose name is then used again."""
    path = folder / DIGESTS
    content = _read(path, MAX_DIGESTS_BYTES) if os.path.lexists(path) else b""
    found: dict[str, set[str]] = {}
    for line in content.decode("utf-8", errors="replace").splitlines():
        if (row := _DIGEST.fullmatch(line)) is not None:
            found.setdefault(row[2], set()).add(row[1])
    return found


def _read(path: Path, most: int = MAX_BYTES) -> bytes:
    try:
        if not path.is_file():
            raise CaptureFileError(f"{path}: not a file")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise CaptureFileError(f"{path}: {error.strerror or error}") from error
    if len(content) > most:
        raise CaptureFileError(f"{path}: more than {most} bytes")
    return content
