"""The values of a sandbox host's calls as bytes, and back, as data alone.

Invariant: what is read is made of plain values and of the records and errors that are listed here, whoever wrote it:
nothing that was not asked for is called, and whatever is no such message is a ValueError.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from components.errors import BoxSpent, ConfigError, FaultCause, InfraFault
from components.sandbox.contract import ExecResult, Left, Remains, SandboxSpec
from components.sandbox.image import CopyStep, FileEntry, ImageSpec, RunStep

RECORDS: dict[str, type] = {
    record.__name__: record
    for record in (ExecResult, Left, Remains, SandboxSpec, CopyStep, FileEntry, ImageSpec, RunStep)
}
FAULTS: tuple[type[InfraFault], ...] = (BoxSpent, InfraFault)
PLAIN: tuple[type[Exception], ...] = (ValueError, LookupError)
"""Errors that travel by their text. One of a type below them comes as the first that it is."""


def encode(value: Any, records: Mapping[str, type] = RECORDS) -> bytes:
    """A value.

    Raises:
        TypeError: it, or a part of it, is nothing that travels.
    """
    return json.dumps(_packed(value, records)).encode()


def decode(data: bytes, records: Mapping[str, type] = RECORDS) -> Any:
    """What was encoded.

    Raises:
        ValueError: nothing was.
    """
    try:
        return _unpacked(json.loads(data), records)
    except (TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"no message: {error!r}") from error


def _packed(value: Any, records: Mapping[str, type]) -> Any:
    """Plain values as they are, anything else as a list of its kind and what it is made of."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, FaultCause)):
        return value
    match value:
        case bytes() | bytearray():
            return ["bytes", base64.b64encode(value).decode()]
        case Path():
            return ["path", str(value)]
        case list() | tuple():
            return [type(value).__name__, *(_packed(each, records) for each in value)]
        case Mapping():
            return ["dict", *([_packed(key, records), _packed(each, records)] for key, each in value.items())]
        case Exception():
            return _packed_error(value)
    if is_dataclass(value) and records.get(name := type(value).__name__) is type(value):
        return [name, {field.name: _packed(getattr(value, field.name), records) for field in fields(value)}]
    raise TypeError(f"{type(value).__name__} does not travel")


def _packed_error(error: Exception) -> Any:
    for fault in FAULTS:
        if isinstance(error, fault):
            return ["fault", fault.__name__, error.cause.value, error.detail]
    if isinstance(error, ConfigError):
        return ["refusal", list(error.problems), error.source]
    if isinstance(error, OSError) and error.errno is not None:
        return ["os", error.errno, error.strerror or str(error)]
    for plain in PLAIN:
        if isinstance(error, plain):
            return ["error", plain.__name__, str(error)]
    raise TypeError(f"{error!r} does not travel")


def _unpacked(value: Any, records: Mapping[str, type]) -> Any:
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise ValueError("no message: an object without a kind")
        return value
    kind, *parts = value
    match kind:
        case "bytes":
            return base64.b64decode(parts[0], validate=True)
        case "path":
            return Path(parts[0])
        case "list":
            return [_unpacked(each, records) for each in parts]
        case "tuple":
            return tuple(_unpacked(each, records) for each in parts)
        case "dict":
            return {_unpacked(key, records): _unpacked(each, records) for key, each in parts}
        case "fault":
            name, cause, detail = parts
            return {fault.__name__: fault for fault in FAULTS}[name](FaultCause(cause), str(detail))
        case "refusal":
            return ConfigError([str(problem) for problem in parts[0]], str(parts[1]))
        case "os":
            return OSError(int(parts[0]), str(parts[1]))
        case "error":
            return {plain.__name__: plain for plain in PLAIN}[parts[0]](str(parts[1]))
    return records[kind](**{str(name): _unpacked(each, records) for name, each in parts[0].items()})
