"""TOML templates of a daemon's configuration, and the configuration in force as TOML with the origin of each value."""

import inspect
import json
import re
import textwrap
from typing import Any, Literal, get_args, get_origin

import msgspec

from gpufleet.config.load import LoadedConfig, leaves


def render_toml(resolved: LoadedConfig[Any]) -> str:
    """Return a document that gives the same configuration when loaded.

    A value that is not set is a comment, because TOML has no null.
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
    """Return a configuration value other than None as TOML."""
    return _literal(msgspec.to_builtins(value))


def _literal(plain: object) -> str:
    if isinstance(plain, dict):  # an inline table without the keys that are not set
        pairs = [f"{_literal(str(key))} = {_literal(item)}" for key, item in plain.items() if item is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(plain, list | tuple):
        return f"[{', '.join(map(_literal, plain))}]"
    # JSON literals are valid TOML, except that TOML requires DEL to be escaped.
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")


WIDTH = 100

NOT_SET = "  # an example: not set by default"

_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.+)")
_EXAMPLE = re.compile(r"such as `([^`]+)`")
_CONTINUED = re.compile(r"     +(\S.*)")


def render_template(struct_type: type[msgspec.Struct], *, daemon: str, env_prefix: str) -> str:
    """Return a TOML document with every key commented out.

    A line that begins with `#` and a key, without a space between, shows the key's default. Removing the `#` changes
    nothing. A key without a default shows the example of its description ("such as `...`"), followed by `NOT_SET`.

    Args:
        struct_type: the daemon's record.
        daemon: its name in commands.
        env_prefix: prefix of its environment variables.
    """
    lines = [
        f"# Configuration of the gpufleet {daemon}: every key with its default or an example.",
        "# To set a key, remove the # directly before it.",
        f"# Environment variables override keys ({env_prefix}LOG_LEVEL; two underscores join a table and its key).",
        "# Command-line options override both.",
        f"# To check the file: gpufleet config validate --for {daemon} --config FILE",
    ]
    table = ""
    for key, field in sorted(leaves(struct_type), key=lambda leaf: "." in leaf[0]):
        prefix, _, name = key.rpartition(".")
        owner = _record_at(struct_type, prefix)
        comment = _comment(_help(owner).get(name, ""), _choices(field))
        if prefix != table:
            table = prefix
            lines += ["", *_comment(inspect.cleandoc(owner.__doc__ or "").partition("\n")[0]), f"[{table}]"]
        elif comment:
            lines.append("")
        lines += [*comment, _line(name, field, " ".join(comment))]
    return "\n".join(lines) + "\n"


def _record_at(struct_type: type[msgspec.Struct], prefix: str) -> type[msgspec.Struct]:
    for part in filter(None, prefix.split(".")):
        types: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(struct_type)}
        struct_type = types[part]
    return struct_type


def _help(struct_type: type[msgspec.Struct]) -> dict[str, str]:
    """Return the descriptions in the Attributes section of a record and of its base records, by name."""
    descriptions: dict[str, str] = {}
    for record in reversed(struct_type.__mro__):
        descriptions |= _attributes(inspect.cleandoc(record.__dict__.get("__doc__") or ""))
    return descriptions


def _attributes(docstring: str) -> dict[str, str]:
    section = docstring.partition("\nAttributes:\n")[2]
    descriptions: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if entry := _ENTRY.fullmatch(line):
            names = entry[1].split(", ")
            descriptions.update(dict.fromkeys(names, entry[2]))
        elif more := _CONTINUED.fullmatch(line):
            descriptions.update({name: f"{descriptions[name]} {more[1]}" for name in names})
        else:
            break
    return descriptions


def _choices(field: msgspec.structs.FieldInfo) -> str:
    return f"One of {', '.join(get_args(field.type))}." if get_origin(field.type) is Literal else ""


def _comment(*texts: str) -> list[str]:
    text = " ".join(filter(None, texts)).replace("None means", "not set means")
    return [f"# {line}" for line in textwrap.wrap(text[:1].upper() + text[1:], WIDTH)]


def _line(name: str, field: msgspec.structs.FieldInfo, text: str) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is msgspec.NODEFAULT:
        return f"# {name} = (required)"
    if value is not None:
        return f"#{name} = {toml_literal(value)}"
    found = _EXAMPLE.search(text.replace("\n# ", " ").replace(" # ", " "))
    return f"#{name} = {toml_literal(msgspec.convert(found[1] if found else '...', field.type, strict=False))}{NOT_SET}"
