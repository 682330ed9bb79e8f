"""`nvidia-smi --help-query-gpu`: the names that this version can be asked for."""

import re

from gpufleet.codecs.nvidia_smi.words import split_lines
from gpufleet.model.errors import WireError, WireLimitError

MAX_NAMES = 4096

_NAMED = re.compile(r'"([A-Za-z][A-Za-z0-9_.]{0,127})"')
_ENTRY = re.compile(r'"[^"]{1,128}"(?: or "[^"]{1,128}"){0,7}\s*')


def parse_help(content: bytes) -> frozenset[str]:
    """Return every name that stands at the head of an entry, aliases too.

    Raises:
        WireLimitError: if it is too long.
        WireError: if there is no name in it.
    """
    names: set[str] = set()
    for line in split_lines(content, "help"):
        if line.startswith('"') and _ENTRY.fullmatch(line):
            names.update(_NAMED.findall(line))
        if len(names) > MAX_NAMES:
            raise WireLimitError("help", f"more than {MAX_NAMES} names")
    if not names:
        raise WireError("help", "no name of a field in it")
    return frozenset(names)
