"""One strict loader for every daemon: a TOML file, environment variables over it, flags over those.

A key of a table is written with a dot in messages and flags (`hub.url`) and with two underscores in
variables (`GPUFLEET_AGENT_HUB__URL`). Nothing is guessed: an unknown key, a wrong type or an impossible
value is an error, and every error of every source is told at once.
"""

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from gpufleet.model.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

DEFAULT = "default"
"""Origin of a value that no source gave."""

MAX_FILE_BYTES = 16 << 20
"""Of a daemon's file."""


class ImpossibleValueError(ValueError):
    """Raised by a record's `__post_init__`: a value, or values together, that cannot be meant.

    Attributes:
        key: the field to blame, within the record.
        reason: what is wrong and what would be right.
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"{key}: {reason}")


class ConfigProblemsError(ConfigError):
    """More than one problem, or one; `source`, `key` and `reason` are the first's.

    Attributes:
        problems: every one, in the order in which the sources were read.
    """

    def __init__(self, problems: tuple[ConfigError, ...]) -> None:
        self.problems = problems
        first = problems[0]
        super().__init__(first.source, first.key, first.reason)
        self.args = ("\n".join(str(problem) for problem in problems),)


class Resolved(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A configuration with where each of its values came from.

    Attributes:
        config: the record.
        origins: dotted key to source; a key that is not here has its default.
    """

    config: T
    origins: dict[str, str]

    def origin(self, key: str) -> str:
        """Return the file, variable or flag that gave `key`, or `default`."""
        return self.origins.get(key, DEFAULT)


def load(
    struct_type: type[T],
    *,
    file: Path | None,
    env_prefix: str,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    named: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Return the configuration in force; see `resolve`."""
    return resolve(struct_type, file=file, env_prefix=env_prefix, env=env, flags=flags, named=named).config


def resolve(
    struct_type: type[T],
    *,
    file: Path | None,
    env_prefix: str,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    named: Mapping[str, str] = MappingProxyType({}),
) -> Resolved[T]:
    """Read all sources and put them together.

    Args:
        struct_type: the record; a field whose type is a record is a table.
        file: TOML file, or None for none. A file that is named must exist.
        env_prefix: what the variables start with, such as `GPUFLEET_AGENT_`. An empty variable counts as
            not set. Lists are separated by commas.
        env: the environment.
        flags: dotted key to value; None means that the flag was not given.
        named: dotted key to the flag, where it is not called as the key is.

    Raises:
        ConfigError: for everything that is wrong (`ConfigProblemsError`), each with its source, key and reason.
    """
    builder = _Builder(struct_type)
    if file is not None:
        builder.add_tree(str(file), read_toml(file))
    builder.add_environment(env_prefix, env)
    for key, value in flags.items():
        if value is not None:
            flag = named.get(key) or f"--{key.replace('.', '-').replace('_', '-')}"
            builder.add(flag, key, value, strict=True)
    config = builder.build()
    if builder.problems:
        raise ConfigProblemsError(tuple(builder.problems))
    assert isinstance(config, struct_type)
    return Resolved(config=config, origins=builder.origins)


def read_toml(file: Path, most_bytes: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """Return what a TOML file says.

    Raises:
        ConfigError: if it cannot be read, is longer than that, or is not TOML.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise ConfigError(str(file), "", f"is longer than {most_bytes} bytes")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigError(str(file), "", f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), "", f"is not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(file), "", f"is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(str(file), "", "is not a configuration: it is nested too deeply") from error


class _Builder:
    """Collects checked values by dotted key, with their origins and every problem on the way."""

    def __init__(self, struct_type: type[msgspec.Struct]) -> None:
        self._type = struct_type
        self._leaves = dict(leaves(struct_type))
        self._tables = {key[:at] for key in self._leaves for at, character in enumerate(key) if character == "."}
        self._values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[ConfigError] = []

    def add_tree(self, source: str, tree: Mapping[str, Any], prefix: str = "") -> None:
        """Take a TOML document."""
        for name, value in tree.items():
            key = f"{prefix}{name}"
            if key in self._tables:
                if isinstance(value, dict):
                    self.add_tree(source, value, f"{key}.")
                else:
                    self.problems.append(ConfigError(source, key, f"is a table: write [{key}]"))
            else:
                self.add(source, key, value, strict=True)

    def add_environment(self, prefix: str, env: Mapping[str, str]) -> None:
        """Take every variable that starts with the prefix."""
        for name in sorted(env):
            if not name.startswith(prefix) or not env[name]:
                continue
            key = name.removeprefix(prefix).lower().replace("__", ".")
            field = self._leaves.get(key)
            text = env[name]
            listed = field is not None and _is_list(field.type)
            self.add(name, key, [part.strip() for part in text.split(",")] if listed else text, strict=False)

    def add(self, source: str, key: str, value: object, *, strict: bool) -> None:
        """Take one value; a text from the environment is read as the field's type."""
        field = self._leaves.get(key)
        if field is None:
            self.problems.append(ConfigError(source, key, self._unknown(key)))
            return
        try:
            self._values[key] = msgspec.convert(value, field.type, strict=strict)
            msgspec.json.encode(value)
        except UnicodeEncodeError:
            self.problems.append(ConfigError(source, key, f"is not UTF-8; got {value!r}"))
        except msgspec.ValidationError as error:
            reason = str(error).removesuffix(" - at `$`")
            choices = _choices(msgspec.inspect.type_info(field.type)) if reason.startswith("Invalid enum value") else []
            reason += f": use {', '.join(choices)}" if choices else ""
            self.problems.append(ConfigError(source, key, f"{reason}; got {value!r}"))
        self.origins[key] = source

    def build(self) -> msgspec.Struct | None:
        """Make the record from what is right so far; None when that is not enough for one."""
        return self._build(self._type, "")

    def _build(self, struct_type: type[msgspec.Struct], prefix: str) -> msgspec.Struct | None:
        arguments: dict[str, Any] = {}
        complete = True
        for field in msgspec.structs.fields(struct_type):
            key = f"{prefix}{field.name}"
            if _is_table(field.type):
                table = self._build(field.type, f"{key}.")
                complete = complete and table is not None
                arguments[field.name] = table
            elif key in self._values:
                arguments[field.name] = self._values[key]
            elif field.required:
                complete = False
                if key not in self.origins:
                    self.problems.append(ConfigError("configuration", key, "must be given"))
        if not complete:
            return None
        make: Callable[..., msgspec.Struct] = struct_type
        try:
            return make(**arguments)
        except ImpossibleValueError as error:
            key = f"{prefix}{error.key}"
            self.problems.append(ConfigError(self.origins.get(key, DEFAULT), key, error.reason))
        return None

    def _unknown(self, key: str) -> str:
        close = difflib.get_close_matches(key, self._leaves, n=1)
        return f"unknown key; did you mean {close[0]}?" if close else "unknown key"


def leaves(struct_type: type[msgspec.Struct], prefix: str = "") -> list[tuple[str, msgspec.structs.FieldInfo]]:
    """Return (dotted key, field) of everything that can be set, tables entered.

    They are in order of declaration, a record's own before those that it shares with others.
    """
    found: list[tuple[str, msgspec.structs.FieldInfo]] = []
    own = struct_type.__annotations__
    for field in sorted(msgspec.structs.fields(struct_type), key=lambda field: field.name not in own):
        key = f"{prefix}{field.name}"
        found += leaves(field.type, f"{key}.") if _is_table(field.type) else [(key, field)]
    return found


def _is_table(field_type: Any) -> bool:
    return isinstance(field_type, type) and issubclass(field_type, msgspec.Struct)


def _choices(shape: msgspec.inspect.Type) -> list[str]:
    """Return the words that may stand there, of a type that has only some."""
    match shape:
        case msgspec.inspect.LiteralType(values=values):
            return [str(value) for value in values]
        case msgspec.inspect.EnumType(cls=cls):
            return [str(member.value) for member in cls]
        case msgspec.inspect.Metadata(type=inner):
            return _choices(inner)
        case msgspec.inspect.VarTupleType(item_type=inner) | msgspec.inspect.ListType(item_type=inner):
            return _choices(inner)
        case msgspec.inspect.UnionType(types=types):
            return [word for one in types for word in _choices(one)]
        case _:
            return []


def _is_list(field_type: Any) -> bool:
    shape = msgspec.inspect.type_info(field_type)
    options = shape.types if isinstance(shape, msgspec.inspect.UnionType) else (shape,)
    return any(isinstance(option, msgspec.inspect.CollectionType) for option in options)
