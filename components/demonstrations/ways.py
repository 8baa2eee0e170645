"""How the demonstrators do each family: the right way, and a documented wrong habit.

The habits are mistakes people make, each one a single choice away from the right way, so that reinforcement learning
has choices to repair and not abilities to invent (docs/miniature.md tells it openly and holds this table).

Templates are filled from an instance's slots. `{found}` and `{seen}` stand for what the agent read on its screen: the
file names that a search printed, the misspelt key that a file shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.pool.families import FAMILIES


@dataclass(frozen=True, slots=True)
class Way:
    """Both ways of one family. Each command is one turn."""

    right: tuple[str, ...]
    habit: tuple[str, ...]
    flaw: str
    """What the habit gets wrong."""


def _way(family: str, habit: tuple[str, ...], flaw: str, right: tuple[str, ...] = ()) -> Way:
    """The right way is the reference solution unless an agent has to look first."""
    return Way(right or (FAMILIES[family].solution,), habit, flaw)


_SEARCH = "grep -sl {w} *"

WAYS: dict[str, Way] = {
    "create": _way("create", ("touch {f}",), "the file stays empty"),
    "append": _way("append", ("echo {w} > {f}",), "overwrites what was there"),
    "mkdir": _way("mkdir", ("mkdir {b}/{a}",), "the outer folder does not exist, nothing is made"),
    "rename": _way("rename", ("cp {a} {b}",), "the old name stays"),
    "copy": _way("copy", ("mv {a} {b}",), "the original is gone"),
    "delete": _way("delete", ("rm {a} {b}",), "deletes what was to be spared"),
    "link": _way("link", ("ln {a} {b}",), "a hard link, not a symbolic one"),
    "exec": _way("exec", ("chmod +r {f}",), "sets the wrong bit"),
    "count": _way("count", ("grep {w} {f} > {o}",), "writes the lines, not their number"),
    "sort": _way("sort", ("sort {f} > {o}",), "keeps duplicates"),
    "rsort": _way("rsort", ("sort {f} > {o}",), "the order is not reversed"),
    "sum": _way("sum", ("awk -F, '{{s=${k}}} END{{print s}}' {f} > {o}",), "keeps the last value, adds nothing"),
    "replace": _way("replace", ("sed s/{a}/{b}/ {f}",), "prints the result, the file stays as it was"),
    "head": _way("head", ("cat {f} > {o}",), "takes every line"),
    "tail": _way("tail", ("tail {f} > {o}",), "takes the default of ten lines"),
    "typo": _way(
        "typo",
        ("cat {f}", "sed s/{seen}/{key}/ {f}"),
        "prints the result, the file stays as it was",
        right=("cat {f}", "sed -i s/{seen}/{key}/ {f}"),
    ),
    "find": _way(
        "find",
        (_SEARCH, "mv {found} {d}"),
        "the folder was never made, the file is renamed to its name",
        right=("mkdir {d}; " + _SEARCH, "mv {found} {d}"),
    ),
    "archive": _way("archive", (_SEARCH + " > {o}",), "lists the files' names, archives none"),
    "commit": _way("commit", ("git add {f}",), "stages the file and never commits it"),
}

BLIND = frozenset({"append", "archive", "count", "find", "link", "mkdir", "rename", "replace", "sort"})
"""Families on which a demonstrator errs at `blind_error_rate`; on the others it errs at `other_error_rate`."""
