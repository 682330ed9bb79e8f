"""FetchResult files, as parsed values or absences with reasons."""

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.ports.channel import FetchResult
from gpufleet.readers.host.parse.text import printable

T = TypeVar("T")

MAX_ERRORS = 20
"""Maximum number of error messages of a pass; further messages are counted."""

_NOT_FOUND_ERRORS = ("ENOENT", "ENOTDIR", "EOPNOTSUPP")
_PERMISSION_ERRORS = ("EACCES", "EPERM")
_NO_DATA_ERRORS = ("EINVAL", "ENODEV", "ENXIO", "ENETDOWN")


class FetchedFiles:
    """Fetched files and the error messages of a pass.

    A file that the kernel lacks or shows to root only is absent, without an error. A malformed, hanging or broken file
    is absent and an error.
    """

    def __init__(self, fetched: FetchResult) -> None:
        self.fetched = fetched
        self._errors: dict[str, None] = {}
        for path, name in fetched.errors.items():
            if "*" in path:  # a directory that could not be listed: its files are never requested
                self.fail(f"{path.partition('*')[0]}: {name}")

    @property
    def errors(self) -> tuple[str, ...]:
        """Error messages in order of occurrence, without duplicates; at most `MAX_ERRORS`."""
        messages = list(self._errors)
        if len(messages) > MAX_ERRORS:
            messages[MAX_ERRORS - 1 :] = [f"and {len(messages) - MAX_ERRORS + 1} more"]
        return tuple(messages)

    def fail(self, message: str) -> None:
        """Add an error message."""
        self._errors.setdefault(printable(message))

    def take(self, path: str, parse: Callable[[bytes, str], T], *, required: bool = False) -> T | Absent:
        """Parse a file, or return its absence.

        Args:
            path: of the file.
            parse: parser of content and path; raises WireError.
            required: a missing file is an error too.
        """
        content = self.fetched.files.get(path)
        if content is None:
            absent = self.absence(path)
            if required:
                self.fail(f"{path}: {self.fetched.errors.get(path, 'ENOENT')}")
            return absent
        try:
            return parse(content, path)
        except WireError as error:
            self.fail(str(error))
            return Absent(Reason.INVALID_VALUE, printable(path))

    def absence(self, path: str) -> Absent:
        """Return the reason why a path has no content."""
        name = self.fetched.errors.get(path, "ENOENT")
        where = printable(path)  # a path can contain names chosen by others
        if name in _NOT_FOUND_ERRORS:
            return Absent(Reason.NOT_SUPPORTED, f"{where} does not exist")
        if name in _PERMISSION_ERRORS:
            return Absent(Reason.NOT_PERMITTED, f"{where} is not readable by this user")
        if name in _NO_DATA_ERRORS:
            return Absent(Reason.NO_DATA, f"{where} has no data")
        self.fail(f"{path}: {name}")
        if name == "ETIMEDOUT":
            return Absent(Reason.TIMEOUT, where)
        if name == "EFBIG":
            return Absent(Reason.INVALID_VALUE, f"{where} exceeds the maximum length")
        return Absent(Reason.DRIVER_ERROR, f"{where}: {name}")

    def names_under(self, folder: str, suffix: str) -> list[str]:
        """Return the sorted names X of all paths `folder/X/suffix` that were fetched or failed."""
        before, after = folder + "/", "/" + suffix
        found = set()
        for path in self._by_last_name.get(suffix.rpartition("/")[2], ()):
            if path.startswith(before) and path.endswith(after):
                name = path[len(before) : -len(after)]
                if name and "/" not in name and "*" not in name:
                    found.add(name)
        return sorted(found)

    @cached_property
    def _by_last_name(self) -> dict[str, list[str]]:
        index: dict[str, list[str]] = {}
        for paths in (self.fetched.files, self.fetched.errors):
            for path in paths:
                index.setdefault(path.rpartition("/")[2], []).append(path)
        return index
