"""What documents name: commands, configuration keys, files and tests; each is looked up."""

from __future__ import annotations

import re
from dataclasses import dataclass

from components.cluster import REPOSITORY

_LINK = re.compile(r"`((?:components|tasks|flows|tests|infra|configs)/[\w./*-]+)(?:::(\w+))?`")


@dataclass(frozen=True)
class Claim:
    """A row of a table of threats: what it is about, the files that defend, the tests that show it."""

    name: str
    code: tuple[str, ...]
    tests: tuple[tuple[str, str], ...]


def claims(document: str) -> list[Claim]:
    """Rows of tables with four cells: threat, defence, code, test."""
    found = []
    for line in (REPOSITORY / document).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] != "threat" and not set(cells[0]) <= set("-"):
            code = tuple(path for path, _ in _LINK.findall(cells[2]))
            tests = tuple(_LINK.findall(cells[3]))
            found.append(Claim(cells[0], code, tests))
    return found


def missing_tests(claim: object) -> list[str]:
    """Files and tests of a claim that are not there."""
    assert isinstance(claim, Claim)
    absent = [path for path in claim.code if not (REPOSITORY / path).exists()]
    for path, test in claim.tests:
        file = REPOSITORY / path
        if not file.is_file() or (test and not re.search(rf"(def|run \") ?{test}\b", file.read_text())):
            absent.append(f"{path}::{test}")
    return absent
