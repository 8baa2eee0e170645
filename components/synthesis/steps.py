"""Further steps on a file that a solution leaves: what is asked, the command, what must hold.

Invariant: what a step's assertions expect is computed here from the lines that the file has, and not by running the
command; the gates then hold one against the other.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from components.pool.families import FAMILIES
from components.pool.lexicon import Draw
from components.pool.outline import Check, Step

Lines = tuple[str, ...]

SENTENCES = {
    "append": "Append the line {w} to {f}.",
    "copy": "Copy the file {a} to {b}.",
    "count": "Count the lines of {f} that hold {w}, and write the number into {o}.",
    "exec": "Make {f} executable.",
    "head": "Write the first {k} lines of {f} into {o}.",
    "link": "Make {b} a symbolic link to {a}.",
    "rename": "Rename {a} to {b}.",
    "replace": "Replace the first {a} in every line of {f} by {b}.",
    "rsort": "Sort the lines of {f} in reverse byte order into {o}.",
    "sort": "Sort the lines of {f} in byte order, each once, into {o}.",
    "tail": "Write the last {k} lines of {f} into {o}.",
}
"""For tasks in other dialects than ours, which speak to models that read English."""
_SORTS = frozenset({"sort", "rsort"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What a step asks of a file: the words of its family's wording, and the assertions that it adds."""

    slots: Mapping[str, str]
    checks: tuple[Check, ...]

    def step(self, family: str, *, terse: bool) -> Step:
        """The step, in our own dialect or in sentences."""
        kind = FAMILIES[family]
        command = kind.solution.format(**{name: shlex.quote(value) for name, value in self.slots.items()})
        if terse:
            return Step(family, kind.wording.format(**self.slots), command, self.checks)
        locale = "LC_ALL=C " if family in _SORTS else ""
        return Step(family, SENTENCES[family].format(**self.slots), f"{locale}{command}", self.checks)


def _made(path: str, *lines: str) -> tuple[Check, ...]:
    return (
        Check("made", ("is_file", path)),
        Check("lines", ("counts_lines", path, str(len(lines)))),
        Check("equals", ("equals", path, *lines)),
    )


def _copy(draw: Draw, f: str, lines: Lines) -> Asked:
    b = draw.name()
    return Asked({"a": f, "b": b}, _made(b, *lines))


def _link(draw: Draw, f: str, lines: Lines) -> Asked:
    b = draw.name()
    return Asked({"a": f, "b": b}, (Check("equals", ("equals", b, *lines)), Check("link", ("links_to", b, f))))


def _count(draw: Draw, f: str, lines: Lines) -> Asked | None:
    found = sorted({word for line in lines for word in line.split() if word.isalnum() and word.isascii()})
    if not found:
        return None
    w, o = draw.rng.choice(found), draw.name()
    return Asked({"f": f, "o": o, "w": w}, _made(o, str(sum(w in line for line in lines))))


def _sort(draw: Draw, f: str, lines: Lines) -> Asked | None:
    if len(lines) < 2:
        return None
    o = draw.name()
    return Asked({"f": f, "o": o}, _made(o, *sorted(set(lines), key=str.encode)))


def _rsort(draw: Draw, f: str, lines: Lines) -> Asked | None:
    if len(lines) < 2:
        return None
    o = draw.name()
    return Asked({"f": f, "o": o}, _made(o, *sorted(lines, key=str.encode, reverse=True)))


def _head(draw: Draw, f: str, lines: Lines) -> Asked | None:
    if len(lines) < 2:
        return None
    k, o = draw.rng.randint(1, len(lines) - 1), draw.name()
    return Asked({"f": f, "o": o, "k": str(k)}, _made(o, *lines[:k]))


def _tail(draw: Draw, f: str, lines: Lines) -> Asked | None:
    if len(lines) < 2:
        return None
    k, o = draw.rng.randint(1, len(lines) - 1), draw.name()
    return Asked({"f": f, "o": o, "k": str(k)}, _made(o, *lines[-k:]))


CONSUMERS: dict[str, Callable[[Draw, str, Lines], Asked | None]] = {
    "copy": _copy,
    "count": _count,
    "head": _head,
    "link": _link,
    "rsort": _rsort,
    "sort": _sort,
    "tail": _tail,
}
"""Steps that take a file as it is for their input, and leave it so. None: there is nothing in it for them to do."""


def execute(f: str) -> Asked:
    """A step that makes a file executable and leaves its content."""
    return Asked({"f": f}, (Check("runs", ("is_executable", f)),))


@dataclass(frozen=True, slots=True)
class Change:
    """What a step changes in a file: its name or its lines. `new` names and lines are those that it has then."""

    family: str
    asked: Asked
    new_name: str
    new_lines: Lines


def rename(draw: Draw, f: str, lines: Lines) -> Change:
    """The file has another name, and none has the old one."""
    b = draw.name()
    checks = (Check("made", ("is_file", b)), Check("gone", ("is_absent", f)))
    return Change("rename", Asked({"a": f, "b": b}, checks), b, lines)


def append(draw: Draw, f: str, lines: Lines) -> Change:
    """One more line, of a word that is new."""
    w = draw.word()
    return Change("append", Asked({"f": f, "w": w}, (Check("last", ("last_line", f, w)),)), f, (*lines, w))


def substitute(draw: Draw, f: str, lines: Lines) -> Change | None:
    """A word of the file is another in every line. None where no line is one plain word."""
    plain = sorted({line for line in lines if line.isalpha() and line.isascii()})
    if not plain:
        return None
    a, b = draw.rng.choice(plain), draw.word()
    after = tuple(line.replace(a, b, 1) for line in lines)
    checks = (Check("gone", ("lacks_line", f, a)), Check("there", ("has_line", f, b)))
    return Change("replace", Asked({"f": f, "a": a, "b": b}, checks), f, after)


CHANGES: tuple[Callable[[Draw, str, Lines], Change | None], ...] = (append, rename, substitute)


def aligned(steps: tuple[Step, ...], f: str, change: Change) -> tuple[Step, ...] | None:
    """The steps before a change, verified as things are after it. None where one of them forbids it."""
    found = []
    for step in steps:
        checks = [_aligned(check.call, f, change) for check in step.checks]
        if any(call is None for call in checks):
            return None
        pairs = zip(step.checks, checks, strict=True)
        found.append(replace(step, checks=tuple(Check(check.name, call) for check, call in pairs if call is not None)))
    return tuple(found)


def _aligned(call: tuple[str, ...], f: str, change: Change) -> tuple[str, ...] | None:
    name, lines = change.new_name, change.new_lines
    match call:
        case ("links_to", link, target) if f in (link, target):
            return None
        case ("is_absent", path) if path == name:
            return None
        case ("equals", path, *_) if path == f:
            return ("equals", name, *lines)
        case ("counts_lines", path, _) if path == f:
            return ("counts_lines", name, str(len(lines)))
        case ("first_line", path, _) if path == f:
            return ("first_line", name, lines[0])
        case ("last_line", path, _) if path == f:
            return ("last_line", name, lines[-1])
        case ("has_line", path, line) if path == f:
            return ("has_line", name, line) if line in lines else None
        case ("lacks_line", path, line) if path == f:
            return ("lacks_line", name, line) if line not in lines else None
        case (("is_file" | "is_executable") as function, path) if path == f:
            return (function, name)
        case (_, path, *_) if path == f and name != f and call[0] not in ("commit_holds", "commit_says"):
            return None
        case _:
            return call


def guarded(steps: tuple[Step, ...], files: Mapping[str, str]) -> tuple[Step, ...]:
    """The steps with their guards: assertions that hold of these files, before anything is done with them."""
    given = {path: tuple(text.splitlines()) for path, text in files.items()}
    return tuple(
        replace(step, guards=step.guards | {check.name for check in step.checks if _holds(check.call, given)})
        for step in steps
    )


def _holds(call: tuple[str, ...], given: Mapping[str, Lines]) -> bool:
    """Whether an assertion of this module's steps holds untouched."""
    lines = given.get(call[1]) if len(call) > 1 else None
    match call:
        case ("is_absent", path):
            return path not in given
        case (_, _, *rest) if lines is not None:
            held = {
                "is_file": True,
                "equals": lines == tuple(rest),
                "counts_lines": rest == [str(len(lines))],
                "first_line": lines[:1] == tuple(rest),
                "last_line": lines[-1:] == tuple(rest),
                "has_line": set(rest) <= set(lines),
                "lacks_line": not set(rest) & set(lines),
            }
            return held.get(call[0], False)
        case _:
            return False
