"""Files of a guest, read in bulk by one command of its shell."""

import re
import secrets
from collections.abc import Iterable, Iterator

from gpufleet.channels.guest_shell.frames import parse_frames
from gpufleet.channels.guest_shell.words import Shell
from gpufleet.model.channel import ChannelProblem
from gpufleet.model.errors import ChannelError, WireError
from gpufleet.ports import Fetched, FetchPlan

TIMEOUT_SECONDS = 10.0

MAX_BYTES = 4 << 20
"""Of one answer: what a guest may take of this side's memory for a moment."""

MAX_COMMAND_BYTES = 48 << 10
"""Of the words of one question: with the script beside them they fit in one argument (128 KiB on Linux)."""

_PATTERN = re.compile(r"[*?\[]")

_GONE = ("ENOENT", "ENOTDIR", "ESRCH")


class ShellFiles:
    """The Files port over a guest's shell.

    Only regular files are read. One that hangs costs the whole fetch: it ends after `timeout_seconds`.
    """

    def __init__(self, shell: Shell, *, timeout_seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> None:
        self._shell, self._timeout, self._max_bytes = shell, timeout_seconds, max_bytes

    async def fetch(self, plan: FetchPlan) -> Fetched:
        """Read everything in the plan; see `Files.fetch`."""
        fetched = Fetched(files={}, links={}, filesystems={}, errors={})
        for words in _questions(plan):
            part = await self._ask(words, plan.max_file_bytes)
            fetched.files |= part.files
            fetched.links |= part.links
            fetched.filesystems |= part.filesystems
            fetched.errors |= part.errors
        named = {*plan.files, *plan.links, *plan.filesystems}
        # A pattern asks for what is there: a name that went away in between left nothing.
        gone = [path for path, name in fetched.errors.items() if name in _GONE and path not in named]
        for path in gone:
            del fetched.errors[path]
        # What cannot be put into words, or was passed over in silence, is not missing: it was not read.
        told = fetched.files.keys() | fetched.links.keys() | fetched.filesystems.keys() | fetched.errors.keys()
        for path in plan.filesystems + tuple(path for path in plan.files + plan.links if not _PATTERN.search(path)):
            if path not in told:
                fetched.errors[path] = "EINVAL"
        return fetched

    async def _ask(self, words: list[str], max_file_bytes: int) -> Fetched:
        nonce = secrets.token_hex(16)
        done = await self._shell.ask(
            ("files", nonce, str(max_file_bytes), *words),
            timeout_seconds=self._timeout,
            max_output_bytes=self._max_bytes,
        )
        if done.exit_code:
            said = done.stderr[:200].decode("utf-8", "replace").strip()
            words_ = f"the guest's shell cannot read files (exit code {done.exit_code}): {said}"
            problem = ChannelProblem.NOT_PERMITTED if done.exit_code == 126 else ChannelProblem.FAILED
            raise ChannelError(words_, problem)
        try:
            return parse_frames(done.stdout, nonce, max_file_bytes)
        except WireError as error:
            raise ChannelError(f"the guest's files cannot be read: {error}", ChannelProblem.PROTOCOL) from error


def _questions(plan: FetchPlan) -> Iterator[list[str]]:
    words: list[str] = []
    size = 0
    for word in _words(plan):
        if words and size + len(word) > MAX_COMMAND_BYTES:
            yield words
            words, size = [], 0
        words.append(word)
        size += 4 * len(word) + 3  # quoting may lengthen it
    if words:
        yield words


def _words(plan: FetchPlan) -> Iterable[str]:
    for kind, paths in (("f", plan.files), ("l", plan.links), ("s", plan.filesystems)):
        for path in dict.fromkeys(paths):
            if "\n" not in path and "\0" not in path:
                yield f"{kind}:{path}"
