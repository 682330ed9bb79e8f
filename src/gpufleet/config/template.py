"""A configuration file to begin with: every key at its default, commented out, with the words of its record.

The configuration in force as TOML, with where each value came from.
"""

import inspect
import json
import re
import textwrap
from typing import Any, Literal, get_args, get_origin

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


WIDTH = 100

NOT_SET = "  # an example: not set by default"

_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.+)")
_EXAMPLE = re.compile(r"such as `([^`]+)`")
_CONTINUED = re.compile(r"     +(\S.*)")


def render_template(struct_type: type[msgspec.Struct], *, daemon: str, env_prefix: str) -> str:
    """Return a TOML document that sets nothing.

    A line that begins with `#` and a key, without a space between, is a key at its default: taking the `#` away
    changes nothing yet. TOML has no word for none: what is not set by default stands with the example of its words
    ("such as `...`"), and `NOT_SET` behind it.

    Args:
        struct_type: the daemon's record.
        daemon: its name in commands.
        env_prefix: what its environment variables start with.
    """
    lines = [
        f"# Configuration of the gpufleet {daemon}. Every key is here, at its default or with an example: remove the #",
        "# right before one to set it.",
        f"# An environment variable goes over a key ({env_prefix}LOG_LEVEL; two underscores enter a table), a flag",
        "# of the command over both.",
        f"# Is it right?  gpufleet config validate --for {daemon} --config FILE",
    ]
    table = ""
    for key, field in sorted(leaves(struct_type), key=lambda leaf: "." in leaf[0]):
        prefix, _, name = key.rpartition(".")
        owner = _record_at(struct_type, prefix)
        words = _comment(_help(owner).get(name, ""), _choices(field))
        if prefix != table:
            table = prefix
            lines += ["", *_comment(inspect.cleandoc(owner.__doc__ or "").partition("\n")[0]), f"[{table}]"]
        elif words:
            lines.append("")
        lines += [*words, _line(name, field, " ".join(words))]
    return "\n".join(lines) + "\n"


def _record_at(struct_type: type[msgspec.Struct], prefix: str) -> type[msgspec.Struct]:
    for part in filter(None, prefix.split(".")):
        types: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(struct_type)}
        struct_type = types[part]
    return struct_type


def _help(struct_type: type[msgspec.Struct]) -> dict[str, str]:
    """Read the Attributes of a record's docstring, and of those that it shares with others: name to words."""
    words: dict[str, str] = {}
    for record in reversed(struct_type.__mro__):
        words |= _attributes(inspect.cleandoc(record.__dict__.get("__doc__") or ""))
    return words


def _attributes(docstring: str) -> dict[str, str]:
    section = docstring.partition("\nAttributes:\n")[2]
    words: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if entry := _ENTRY.fullmatch(line):
            names = entry[1].split(", ")
            words.update(dict.fromkeys(names, entry[2]))
        elif more := _CONTINUED.fullmatch(line):
            words.update({name: f"{words[name]} {more[1]}" for name in names})
        else:
            break
    return words


def _choices(field: msgspec.structs.FieldInfo) -> str:
    return f"One of {', '.join(get_args(field.type))}." if get_origin(field.type) is Literal else ""


def _comment(*texts: str) -> list[str]:
    text = " ".join(filter(None, texts)).replace("None means", "not set means")
    return [f"# {line}" for line in textwrap.wrap(text[:1].upper() + text[1:], WIDTH)]


def _line(name: str, field: msgspec.structs.FieldInfo, words: str) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is msgspec.NODEFAULT:
        return f"# {name} = (must be given)"
    if value is not None:
        return f"#{name} = {toml_literal(value)}"
    found = _EXAMPLE.search(words.replace("\n# ", " ").replace(" # ", " "))
    return f"#{name} = {toml_literal(msgspec.convert(found[1] if found else '...', field.type, strict=False))}{NOT_SET}"
