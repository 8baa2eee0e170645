"""The audit finds what it is for, and what is pinned passes it."""

from __future__ import annotations

import importlib.metadata

import pytest

from tests import audit


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("MIT", True),
        ("Apache Software License", True),
        ("Apache-2.0 WITH LLVM-exception AND BSD-3-Clause", True),
        ("Artistic License; MIT License", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("GNU Affero General Public License v3", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_when_one_of_its_alternatives_is_whole(words: str, allowed: bool) -> None:
    assert audit.is_allowed(words) is allowed


def test_what_is_pinned_is_under_a_licence_that_is_allowed_and_has_its_reason() -> None:
    assert [line for line in audit.problems() if "not pinned" not in line] == []


def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here = importlib.metadata.distribution("pydantic")
    monkeypatch.setattr(audit, "installed", lambda: {"pydantic": here, "stray": here})
    monkeypatch.setattr(audit, "pins", lambda: {"pydantic": "0.1", "gone": "1.0"})
    monkeypatch.setattr(audit, "EXCEPTIONS", {"none": "no reason"})
    monkeypatch.setattr(audit, "direct", lambda: {"untold-of"})
    assert audit.problems() == [
        "gone is pinned and not installed",
        "stray is installed and not pinned",
        f"pydantic is {here.version}, pinned is 0.1",
        "none has an exception and is not installed",
        "untold-of is a dependency that docs/dependencies.md does not tell",
    ]
