"""Strict configuration loader: a TOML file, overridden by environment variables, overridden by command-line options.

A key in a table is written with a dot in messages (`hub.url`), with a hyphen in options and with two underscores in
variables (`GPUFLEET_AGENT_HUB__URL`). Unknown keys, wrong types and invalid values are errors. The errors of all
sources are reported together.
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
"""Origin of a value that no source sets."""

MAX_FILE_BYTES = 16 << 20
"""Maximum size of a daemon's file."""


class InvalidValueError(ValueError):
    """Raised by a record's `__post_init__` for an invalid value or combination of values.

    Attributes:
        key: the field, relative to the record.
        reason: what is wrong and what would be right.
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"{key}: {reason}")


class ConfigProblemsError(ConfigError):
    """All problems of a configuration. `source`, `key` and `reason` are those of the first.

    Attributes:
        problems: all problems, in the order in which the sources were read.
    """

    def __init__(self, problems: tuple[ConfigError, ...]) -> None:
        self.problems = problems
        first = problems[0]
        super().__init__(first.source, first.key, first.reason)
        self.args = ("\n".join(str(problem) for problem in problems),)


class LoadedConfig(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A configuration and the origins of its values.

    Attributes:
        config: the record.
        origins: dotted key to source. A missing key has its default.
    """

    config: T
    origins: dict[str, str]

    def origin(self, key: str) -> str:
        """Return the file, variable or option that set `key`, or `default`."""
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
) -> LoadedConfig[T]:
    """Read and merge all sources.

    Args:
        struct_type: the record. A field whose type is a record is a table.
        file: TOML file, or None. The file must exist.
        env_prefix: prefix of the variables, such as `GPUFLEET_AGENT_`. An empty variable counts as not set. Lists are
            separated by commas.
        env: the environment.
        flags: dotted key to value; None means that the option was not given.
        named: dotted key to the name of the option, where it differs from the key.

    Raises:
        ConfigProblemsError: with all problems, each with source, key and reason.
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
    return LoadedConfig(config=config, origins=builder.origins)


def read_toml(file: Path, max_bytes: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        ConfigError: if the file cannot be read, is too large, or is not TOML.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ConfigError(str(file), "", f"exceeds {max_bytes} bytes")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigError(str(file), "", f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), "", f"is not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(file), "", f"is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(str(file), "", "is nested too deeply") from error


class _Builder:
    """Collects validated values by dotted key, with their origins and all problems."""

    def __init__(self, struct_type: type[msgspec.Struct]) -> None:
        self._type = struct_type
        self._leaves = dict(leaves(struct_type))
        self._tables = {key[:at] for key in self._leaves for at, character in enumerate(key) if character == "."}
        self._values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[ConfigError] = []

    def add_tree(self, source: str, tree: Mapping[str, Any], prefix: str = "") -> None:
        """Add a TOML document."""
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
        """Add every variable with the prefix."""
        for name in sorted(env):
            if not name.startswith(prefix) or not env[name]:
                continue
            key = name.removeprefix(prefix).lower().replace("__", ".")
            field = self._leaves.get(key)
            text = env[name]
            is_list = field is not None and _is_list(field.type)
            self.add(name, key, [part.strip() for part in text.split(",")] if is_list else text, strict=False)

    def add(self, source: str, key: str, value: object, *, strict: bool) -> None:
        """Add a value. With `strict` off, a text from the environment is converted to the field's type."""
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
        """Return the record of the valid values, or None if required values are missing or invalid."""
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
                    self.problems.append(ConfigError("configuration", key, "is required"))
        if not complete:
            return None
        make: Callable[..., msgspec.Struct] = struct_type
        try:
            return make(**arguments)
        except InvalidValueError as error:
            key = f"{prefix}{error.key}"
            self.problems.append(ConfigError(self.origins.get(key, DEFAULT), key, error.reason))
        return None

    def _unknown(self, key: str) -> str:
        close = difflib.get_close_matches(key, self._leaves, n=1)
        return f"unknown key; did you mean {close[0]}?" if close else "unknown key"


def leaves(struct_type: type[msgspec.Struct], prefix: str = "") -> list[tuple[str, msgspec.structs.FieldInfo]]:
    """Return (dotted key, field) of every setting, including those of tables.

    The order is that of declaration. A record's own fields come before inherited fields.
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
    """Return the allowed values of a type with a closed set of values."""
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
            return [choice for option_type in types for choice in _choices(option_type)]
        case _:
            return []


def _is_list(field_type: Any) -> bool:
    shape = msgspec.inspect.type_info(field_type)
    options = shape.types if isinstance(shape, msgspec.inspect.UnionType) else (shape,)
    return any(isinstance(option, msgspec.inspect.CollectionType) for option in options)
