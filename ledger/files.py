"""Mappings from YAML, JSON and TOML files, and dataclasses from mappings, with the key named in every refusal."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ledger.errors import LedgerError

Config = Mapping[str, Any]
T = TypeVar("T")

SUFFIXES = (".json", ".yaml", ".yml", ".toml")
"""What a name must end in to be taken for a file that may not be there."""


def names_a_file(name_or_path: str) -> bool:
    """Whether a word is the path of a file rather than the name of a preset."""
    path = Path(name_or_path)
    return path.suffix.lower() in SUFFIXES or path.is_file()


def read_mapping(path: Path, what: str) -> Config:
    """The mapping a file holds, by its suffix YAML, TOML or JSON.

    Args:
        path: the file.
        what: what it should be, for the message (``model``, ``cluster``).

    Raises:
        LedgerError: it cannot be read, is not of its format, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise LedgerError(f"{path}: cannot read {what} config: {reason}", key=what) from None
    config = _parsed(path, text, what)
    if not isinstance(config, dict):
        raise LedgerError(f"{path}: a {what} config is a mapping, not a {type(config).__name__}", key=what)
    return config


def _parsed(path: Path, text: str, what: str) -> object:
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            first_line = str(error).splitlines()[0]
            raise LedgerError(f"{path}: not valid YAML: {first_line}", key=what) from None
    if suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise LedgerError(f"{path}: not valid TOML: {error}", key=what) from None
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LedgerError(f"{path}: not valid JSON: {error}", key=what) from None


def construct(kind: type[T], fields: Config, prefix: str) -> T:
    """A dataclass from the fields of a file.

    Args:
        kind: a dataclass.
        fields: by name.
        prefix: of the keys in messages, such as ``moe.``.

    Raises:
        LedgerError: an unknown, ill-typed or missing key.
    """
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key, value in fields.items():
        if key not in known:
            raise LedgerError(f"unknown key {prefix}{key}; known: {', '.join(known)}", key=f"{prefix}{key}")
        check_type(f"{prefix}{key}", value, str(known[key].type))
    missing = [key for key, field in known.items() if field.default is dataclasses.MISSING and key not in fields]
    if missing:
        raise LedgerError(f"missing key {prefix}{missing[0]}", key=f"{prefix}{missing[0]}")
    return kind(**fields)


def check_type(key: str, value: object, annotation: str) -> None:
    """Numbers where numbers belong: the rest is for the dataclass to refuse.

    Raises:
        LedgerError: the value is not of the annotated type.
    """
    if value is None and "None" in annotation:
        return
    wanted: tuple[type, ...] = {
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
        "str": (str,),
        "tuple[str, ...]": (tuple,),
    }.get(annotation.removesuffix(" | None"), (object,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted and object not in wanted):
        raise LedgerError(f"{key} must be {annotation}, not {value!r}", key=key)
