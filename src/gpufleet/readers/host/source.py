"""What was fetched, as values or absences with their reasons."""

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.ports.channel import Fetched
from gpufleet.readers.host.parse.text import shown

T = TypeVar("T")

MAX_ERRORS = 20
"""Words of failures that one pass carries; the rest is counted."""

_NOT_THERE = ("ENOENT", "ENOTDIR", "EOPNOTSUPP")
_NOT_ALLOWED = ("EACCES", "EPERM")
_NO_ANSWER = ("EINVAL", "ENODEV", "ENXIO", "ENETDOWN")


class Source:
    """The fetched files, and the words of what failed on the way.

    What a kernel lacks or shows to root only is an absence and no failure; a malformed, hanging or broken
    file is both.
    """

    def __init__(self, fetched: Fetched) -> None:
        self.fetched = fetched
        self._errors: dict[str, None] = {}
        for path, name in fetched.errors.items():
            if "*" in path:  # a folder that could not be listed: nobody will ask for what is in it
                self.fail(f"{path.partition('*')[0]}: {name}")

    @property
    def errors(self) -> tuple[str, ...]:
        """Words of the failures, each once, in the order in which they were met; at most `MAX_ERRORS`."""
        words = list(self._errors)
        if len(words) > MAX_ERRORS:
            words[MAX_ERRORS - 1 :] = [f"and {len(words) - MAX_ERRORS + 1} more"]
        return tuple(words)

    def fail(self, words: str) -> None:
        """Note a failure."""
        self._errors.setdefault(shown(words))

    def take(self, path: str, parse: Callable[[bytes, str], T], *, required: bool = False) -> T | Absent:
        """Parse a file, or say why there is nothing.

        Args:
            path: of the file.
            parse: takes its content and path; raises WireError.
            required: that the file is missing is a failure too.
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
            return Absent(Reason.INVALID_VALUE, shown(path))

    def absence(self, path: str) -> Absent:
        """Say why a path has no content."""
        name = self.fetched.errors.get(path, "ENOENT")
        where = shown(path)  # a name in it can be anybody's
        if name in _NOT_THERE:
            return Absent(Reason.NOT_SUPPORTED, f"there is no {where}")
        if name in _NOT_ALLOWED:
            return Absent(Reason.NOT_PERMITTED, f"{where} may not be read by this user")
        if name in _NO_ANSWER:
            return Absent(Reason.NO_DATA, f"{where} has nothing to say")
        self.fail(f"{path}: {name}")
        if name == "ETIMEDOUT":
            return Absent(Reason.TIMEOUT, where)
        if name == "EFBIG":
            return Absent(Reason.INVALID_VALUE, f"{where} is longer than such a file can be")
        return Absent(Reason.DRIVER_ERROR, f"{where}: {name}")

    def names_under(self, folder: str, suffix: str) -> list[str]:
        """Return the X of every `folder/X/suffix` that was fetched or failed, sorted."""
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
