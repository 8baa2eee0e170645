"""The families' wording, lexicon and checks, without running them."""

import random
import re

import pytest

from components.pool.families import FAMILIES
from components.pool.lexicon import NAMES, TYPOS, WORDS, Draw
from components.pool.subtask import Subtask

FAMILY_NAMES = sorted(FAMILIES)


def draw(family: str, seed: int = 0) -> Subtask:
    return Subtask(FAMILIES[family], FAMILIES[family].draw(Draw(random.Random(seed))))


def function_words(wording: str) -> set[str]:
    return set(re.sub(r"\{\w+\}", " ", wording).split())


def test_no_two_families_share_a_function_word() -> None:
    owners: dict[str, str] = {}
    for name, family in FAMILIES.items():
        for word in function_words(family.wording):
            assert word not in owners, f"{word!r} is used by {owners[word]} and {name}"
            owners[word] = name


def test_function_words_are_no_names_and_no_contents() -> None:
    used = set().union(*(function_words(family.wording) for family in FAMILIES.values()))
    assert not used & {*NAMES, *WORDS}


def test_no_word_that_files_contain_stands_within_another() -> None:
    """`grep lion` must not find another word, and `sed s/ode/…/` must not hit `mode`."""
    contents = [*WORDS, *TYPOS, *TYPOS.values()]
    for word in contents:
        assert [other for other in contents if word in other] == [word]


def test_there_are_at_least_seventeen_families_with_one_of_git_and_one_of_tar() -> None:
    assert len(FAMILIES) >= 17
    assert {"commit", "archive", "mkdir", "typo", "find"} <= set(FAMILIES)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_subtask_has_two_or_three_assertions_and_a_filled_wording(family: str) -> None:
    for seed in range(20):
        subtask = draw(family, seed)
        assert 2 <= len(subtask.instance.checks) <= 3
        assert len({check.name for check in subtask.instance.checks}) == len(subtask.instance.checks)
        assert "{" not in subtask.instruction
        assert "." not in subtask.instruction
        assert all(f" {word} " not in f" {subtask.instruction} " for word in ("", "None"))


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_name_an_instruction_gives_is_a_slot(family: str) -> None:
    """Nothing that an agent must type is hidden from it."""
    subtask = draw(family)
    told = set(subtask.instruction.split())
    shown = told | {part for slot in subtask.instance.slots.values() for part in [slot]}
    for check in subtask.instance.checks:
        for argument in check.call[1:2]:
            first = argument.split("/")[0]
            assert first in shown or first in subtask.instance.files, f"{family}: {argument}"
