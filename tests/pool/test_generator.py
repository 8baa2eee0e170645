"""Determinism, splits and composition of generated tasks."""

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import PoolConfig
from components.pool import GeneratedTask, Split, generate

CONFIG = PoolConfig()
seeds = st.integers(min_value=0, max_value=2**32)
splits = st.sampled_from(list(Split))


def take(split: Split, seed: int, count: int, config: PoolConfig = CONFIG) -> list[GeneratedTask]:
    return list(islice(generate(config, split, seed=seed), count))


@settings(max_examples=30, deadline=None)
@given(splits, seeds, st.integers(1, 20))
def test_the_same_seed_gives_the_same_tasks_and_a_longer_run_begins_with_the_shorter(
    split: Split, seed: int, count: int
) -> None:
    short, long = take(split, seed, count), take(split, seed, count + 5)
    assert [(task.instruction, task.files, task.checks) for task in short] == [
        (task.instruction, task.files, task.checks) for task in long[:count]
    ]


@settings(max_examples=30, deadline=None)
@given(seeds, seeds)
def test_no_content_is_in_two_splits_whatever_the_seeds(one: int, other: int) -> None:
    """Single-subtask tasks are few enough to collide by chance; the split goes through the content."""
    single = PoolConfig(max_subtasks=1)
    contents = {split: {task.content_digest for task in take(split, one, 60, single)} for split in Split}
    contents[Split.TRAIN] |= {task.content_digest for task in take(Split.TRAIN, other, 60, single)}
    assert not contents[Split.TRAIN] & contents[Split.HELDOUT]
    assert not contents[Split.DEMONSTRATION] & contents[Split.HELDOUT]
    assert not contents[Split.TRAIN] & contents[Split.DEMONSTRATION]


@settings(max_examples=30, deadline=None)
@given(splits, seeds)
def test_within_a_task_families_names_and_assertion_ids_are_distinct(split: Split, seed: int) -> None:
    for task in take(split, seed, 10):
        assert 1 <= len(task.subtasks) <= 5
        assert len(set(task.families)) == len(task.families)
        ids = [name for name, _ in task.checks]
        assert len(set(ids)) == len(ids)
        files = [path for subtask in task.subtasks for path in subtask.instance.files]
        assert len(set(files)) == len(files)


def test_a_pool_holds_no_content_twice() -> None:
    contents = [task.content_digest for task in take(Split.TRAIN, 1, 600, PoolConfig(max_subtasks=1))]
    assert len(set(contents)) == len(contents)


def test_another_seed_gives_other_tasks() -> None:
    assert take(Split.TRAIN, 1, 5) != take(Split.TRAIN, 2, 5)


def test_difficulty_follows_the_number_of_subtasks() -> None:
    by_amount = {len(task.subtasks): task.difficulty for task in take(Split.TRAIN, 1, 100)}
    assert by_amount == {1: "easy", 2: "easy", 3: "medium", 4: "hard", 5: "hard"}


def test_every_group_is_a_category_and_no_family_is_missing() -> None:
    tasks = take(Split.TRAIN, 1, 300)
    assert {task.category for task in tasks} == {"files", "text", "search", "git"}
    assert len({family for task in tasks for family in task.families}) == 19


def test_an_assertion_id_names_the_subtask_the_family_and_the_check() -> None:
    task = next(task for task in take(Split.TRAIN, 1, 200) if task.families[:1] == ("sort",))
    assert [name for name, _ in task.checks][:3] == ["1-sort:made", "1-sort:lines", "1-sort:equals"]
