"""What a round proposes, before anything is run: caps, and the same draws for the same seed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from components.config import SynthesisConfig
from components.synthesis.rounds import Grown, Proposal, _plan
from components.synthesis.source import Source
from tests.synthesis.conftest import roots


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    return roots(tmp_path / "pool", 16)


def plan(sources: list[Source], config: SynthesisConfig, before: list[Proposal] | None = None) -> list[Proposal]:
    return _plan(1, before or [], Grown(sources, sources), config, random.Random(5), asks=False)


def test_no_cap_is_passed_and_nothing_is_proposed_twice(sources: list[Source]) -> None:
    config = SynthesisConfig(tasks=40, per_parent=2, per_category=9, per_family=6)
    planned = plan(sources, config)
    assert len(planned) >= 18
    assert max(Counter(parent.ref.task_id for each in planned for parent in each.draft.parents).values()) <= 2
    assert max(Counter(each.draft.parents[0].ref.category for each in planned).values()) == 9
    assert max(Counter(each.draft.family for each in planned).values()) == 6
    assert len({each.draft.content for each in planned}) == len({each.task_id for each in planned}) == len(planned)


def test_what_a_run_has_proposed_once_it_does_not_propose_again(sources: list[Source]) -> None:
    grown, config = Grown(sources, sources), SynthesisConfig(tasks=8)
    once, again = (_plan(1, [], grown, config, random.Random(5), asks=False) for _ in range(2))
    assert len(once) == len(again) == 8
    assert not {each.draft.content for each in once} & {each.draft.content for each in again}


def test_every_parent_comes_once_before_one_comes_again(sources: list[Source]) -> None:
    firsts = [each.draft.parents[0].ref.task_id for each in plan(sources, SynthesisConfig(tasks=16))]
    assert len(set(firsts)) == len(firsts) == 16


def test_what_a_wave_has_accepted_counts_in_the_next(sources: list[Source]) -> None:
    config = SynthesisConfig(tasks=12, per_family=4)
    before = plan(sources, config)
    before[0].reason = "oracle_fails"
    later = plan(sources, config, before)
    assert len(before) == 12
    assert len(later) == 1
    assert later[0].task_id == "grown-1-00012"
    accepted = [each.draft.family for each in before[1:]]
    assert Counter([*accepted, later[0].draft.family]).most_common(1)[0][1] <= 4


def test_the_same_seed_plans_the_same_and_longer_tasks_than_allowed_are_not_planned(sources: list[Source]) -> None:
    config = SynthesisConfig(tasks=20)
    assert [each.draft.content for each in plan(sources, config)] == [
        each.draft.content for each in plan(sources, config)
    ]
    short = plan(sources, SynthesisConfig(tasks=20, max_turns=4, max_instruction_words=20))
    assert short
    assert all(each.draft.turns <= 4 and each.draft.words <= 20 for each in short)
