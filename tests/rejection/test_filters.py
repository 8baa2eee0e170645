"""Which trials are learned from: every one has one fate, and the order they come in decides nothing."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import RejectionConfig
from components.errors import FaultCause
from components.records import Reward, Sample, TaskRef
from components.rejection import Graded, Reason, choose, faulted
from components.rollout import Ledger, Origin, Outcome
from tests.rollout.parts import graded as trial_of


def one(name: str, task: str = "t", *, tokens: int = 8, content: int = 0, passed: int = 2, **changes: object) -> Graded:
    """A trial; `content` says what its stream holds, and with it what was typed."""
    ids = np.arange(tokens, dtype=np.int32) + 1_000 * content
    mask = np.arange(tokens) >= tokens // 2
    sample = Sample(ids, mask, np.zeros(tokens, np.float32), None, name)
    reward = Reward(passed / 20, passed, 2, passed == 2)
    made = Graded(trial_of(name, TaskRef("pool", task, "d", "files")), (sample,), reward, (f"type {content}\n",))
    return replace(made, **changes)  # type: ignore[arg-type]


TRIALS = st.lists(
    st.builds(
        lambda task, content, tokens, passed, drift: (task, content, tokens, passed, drift),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 3),
        st.sampled_from([8, 16, 24]),
        st.integers(0, 2),
        st.sampled_from([None, None, None, "it drifted"]),
    ),
    max_size=40,
)
CONFIGS = st.builds(
    lambda bar, per_task, longest: RejectionConfig(bar=bar, per_task=per_task, max_tokens=longest),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([None, 16]),
)


@settings(max_examples=40)
@given(TRIALS, CONFIGS, st.integers(0, 3), st.randoms(use_true_random=False))
def test_every_trial_has_one_fate_and_what_is_kept_keeps_every_rule(
    drawn: list[tuple[str, int, int, int, str | None]], config: RejectionConfig, seed: int, order: random.Random
) -> None:
    trials = [
        one(f"trial-{number}", task, content=content, tokens=tokens, passed=passed, drift=drift)
        for number, (task, content, tokens, passed, drift) in enumerate(drawn)
    ]
    chosen = choose(trials, config, seed=seed)
    fates = [each.trial.trial_id for each in chosen.kept] + [each.trial_id for each in chosen.left_out]
    assert sorted(fates) == sorted(each.trial.trial_id for each in trials)
    assert sum(chosen.counts().values()) == len(chosen.left_out)
    for each in chosen.kept:
        assert each.drift is None
        assert each.reward.passed / 2 >= config.bar
        assert config.max_tokens is None or len(each.samples[0].tokens) <= config.max_tokens
    assert len({each.content for each in chosen.kept}) == len(chosen.kept)
    assert len({(each.trial.task.task_id, each.commands) for each in chosen.kept}) == len(chosen.kept)
    most = max(Counter(each.trial.task.task_id for each in chosen.kept).values(), default=0)
    assert config.per_task is None or most <= config.per_task

    order.shuffle(trials)
    again = choose(trials, config, seed=seed)
    assert [each.trial.trial_id for each in again.kept] == [each.trial.trial_id for each in chosen.kept]
    assert again.left_out == chosen.left_out
    assert choose(chosen.kept, config, seed=seed).kept == chosen.kept, "what was kept is kept again"


@settings(max_examples=40)
@given(TRIALS, st.integers(0, 3))
def test_a_cap_that_is_wider_only_adds_where_nothing_is_a_duplicate(
    drawn: list[tuple[str, int, int, int, str | None]], seed: int
) -> None:
    trials = [
        one(f"trial-{number}", task, content=number, passed=passed)
        for number, (task, _, _, passed, _) in enumerate(drawn)
    ]
    kept = [
        {each.trial.trial_id for each in choose(trials, RejectionConfig(per_task=cap), seed=seed).kept}
        for cap in (1, 2, None)
    ]
    assert kept[0] <= kept[1] <= kept[2]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"drift": "other ids"}, Reason.DRIFT),
        ({"passed": 1}, Reason.BAR),
        ({"samples": ()}, Reason.EMPTY),
        ({"tokens": 17}, Reason.LENGTH),
    ],
)
def test_what_may_not_be_learned_from_is_left_out_for_its_first_reason(changed: dict, reason: Reason) -> None:
    chosen = choose([one("x", **changed), one("y", "other", content=1)], RejectionConfig(max_tokens=16), seed=1)
    assert [each.trial.trial_id for each in chosen.kept] == ["y"]
    assert [each.reason for each in chosen.left_out] == [reason]
    assert chosen.left_out[0].detail


def test_the_same_tokens_are_a_duplicate_in_any_task_and_the_same_commands_in_one() -> None:
    same = [one("x", "t", content=1), one("y", "u", content=1)]
    typed = [one("v", "t", content=2), one("w", "t", content=3, commands=("type 2\n",))]
    elsewhere = one("z", "u", content=4, commands=("type 2\n",))
    chosen = choose([*same, *typed, elsewhere], RejectionConfig(), seed=1)
    assert chosen.counts()["duplicate"] == 2
    assert len({each.trial_id for each in chosen.left_out} & {"x", "y"}) == 1
    assert len({each.trial_id for each in chosen.left_out} & {"v", "w"}) == 1
    twin = next(each for each in chosen.left_out if each.trial_id in "xy")
    assert twin.detail == f"of trial {'y' if twin.trial_id == 'x' else 'x'}"


def test_another_seed_keeps_other_trials_of_a_task() -> None:
    trials = [one(f"trial-{number}", content=number) for number in range(12)]
    chosen = [choose(trials, RejectionConfig(per_task=3), seed=seed) for seed in range(8)]
    assert {len(each.kept) for each in chosen} == {3}
    assert {each.counts()["cap"] for each in chosen} == {9}
    assert len({each.kept[0].trial.trial_id for each in chosen}) > 2


def test_a_verdict_alone_passes_when_it_is_yes_and_never_when_it_is_no() -> None:
    solved = one("x", reward=Reward(1.0, 0, 0, True))
    failed = one("y", content=1, reward=Reward(0.0, 0, 0, False))
    chosen = choose([solved, failed], RejectionConfig(bar=0.01), seed=1)
    assert [each.trial.trial_id for each in chosen.kept] == ["x"]


def test_a_task_whose_guard_was_broken_is_not_solved_though_all_that_is_credited_passed() -> None:
    broken = one("x", reward=Reward(0.1, 2, 2, False))
    assert choose([broken], RejectionConfig(bar=1.0), seed=1).counts()["bar"] == 1
    assert choose([broken], RejectionConfig(bar=0.9), seed=1).kept == (broken,)


def test_trials_without_a_verdict_are_told_by_what_kept_it_from_them() -> None:
    ledger = Ledger(0)
    ends = {"good": None, "lost": FaultCause.SAMPLER, "unpaid": FaultCause.SAMPLER, "drifted": FaultCause.DRIFT}
    for name, cause in ends.items():
        ledger.launch(name, TaskRef("pool", f"of {name}", "d", "files"), 1, origin=Origin.DRAWN)
        ledger.end(name, Outcome.ADMITTED if cause is None else Outcome.INFRA_FAULT, fault=cause, detail="why")
    found = {each.trial_id: each for each in faulted(ledger.rows, ["unpaid"])}
    assert {name: each.reason for name, each in found.items()} == {
        "lost": Reason.FAULT,
        "unpaid": Reason.BUDGET,
        "drifted": Reason.DRIFT,
    }
    assert (found["lost"].task_id, found["lost"].detail) == ("of lost", "sampler: why")
