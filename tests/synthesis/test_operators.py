"""What the operators make of tasks of our own dialect, without running it (test_rounds runs it)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from components.pool import load_task, read_outline
from components.pool.outline import Check, Outline, Step
from components.records import TaskRef
from components.synthesis.draft import Draft
from components.synthesis.operators import OPERATORS, repair
from components.synthesis.source import Source, paths_of
from components.synthesis.steps import aligned, append, rename, substitute
from tests.synthesis.conftest import roots


def drafts(sources: list[Source], name: str) -> list[Draft]:
    made = [OPERATORS[name](source, sources, random.Random(n)) for n, source in enumerate(sources)]
    return [draft for draft in made if draft is not None]


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_a_draft_is_longer_names_its_parents_and_reads_back(tmp_path: Path, name: str) -> None:
    found = drafts(roots(tmp_path / "pool", 15), name)
    assert len(found) >= 8
    for number, draft in enumerate(found):
        first, outline = draft.first, draft.outline
        assert draft.turns == len(outline.steps) >= len(first.outline.steps) + 1
        earning = {name for name, _ in outline.checks} - set(draft.declared)
        assert len(earning) > first.assertions
        folder = tmp_path / "drafts" / f"d{number}"
        draft.write(folder, round_=1)
        task = load_task(folder)
        assert read_outline(folder, draft.declared) == outline
        assert task.ref.parents == tuple(parent.ref.task_id for parent in draft.parents)
        assert (task.ref.lineage, task.ref.operator, task.ref.round) == ((first.ref.task_id,), draft.operator, "1")
        assert (task.metadata["family"], draft.operator.split("-")[0]) == (name, name)
        assert draft.words == len(task.instruction.replace(":", " ").split())


def test_the_same_draws_make_the_same_draft_byte_for_byte(tmp_path: Path) -> None:
    sources = roots(tmp_path / "pool", 12)
    for name in OPERATORS:
        once, again = drafts(sources, name), drafts(sources, name)
        assert once == again
        for place in ("a", "b"):
            once[0].write(tmp_path / place / "task", round_=2)
        assert load_task(tmp_path / "a" / "task").ref.digest == load_task(tmp_path / "b" / "task").ref.digest


def test_tasks_that_share_a_path_are_not_composed(tmp_path: Path) -> None:
    sources = roots(tmp_path / "pool", 40)
    made = drafts(sources, "compose")
    assert made
    for draft in made:
        first, second = draft.parts
        assert not paths_of(first) & paths_of(second)
        assert len(draft.outline.files) == len(first.files) + len(second.files)
    overlapping = [source for source in sources if paths_of(source.outline) & paths_of(sources[0].outline)]
    assert OPERATORS["compose"](sources[0], overlapping, random.Random(1)) is None


def test_a_file_that_was_there_before_is_no_artifact(tmp_path: Path) -> None:
    for source in roots(tmp_path / "pool", 40):
        for path, lines in source.artifacts.items():
            assert source.outline.files.get(path) != "".join(f"{line}\n" for line in lines)


def step(label: str, **checks: str) -> Step:
    """Each check by its name: a function of the verifier and its arguments."""
    return Step(label, "", "", tuple(Check(name, tuple(call.split())) for name, call in checks.items()))


SORTED = step("sort", made="is_file o", lines="counts_lines o 2", equals="equals o kiwi lemon")


class Fixed:
    """Draws what the test says."""

    rng = random.Random(0)

    def name(self) -> str:
        return "new"

    def word(self) -> str:
        return "zebra"


def calls(steps: tuple[Step, ...] | None) -> list[tuple[str, ...]]:
    assert steps is not None
    return [check.call for each in steps for check in each.checks]


def test_what_was_asserted_of_a_changed_file_is_asserted_of_what_it_is_then() -> None:
    lines = ("kiwi", "lemon")
    appended = append(Fixed(), "o", lines)
    assert calls(aligned((SORTED,), "o", appended)) == [
        ("is_file", "o"), ("counts_lines", "o", "3"), ("equals", "o", "kiwi", "lemon", "zebra"),
    ]  # fmt: skip
    renamed = rename(Fixed(), "o", lines)
    assert calls(aligned((SORTED,), "o", renamed)) == [
        ("is_file", "new"), ("counts_lines", "new", "2"), ("equals", "new", "kiwi", "lemon"),
    ]  # fmt: skip
    replaced = substitute(Fixed(), "o", ("kiwi",))
    assert replaced is not None
    assert replaced.new_lines == ("zebra",)
    first = step("append", kept="first_line o kiwi", has="has_line o lemon")
    assert calls(aligned((first,), "o", appended)) == [("first_line", "o", "kiwi"), ("has_line", "o", "lemon")]
    assert aligned((first,), "o", replaced) is None, "it is asserted that a line stays which would not"


def test_a_file_that_something_links_to_is_not_changed() -> None:
    link = step("link", link="links_to l o")
    assert aligned((SORTED, link), "o", rename(Fixed(), "o", ("kiwi", "lemon"))) is None


def composed(first: Outline, second: Outline) -> Draft:
    def source(outline: Outline) -> Source:
        return Source(TaskRef("p", "t", "d", "c"), Path("t"), outline, None, {}, frozenset(), len(outline.steps), 1)

    return Draft("compose", "compose", (source(first), source(second)), (first, second), 2)


def asking(wording: str, command: str, check: Step, **files: str) -> Outline:
    return Outline((replace(check, wording=wording, command=command),), files)


SEARCH = asking("bundle kiwi", "tar -cf o $(grep -sl kiwi *)", step("archive", only="lists_exactly o a"), a="kiwi\n")
WRITE = asking("write kiwi inside b", "echo kiwi > b", step("create", equals="equals b kiwi"))
GIVEN = asking("sort f uniquely to g", "sort -u f > g", step("sort", equals="equals g kiwi"), f="kiwi\n")
OTHER = asking("write plum inside c", "echo plum > c", step("create", equals="equals c plum"))


def test_what_meets_the_work_of_the_other_task_is_put_before_it() -> None:
    mended = repair(composed(WRITE, SEARCH), "run 1: 2-archive:only failed; solve.sh exit 0", random.Random(1))
    assert mended is not None
    assert [each.label for each in mended.outline.steps] == ["archive", "create"]


def test_what_meets_the_files_of_the_other_task_has_them_called_otherwise() -> None:
    mended = repair(composed(SEARCH, GIVEN), "run 1: 1-archive:only failed; solve.sh exit 0", random.Random(1))
    assert mended is not None
    (word,) = mended.outline.files["f"].split()
    assert word != "kiwi"
    assert mended.outline.checks[1] == ("2-sort:equals", ("equals", "g", word))
    assert mended.outline.files["a"] == "kiwi\n"


def test_what_no_log_tells_how_to_mend_is_not_mended() -> None:
    assert repair(composed(WRITE, OTHER), "run 1: 1-create:equals failed", random.Random(1)) is None
    assert repair(composed(WRITE, SEARCH), "solve.sh timed out", random.Random(1)) is None
    alone = Draft("chain", "chain-sort", composed(WRITE, WRITE).parents[:1], (WRITE,), 1)
    assert repair(alone, "run 1: 1-create:equals failed", random.Random(1)) is None
