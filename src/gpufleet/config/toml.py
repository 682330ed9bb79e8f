"""The configuration in force as TOML, with where each value came from."""

import json
from typing import Any

import msgspec

from gpufleet.config.load import Resolved, leaves


def render_toml(resolved: Resolved[Any]) -> str:
    """Return a document that, loaded again, gives the same configuration.

    A value that is not set is a comment, because TOML has no word for none.
    """
    lines: list[str] = []
    table = ""
    for key, _ in sorted(leaves(type(resolved.config)), key=lambda leaf: "." in leaf[0]):
        prefix, _, name = key.rpartition(".")
        if prefix != table:
            table = prefix
            lines += ["", f"[{table}]"]
        value: Any = resolved.config
        for part in key.split("."):
            value = getattr(value, part)
        origin = resolved.origin(key)
        lines.append(f"# {name} is not set" if value is None else f"{name} = {toml_literal(value)}  # {origin}")
    return "\n".join(lines) + "\n"


def toml_literal(value: object) -> str:
    """Return a value of a configuration, other than None, as TOML writes it."""
    return _literal(msgspec.to_builtins(value))


def _literal(plain: object) -> str:
    if isinstance(plain, dict):  # inline tables; what is not set has no word
        pairs = [f"{_literal(str(key))} = {_literal(one)}" for key, one in plain.items() if one is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(plain, list | tuple):
        return f"[{', '.join(map(_literal, plain))}]"
    # JSON's literals are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
