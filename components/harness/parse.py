"""Reading a policy's answer: the first balanced JSON object, its errors and its warnings (Terminus-2's contract).

Invariant: an answer with an error executes nothing. A warning is told to the policy and changes nothing. Never raises,
whatever the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_DURATION_S = 1.0
FIELDS = ("analysis", "plan", "commands", "task_complete")
TRUE_WORDS = frozenset({"true", "1", "yes"})
STRING_OR_BRACE = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}]|"', re.DOTALL)
"""A whole string, a brace, or a quote that opens a string without an end."""


@dataclass(frozen=True, slots=True)
class Command:
    """Keystrokes, sent as they are, and how long their effect is waited for."""

    keystrokes: str
    duration_s: float = DEFAULT_DURATION_S


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What an answer asked for. `error` set means that nothing may be executed."""

    analysis: str = ""
    plan: str = ""
    commands: tuple[Command, ...] = ()
    task_complete: bool = False
    warnings: tuple[str, ...] = ()
    error: str | None = None


def parse_response(text: str) -> ParsedTurn:
    """Reads one answer, tolerantly: text around the object and a missing last brace are warnings."""
    warnings: list[str] = []
    candidate = _first_object(text, warnings)
    if candidate is None:
        return ParsedTurn(error="no JSON object in the answer", warnings=tuple(warnings))
    try:
        return _read_fields(json.loads(candidate), warnings)
    except (ValueError, RecursionError) as error:  # what is just not too deep to be read may be too deep to be written
        return ParsedTurn(error=f"invalid JSON: {_reason(error)}", warnings=tuple(warnings))


def _first_object(text: str, warnings: list[str]) -> str | None:
    """The first balanced `{...}`; a brace that is missing at the very end is supplied with a warning."""
    start = text.find("{")
    if start < 0:
        return None
    end, open_braces = _balanced_end(text, start)
    if text[:start].strip():
        warnings.append("text before the JSON object")
    if end is None:
        if open_braces == 1:
            warnings.append("the closing brace was missing and has been added")
            return text[start:].rstrip() + "}"
        return text[start:]
    if text[end:].strip():
        warnings.append("text after the JSON object")
    return text[start:end]


def _balanced_end(text: str, start: int) -> tuple[int | None, int]:
    """End of the object that opens at `start`, or None and the number of braces left open (0: within a string)."""
    depth = 0
    for piece in STRING_OR_BRACE.finditer(text, start):
        match piece[0]:
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return piece.end(), 0
            case '"':
                return None, 0
    return None, depth


def _read_fields(fields: Mapping[str, Any], warnings: list[str]) -> ParsedTurn:
    missing = [name for name in FIELDS[:3] if name not in fields]
    errors = [f"missing field: {', '.join(missing)}"] if missing else []
    present = [name for name in fields if name in FIELDS[:3]]
    if present != [name for name in FIELDS if name in present]:
        warnings.append("fields should come in the order analysis, plan, commands")
    if unknown := sorted(name for name in fields if name not in FIELDS):
        warnings.append(f"unknown field: {', '.join(unknown)}")
    analysis, plan = (_read_text(fields, name, warnings) for name in FIELDS[:2])
    complete = _read_complete(fields, warnings)
    commands: tuple[Command, ...] = ()
    if "commands" in fields:
        commands, problems = _read_commands(fields["commands"], warnings)
        (warnings if complete else errors).extend(problems)
        if problems:
            commands = ()
    if errors:
        return ParsedTurn(analysis, plan, (), False, tuple(warnings), "; ".join(errors))
    return ParsedTurn(analysis, plan, commands, complete, tuple(warnings))


def _read_text(fields: Mapping[str, Any], name: str, warnings: list[str]) -> str:
    value = fields.get(name, "")
    if isinstance(value, str):
        return value
    warnings.append(f"{name} should be a string")
    return json.dumps(value)


def _read_complete(fields: Mapping[str, Any], warnings: list[str]) -> bool:
    value = fields.get("task_complete", False)
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.strip().lower() in TRUE_WORDS
    warnings.append("task_complete should be true or false")
    return False


def _read_commands(value: Any, warnings: list[str]) -> tuple[tuple[Command, ...], list[str]]:
    if not isinstance(value, list):
        return (), ["commands must be an array"]
    commands: list[Command] = []
    problems: list[str] = []
    for number, item in enumerate(value, start=1):
        if not isinstance(item, dict):
            problems.append(f"command {number} must be an object")
        elif not isinstance(item.get("keystrokes"), str):
            problems.append(f"command {number} needs keystrokes, a string")
        else:
            commands.append(_read_command(number, item, warnings))
    for number, command in enumerate(commands[:-1], start=1):
        if not command.keystrokes.endswith("\n"):
            warnings.append(f"command {number} has no newline before the next command")
    return tuple(commands), problems


def _read_command(number: int, item: Mapping[str, Any], warnings: list[str]) -> Command:
    if unknown := sorted(name for name in item if name not in ("keystrokes", "duration")):
        warnings.append(f"command {number} has an unknown field: {', '.join(unknown)}")
    keystrokes = item["keystrokes"].encode("utf-8", "replace").decode("utf-8")
    if "duration" not in item:
        warnings.append(f"command {number} has no duration, {DEFAULT_DURATION_S} s taken")
        return Command(keystrokes)
    duration = item["duration"]
    is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
    if not is_number or not _is_time(duration):
        warnings.append(f"command {number} has an invalid duration, {DEFAULT_DURATION_S} s taken")
        return Command(keystrokes)
    return Command(keystrokes, float(duration))


def _is_time(value: float) -> bool:
    try:
        return math.isfinite(value) and value >= 0
    except OverflowError:
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
