"""A Harbor task's environment/Dockerfile, read in a subset: FROM, ARG, ENV, WORKDIR, USER, COPY, RUN.

What FROM names a backend finds, or says that it has not. Anything outside the subset is refused with its line rather
than skipped, because a task that starts in another state than its author meant teaches the wrong thing.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from components.errors import TaskError

VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?:(:[-+])([^}]*))?\})")
"""`\\$`, `$NAME`, `${NAME}`, `${NAME:-otherwise}`, `${NAME:+instead}`."""
ESCAPE = re.compile(r"(?:\s*#.*\n)*\s*#\s*escape\s*=", re.IGNORECASE)
"""A comment at the beginning by which an engine takes another sign for the backslash."""
HEREDOC = re.compile(r"(?:^|\s)\d*<<-?['\"]?[A-Za-z_]")
"""An engine reads the lines after such a word as a text. `<<<` is the shell's own, and `1 << n` is arithmetic."""
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What `$PATH` is before a Dockerfile changes it, and what a box has without one."""
LARGEST_COPY = 64 << 20
"""Bytes a COPY may bring: they are written into the box's own disk at every start."""


@dataclass(frozen=True)
class FileEntry:
    """Content of one path: a file's bytes, a symlink's target, or an empty folder."""

    content: bytes = b""
    mode: int = 0o644
    kind: Literal["file", "directory", "symlink"] = "file"
    name: str = ""
    """What it is called within a folder that already stands at its path; without a name it does not go into folders."""


@dataclass(frozen=True)
class CopyStep:
    """Files to write, by absolute path."""

    files: Mapping[str, FileEntry]


@dataclass(frozen=True)
class RunStep:
    """A shell command of the image."""

    command: str
    workdir: str
    env: Mapping[str, str]
    line: int
    user: str = ""
    """Name or number, with `:group` or without; nothing is root."""


@dataclass(frozen=True)
class ImageSpec:
    """What a Dockerfile asks for."""

    base: str
    workdir: str = "/app"
    env: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[CopyStep | RunStep, ...] = ()
    user: str = ""
    """Who the programs of its boxes are (those of views are root's)."""
    line: int = 1
    """Where the Dockerfile names the base."""
    context: Path | None = None
    """The folder with the Dockerfile, for an engine, which builds from that and not from the steps."""


def steps_digest(steps: Iterable[CopyStep | RunStep], start: str) -> str:
    """Names what `steps` make of `start`."""
    state = hashlib.sha256(start.encode())
    for step in steps:
        if isinstance(step, RunStep):
            state.update(repr((step.command, step.workdir, sorted(step.env.items()), step.user)).encode())
            continue
        for path, entry in sorted(step.files.items()):
            named = repr((path, entry.kind, entry.mode, entry.name, len(entry.content)))
            state.update(named.encode() + entry.content)
    return state.hexdigest()


@dataclass(frozen=True)
class Instruction:
    """One logical line."""

    line: int
    name: str
    rest: str


def normal_path(path: str) -> str:
    """An absolute path without `.`, `..` or doubled slashes."""
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def plain_user(user: str) -> str:
    """Nothing for root, which needs no looking up."""
    return "" if user in ("root", "0", "root:root", "0:0") else user


def read_tree(source: Path, target: str) -> dict[str, FileEntry]:
    """A folder's contents as entries below `target`; links are kept as links, never followed."""
    entries: dict[str, FileEntry] = {}
    for folder, names, files in os.walk(source, followlinks=False):
        inner = Path(folder).relative_to(source)
        for name in [*names, *files]:
            path = Path(folder, name)
            entry = read_entry(path)
            if entry is not None:
                entries[normal_path(f"{target}/{inner}/{name}")] = entry
    return entries


def read_entry(path: Path) -> FileEntry | None:
    """One host path as an entry; None for what is neither file, folder nor link (a socket, a device)."""
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        return FileEntry(os.fsencode(os.readlink(path)), 0o777, "symlink")
    if stat.S_ISDIR(info.st_mode):
        return FileEntry(b"", 0o755, "directory")
    if stat.S_ISREG(info.st_mode):
        return FileEntry(path.read_bytes(), 0o755 if info.st_mode & 0o100 else 0o644)
    return None


def instructions(text: str) -> Iterator[Instruction]:
    """Logical lines: comments dropped, continuations joined.

    An engine reads the same: a line ends with a newline only, and goes on after a backslash with spaces or tabs.
    """
    parts: list[str] = []
    first = 0
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.removesuffix("\r").rstrip(" \t").lstrip()
        if stripped.startswith("#") or (not stripped and not parts):
            continue
        if not parts:
            first = number
        if stripped.endswith("\\"):
            parts.append(stripped[:-1])
            continue
        parts.append(stripped)
        name, _, rest = " ".join(parts).strip().partition(" ")
        parts = []
        yield Instruction(first, name.upper(), rest.strip())
    if parts:
        name, _, rest = " ".join(parts).strip().partition(" ")
        yield Instruction(first, name.upper(), rest.strip())


def _listed(text: str) -> list[str] | None:
    """Words written as JSON; None for text that is not (`[ -f x ]` is a command)."""
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


class _Reader:
    """Applies instructions in order; problems are collected, not raised one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.base = ""
        self.line = 1
        self.workdir = "/"
        self.user = ""
        self.env: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        self._global_arguments: dict[str, str] = {}
        self.steps: list[CopyStep | RunStep] = []
        self.problems: list[str] = []
        self._copied = 0

    def apply(self, instruction: Instruction) -> None:
        """The boundary at which a bad instruction becomes a problem of the task."""
        readers = {
            "FROM": self._from,
            "ARG": self._arg,
            "ENV": self._env,
            "WORKDIR": self._workdir,
            "USER": self._user,
            "COPY": self._copy,
            "RUN": self._run,
        }
        where = f"Dockerfile line {instruction.line}: {instruction.name}"
        reader = readers.get(instruction.name)
        if reader is None:
            self.problems.append(f"{where} is not supported ({', '.join(readers)} are)")
            return
        if not self.base and instruction.name not in ("FROM", "ARG"):
            self.problems.append(f"{where} comes before FROM")
            return
        try:
            reader(instruction)
        except ValueError as error:
            self.problems.append(f"{where}: {error}")

    def _from(self, instruction: Instruction) -> None:
        if self.base:
            raise ValueError("only one stage is supported")
        words = self._expand(instruction.rest).split()
        if not words:
            raise ValueError("names no image")
        if len(words) != 1 and not (len(words) == 3 and words[1].upper() == "AS"):
            raise ValueError("takes an image, and a name of the stage; flags are not supported")
        self.base, self.line = words[0], instruction.line
        self._global_arguments, self._arguments = self._arguments, {}

    def _arg(self, instruction: Instruction) -> None:
        for word in shlex.split(instruction.rest):
            name, _, default = word.partition("=")
            if not re.fullmatch(NAME, name):
                raise ValueError(f"{word!r} is not NAME or NAME=default")
            self._arguments[name] = self._expand(default) if "=" in word else self._global_arguments.get(name, "")

    def _user(self, instruction: Instruction) -> None:
        user = self._expand(instruction.rest)
        if not re.fullmatch(r"[\w.-]+(:[\w.-]+)?", user):
            raise ValueError(f"{user!r} is not a user, or user:group")
        self.user = plain_user(user)

    def _workdir(self, instruction: Instruction) -> None:
        if not instruction.rest:
            raise ValueError("names no folder")
        self.workdir = normal_path(posixpath.join(self.workdir, self._expand(instruction.rest.strip("\"'"))))
        self.steps.append(CopyStep({self.workdir: FileEntry(b"", 0o755, "directory")}))

    def _env(self, instruction: Instruction) -> None:
        words = shlex.split(instruction.rest)
        if words and "=" not in words[0]:
            name, _, value = instruction.rest.partition(" ")
            self.env[name] = self._expand(value.strip())
            return
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not re.fullmatch(NAME, name):
                raise ValueError(f"{word!r} is not NAME=value")
            self.env[name] = self._expand(value)

    def _expand(self, text: str) -> str:
        known = {"PATH": PATH, **self._arguments, **self.env}

        def value(match: re.Match[str]) -> str:
            if match[1]:
                return match[1] if match[1] == "$" else match[0]
            found = known.get(match[2] or match[3], "")
            if match[4] == ":+":
                return match[5] if found else ""
            return found or match[5] or ""

        return VARIABLE.sub(value, text)

    def _run(self, instruction: Instruction) -> None:
        rest = instruction.rest
        if rest.startswith(("--", "<<")) or HEREDOC.search(rest):
            raise ValueError("flags and heredocs are not supported")
        words = _listed(rest)
        if words is not None:
            rest = shlex.join(words)
        self.steps.append(RunStep(rest, self.workdir, {**self._arguments, **self.env}, instruction.line, self.user))

    def _copy(self, instruction: Instruction) -> None:
        rest = instruction.rest
        words = _listed(rest) or shlex.split(rest)
        if any(word.startswith(("--", "<<")) for word in words):
            raise ValueError("flags and heredocs are not supported")
        if len(words) < 2:
            raise ValueError("needs a source and a target")
        *sources, target = [self._expand(word) for word in words]
        files: dict[str, FileEntry] = {}
        for source in sources:
            files.update(self._copied_files(source, target, several=len(sources) > 1))
        self._copied += sum(len(entry.content) for entry in files.values())
        if self._copied > LARGEST_COPY:
            raise ValueError(f"copies more than {LARGEST_COPY >> 20} MiB")
        self.steps.append(CopyStep(files))

    def _copied_files(self, source: str, target: str, *, several: bool) -> dict[str, FileEntry]:
        place = normal_path(posixpath.join(self.workdir, target))
        matches = (
            sorted(self._folder.glob(source.strip("/")))
            if any(c in source for c in "*?[")
            else [self._folder / source.lstrip("/")]
        )
        if not matches:
            raise ValueError(f"{source!r} matches nothing")
        files: dict[str, FileEntry] = {}
        for match in matches:
            folder = match if match.is_dir() and not match.is_symlink() else match.parent  # `..` is no link
            if not folder.resolve().is_relative_to(self._folder.resolve()) or not os.path.lexists(match):
                raise ValueError(f"{source!r} is not in the task's environment folder")
            entry = read_entry(match)
            if entry is None:
                raise ValueError(f"{source!r} is not a file or folder")
            if entry.kind == "directory":
                files[place] = entry
                files.update(read_tree(match, place))
            elif target.endswith("/") or several or len(matches) > 1 or target in (".", ".."):
                files[normal_path(f"{place}/{match.name}")] = entry
            else:
                files[place] = replace(entry, name=match.name)
        return files


def read_dockerfile(environment_dir: Path) -> ImageSpec:
    """The image that `environment_dir/Dockerfile` describes; TaskError lists every problem with its line."""
    path = environment_dir / "Dockerfile"
    if not path.is_file():
        raise TaskError(str(environment_dir), ["there is no Dockerfile"])
    reader = _Reader(environment_dir)
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise TaskError(str(environment_dir), [f"Dockerfile is not in UTF-8: {error}"]) from error
    if ESCAPE.match(text):
        reader.problems.append("Dockerfile: the directive `escape` is not supported")
    for instruction in instructions(text):
        reader.apply(instruction)
    if not reader.base:
        reader.problems.append("Dockerfile has no FROM")
    if reader.problems:
        raise TaskError(str(environment_dir), reader.problems)
    return ImageSpec(
        reader.base, reader.workdir, reader.env, tuple(reader.steps), reader.user, reader.line, environment_dir
    )
