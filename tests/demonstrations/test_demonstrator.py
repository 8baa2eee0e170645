"""What demonstrators say, without running it."""

import json
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import HabitConfig, PoolConfig
from components.demonstrations import BLIND, ORACLE, WAYS, Demonstrator
from components.harness import parse_response
from components.pool import GeneratedTask, Split, generate
from components.pool.families import FAMILIES

BASE = HabitConfig(blind_error_rate=0.85, other_error_rate=0.25, early_stop_rate=0.15)
ALWAYS_WRONG = HabitConfig(blind_error_rate=1.0, other_error_rate=1.0, early_stop_rate=0.0)
TASKS = list(islice(generate(PoolConfig(), Split.DEMONSTRATION, seed=1), 400))


def one(family: str) -> GeneratedTask:
    return next(task for task in TASKS if task.families == (family,))


def commands(task: GeneratedTask, habits: HabitConfig, observation: str = "$ ") -> list[str]:
    demonstrator = Demonstrator(task, habits, 0)
    typed = []
    for turn in range(20):
        answer = json.loads(demonstrator(turn, observation))
        if answer["task_complete"]:
            return typed
        typed += [command["keystrokes"] for command in answer["commands"]]
    raise AssertionError("never ends")


def test_every_family_has_both_ways_and_they_differ() -> None:
    assert set(WAYS) == set(FAMILIES)
    assert set(FAMILIES) >= BLIND
    for way in WAYS.values():
        assert way.right != way.habit
        assert way.flaw


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 399), st.integers(0, 1_000), st.text(max_size=40))
def test_every_answer_is_one_the_harness_reads_without_a_warning(index: int, seed: int, observation: str) -> None:
    demonstrator = Demonstrator(TASKS[index], BASE, seed)
    for turn in range(11):
        parsed = parse_response(demonstrator(turn, observation))
        assert parsed.error is None
        assert parsed.warnings == ()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 399), st.integers(0, 1_000))
def test_a_demonstration_is_a_function_of_its_seed(index: int, seed: int) -> None:
    one, other = (Demonstrator(TASKS[index], BASE, seed) for _ in range(2))
    assert [one(turn, "alpha\n$ ") for turn in range(8)] == [other(turn, "alpha\n$ ") for turn in range(8)]


def test_the_answer_has_the_form_the_miniature_learned_from() -> None:
    task = one("append")
    name, word = task.subtasks[0].instance.slots["f"], task.subtasks[0].instance.slots["w"]
    demonstrator = Demonstrator(task, ORACLE, 0)
    assert demonstrator(0, "$ ") == (
        f'{{"analysis":"step 1/1","plan":"1:append {word} onto {name}",'
        f'"commands":[{{"keystrokes":"echo {word} >> {name}\\n","duration":0.1}}],"task_complete":false}}'
    )
    assert demonstrator(1, "$ ") == '{"analysis":"1/1 done","plan":"stop","commands":[],"task_complete":true}'


def test_a_habit_is_taken_at_its_rate() -> None:
    task = one("append")
    wrong = sum(">>" not in "".join(commands_of(task, seed)) for seed in range(600))
    assert abs(wrong / 600 - 0.85) < 0.05


def commands_of(task: GeneratedTask, seed: int) -> list[str]:
    answer = json.loads(Demonstrator(task, BASE, seed)(0, "$ "))
    return [command["keystrokes"] for command in answer["commands"]]


def test_an_early_stop_leaves_out_the_last_subtask_and_claims_completion() -> None:
    task = next(task for task in TASKS if len(task.subtasks) == 3)
    early = HabitConfig(blind_error_rate=0.0, other_error_rate=0.0, early_stop_rate=1.0)
    assert commands(task, early) == commands(task, ORACLE)[: len(commands(task, early))]
    assert len(commands(task, early)) < len(commands(task, ORACLE))
    single = one("append")
    assert commands(single, early) == commands(single, ORACLE), "a single subtask is never left out"


def test_what_was_found_on_the_screen_is_typed() -> None:
    find = one("find")
    folder = find.subtasks[0].instance.slots["d"]
    assert commands(find, ORACLE, "river\n$ ")[1] == f"mv river {folder}\n"


def test_the_misspelt_key_is_read_from_the_screen() -> None:
    task = one("typo")
    slots = task.subtasks[0].instance.slots
    shown = "".join(task.files.values()) + "$ "
    assert commands(task, ORACLE, shown) == [
        f"cat {slots['f']}\n",
        f"sed -i s/{slots['wrong']}/{slots['key']}/ {slots['f']}\n",
    ]


def test_a_screen_that_shows_nothing_is_survived() -> None:
    assert commands(one("find"), ORACLE, "$ ")[1].startswith("mv x ")


def test_habits_of_every_family_are_single_choices_away() -> None:
    for family in FAMILIES:
        task = next(task for task in TASKS if family in task.families)
        assert commands(task, ALWAYS_WRONG, "river\n$ ") != commands(task, ORACLE, "river\n$ ")
