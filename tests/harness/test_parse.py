"""Reading answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.harness import Command, parse_response

GOOD = {"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\n", "duration": 0.1}], "task_complete": False}


def read(**changes):
    return parse_response(json.dumps({**GOOD, **changes}))


def without(name):
    return parse_response(json.dumps({key: value for key, value in GOOD.items() if key != name}))


def assert_whole(turn):
    assert turn.error is None or (turn.commands == () and not turn.task_complete)
    assert all(isinstance(command.keystrokes, str) and command.duration_s >= 0 for command in turn.commands)
    assert isinstance(turn.task_complete, bool)


def test_a_well_formed_answer_has_neither_error_nor_warning():
    turn = read()
    assert (turn.analysis, turn.plan, turn.task_complete) == ("a", "p", False)
    assert turn.commands == (Command("ls\n", 0.1),)
    assert turn.error is None
    assert turn.warnings == ()


def test_text_around_the_object_is_a_warning_and_braces_within_strings_do_not_count():
    turn = parse_response('Sure: {"analysis":"{\\"}","plan":"}{","commands":[]} and so on {')
    assert turn.error is None
    assert turn.analysis == '{"}'
    assert turn.warnings == ("text before the JSON object", "text after the JSON object")


def test_only_the_first_object_is_read():
    first, second = json.dumps(GOOD), json.dumps({**GOOD, "analysis": "second"})
    assert parse_response(first + second).analysis == "a"


def test_a_missing_last_brace_is_supplied_with_a_warning():
    turn = parse_response(json.dumps(GOOD)[:-1])
    assert turn.commands == (Command("ls\n", 0.1),)
    assert turn.warnings == ("the closing brace was missing and has been added",)


@pytest.mark.parametrize("cut", ['{"analysis":"a","plan":"p","commands":[{"keystrokes":"rm -rf', '{"a":{"b":1'])
def test_an_answer_that_ends_inside_a_command_is_an_error(cut):
    turn = parse_response(cut)
    assert turn.error is not None
    assert turn.commands == ()


@pytest.mark.parametrize("text", ["", "no json here", "[1, 2]"])
def test_no_object_is_an_error(text):
    assert parse_response(text).error == "no JSON object in the answer"


def test_a_raw_newline_inside_a_string_is_invalid_json():
    assert "invalid JSON" in (parse_response('{"analysis":"a\nb","plan":"p","commands":[]}').error or "")


@pytest.mark.parametrize("name", ["analysis", "plan", "commands"])
def test_a_missing_field_is_an_error_that_names_it(name):
    turn = without(name)
    assert turn.error == f"missing field: {name}"
    assert turn.commands == ()


@pytest.mark.parametrize(
    ("commands", "problem"),
    [
        ("ls", "commands must be an array"),
        (["ls"], "command 1 must be an object"),
        ([{"duration": 1}], "command 1 needs keystrokes, a string"),
        ([{"keystrokes": "a\n", "duration": 1}, {"keystrokes": 5}], "command 2 needs keystrokes, a string"),
    ],
)
def test_malformed_commands_are_an_error_unless_the_task_is_complete(commands, problem):
    assert read(commands=commands).error == problem
    finished = read(commands=commands, task_complete=True)
    assert finished.error is None
    assert finished.task_complete
    assert finished.commands == ()
    assert problem in finished.warnings


@pytest.mark.parametrize("value", [True, "true", " Yes ", "1"])
def test_completion_is_understood_in_words(value):
    assert read(task_complete=value).task_complete


@pytest.mark.parametrize("value", [False, "false", "no", "", None, 1, [True]])
def test_anything_else_is_not_completion(value):
    assert not read(task_complete=value).task_complete


@pytest.mark.parametrize("duration", ["1", None, -1, True, float("nan"), float("inf"), 10**400])
def test_an_invalid_duration_becomes_one_second_with_a_warning(duration):
    turn = read(commands=[{"keystrokes": "ls\n", "duration": duration}])
    assert turn.commands == (Command("ls\n", 1.0),)
    assert "invalid duration" in turn.warnings[0]


def test_what_is_odd_but_harmless_is_warned_about():
    order = {"plan": "p", "analysis": 4, "commands": GOOD["commands"], "mood": "good"}
    turn = parse_response(json.dumps(order))
    assert turn.error is None
    assert turn.analysis == "4"
    assert turn.warnings == (
        "fields should come in the order analysis, plan, commands",
        "unknown field: mood",
        "analysis should be a string",
    )
    typed = read(commands=[{"keystrokes": "ls", "delay": 1}, {"keystrokes": "q"}])
    assert "command 1 has no newline before the next command" in typed.warnings
    assert "command 1 has an unknown field: delay" in typed.warnings
    assert "command 2 has no duration, 1.0 s taken" in typed.warnings


def test_deep_nesting_and_long_numbers_are_errors_and_not_crashes():
    assert parse_response('{"a":' * 100_000 + "1" + "}" * 100_000).error == "invalid JSON: nested too deeply"
    assert parse_response('{"a":' + "9" * 10_000 + "}").error == "invalid JSON: a number is too long"
    for depth in range(700, 1_000):  # somewhere here a text can just be read, and not be written again
        assert parse_response('{"analysis":' + "[" * depth + "]" * depth + "}").error


def test_a_lone_surrogate_cannot_reach_the_terminal():
    turn = parse_response('{"analysis":"a","plan":"p","commands":[{"keystrokes":"\\ud800\\n","duration":1}]}')
    assert turn.commands[0].keystrokes.encode() == b"?\n"


@given(st.text() | st.text(alphabet='{}[]":,\\ antrue01.').map(lambda text: "{" + text))
def test_no_text_raises_and_an_error_never_carries_commands(text):
    assert_whole(parse_response(text))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_any_json_value_in_any_field_is_read_without_raising(value):
    for name in ("analysis", "plan", "commands", "task_complete"):
        assert_whole(read(**{name: value}))
    turn = read(commands=[{"keystrokes": "x", "duration": value}])
    assert_whole(turn)
    assert [command.keystrokes for command in turn.commands] == ([] if turn.error else ["x"])
