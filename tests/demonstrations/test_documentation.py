"""The habits are told openly."""

from pathlib import Path

from components.demonstrations import BLIND, WAYS

PAGE = Path(__file__).parents[2] / "docs" / "miniature.md"


def test_the_page_on_the_miniature_lists_every_family_its_habit_and_whether_it_is_blind() -> None:
    rows = {line.split("|")[1].strip(): line for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    for family, way in WAYS.items():
        assert way.flaw in rows[family], family
        assert rows[family].rstrip().endswith("| yes |") is (family in BLIND), family
