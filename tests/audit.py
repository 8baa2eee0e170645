"""`python -m tests.audit` (`make audit`): licences and pins of every package that is installed here.

Each pin of constraints.txt must be what is installed, under a licence of ALLOWED or one of EXCEPTIONS with its reason;
what is installed must be pinned; a direct dependency must be told in docs/dependencies.md. It knows nothing of
vulnerabilities: that takes a database on the network, which `pip-audit --requirement constraints.txt` asks.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import sysconfig
import tomllib
from collections.abc import Mapping

from components.cluster import REPOSITORY

ALLOWED = re.compile(
    r"(MIT(-0|-CMU| No Attribution)?|Apache(-2\.0| 2\.0| Software)|BSD|BSD-[23]-Clause|3-Clause BSD|0BSD|ISC|PSF-2\.0"
    r"|Python Software Foundation|Zlib|CC0-1\.0|BSL-1\.0|CNRI-Python|LLVM-exception|MPL-2\.0"
    r"|Mozilla Public License 2\.0)( License)?"
)
"""Licences under which a package may be used as a library, unmodified, whatever Longshell's users do."""
EXCEPTIONS: Mapping[str, str] = {
    "pyte": "LGPL-3.0: used unmodified, as a library",
    "huey": "MIT by its LICENSE file; its metadata does not say",
    "skops": "MIT by its LICENSE file; its metadata does not say",
    "psycopg2-binary": "LGPL-3.0: used unmodified, as a library",
    "text-unidecode": "Artistic, or GPL: the Artistic licence is taken; Prefect's slugs need it",
}
UNPINNED = {"longshell", "pip", "uv", "setuptools", "wheel"}
"""Ourselves, and what installs: uv's version is in bootstrap.sh."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Version by name, of constraints.txt."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return {canonical(name): version for name, version in (line.split("==") for line in lines if "==" in line)}


def installed() -> dict[str, importlib.metadata.Distribution]:
    """Distributions by name. Not what setuptools carries within it, which it puts on the path when it is imported."""
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(REPOSITORY)}
    found = importlib.metadata.distributions(path=sorted(places))
    return {canonical(each.metadata["Name"]): each for each in found}


def licence(found: importlib.metadata.Distribution) -> str:
    """What a distribution says its licence is: an expression, else its classifiers, else the first words of a text."""
    if expression := found.metadata.get("License-Expression"):
        return str(expression)
    classifiers = [line.split("::")[-1].strip() for line in found.metadata.get_all("Classifier") or []]
    told = [line for line in classifiers if re.search(r"licen[cs]e|\bMPL\b", line, re.I) and line != "OSI Approved"]
    return "; ".join(told) or (found.metadata.get("License") or "").strip().split("\n")[0]


def is_allowed(words: str) -> bool:
    """Whether one of the alternatives is made of allowed licences alone."""
    plain = words.replace("(MPL 2.0)", "").replace("(ISCL)", "").strip()
    alternatives = re.split(r"\bOR\b|;", plain)
    return any(
        all(ALLOWED.fullmatch(part.strip(" ()")) for part in re.split(r"\bAND\b|\bWITH\b", one)) for one in alternatives
    )


def direct() -> set[str]:
    """Names in pyproject.toml: of the package and of what develops it. The cluster's extra has no lock."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras if name != "cluster" for line in extras[name])]
    return {canonical(re.split(r"[\[<>=~!; ]", line)[0]) for line in lines} - {"longshell"}


def problems() -> list[str]:
    """What is wrong, a line each."""
    found, wanted = installed(), pins()
    told = (REPOSITORY / "docs" / "dependencies.md").read_text().lower().replace("_", "-")
    wrong = [f"{name} is pinned and not installed" for name in sorted(wanted.keys() - found.keys())]
    wrong += [f"{name} is installed and not pinned" for name in sorted(found.keys() - wanted.keys() - UNPINNED)]
    for name in sorted(wanted.keys() & found.keys()):
        if found[name].version.split("+")[0] != wanted[name]:
            wrong.append(f"{name} is {found[name].version}, pinned is {wanted[name]}")
        if name not in EXCEPTIONS and not is_allowed(licence(found[name])):
            wrong.append(f"{name}: licence {licence(found[name])!r} is not allowed and no exception is made")
    unused = EXCEPTIONS.keys() - wanted.keys()
    wrong += [f"{name} has an exception and is not installed" for name in sorted(unused)]
    return wrong + [
        f"{name} is a dependency that docs/dependencies.md does not tell"
        for name in sorted(direct())
        if name not in told
    ]


def main() -> int:
    """0 when all is well."""
    wrong = problems()
    print("\n".join(wrong) or f"{len(pins())} packages: pins, licences and reasons are in order (not: vulnerabilities)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
