"""What counts as an opinion."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.curation.quality.answer import BadAnswer, read_opinion
from components.curation.quality.rubric import CRITICAL, WEIGHTS, Dimension, HardReject, schema
from tests.curation.scripted_judge import opinion


def test_the_weights_are_the_papers_and_only_the_training_value_has_no_minimum() -> None:
    verifier, solution, instruction, value = (45, 25, 20, 10)
    listed = list(WEIGHTS.values())
    assert sum(listed) == 100
    assert (sum(listed[:3]), sum(listed[3:5]), sum(listed[5:7]), listed[7]) == (verifier, solution, instruction, value)
    assert set(Dimension) - CRITICAL == {Dimension.VALUE}


def test_a_whole_answer_is_an_opinion() -> None:
    read = read_opinion(opinion([0, 0.1, 0.2, 0.3, 0.4, 0.5, 1, 0.75], weak_verifier="test.sh: exit 0"))
    assert list(read.scores.values()) == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 1, 0.75]
    assert read.rejects == {HardReject.WEAK_VERIFIER: "test.sh: exit 0"}


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(opinion(0.5))
    change(document)
    return json.dumps(document)


def set_score(value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["scores"]["verifier_fairness"].update(score=value)


BAD = {
    "empty": "",
    "prose": "I would give it a five everywhere.",
    "fenced": f"```json\n{opinion(1)}\n```",
    "two": opinion(1) + opinion(1),
    "a list": f"[{opinion(1)}]",
    "cut": opinion(1)[:-20],
    "nested without end": "[" * 100_000,
    "five": broken(set_score(5)),
    "negative": broken(set_score(-0.1)),
    "text": broken(set_score("1")),
    "truth": broken(set_score(True)),
    "null": broken(set_score(None)),
    "NaN": opinion(0.5).replace("0.5", "NaN", 1),
    "Infinity": opinion(0.5).replace("0.5", "1e999", 1),
    "a dimension less": broken(lambda document: document["scores"].pop("task_training_value")),
    "a dimension more": broken(lambda document: document["scores"].update(beauty={"score": 1, "why": "it is"})),
    "a key more": broken(lambda document: document.update(verdict="accept")),
    "a key twice": opinion(0.5).replace('"hard_rejects"', '"scores": {}, "hard_rejects"', 1),
    "no finding": broken(lambda document: document["hard_rejects"].pop("weak_verifier")),
    "a finding without a place": broken(lambda document: document["hard_rejects"].update(weak_verifier=" ")),
    "a finding that is only true": broken(lambda document: document["hard_rejects"].update(weak_verifier=True)),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_anything_else_is_a_bad_answer(text: str) -> None:
    with pytest.raises(BadAnswer):
        read_opinion(text)


@settings(max_examples=40)
@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_no_text_raises_anything_but_a_bad_answer(text: str) -> None:
    with pytest.raises(BadAnswer):
        read_opinion(text)


def test_the_schema_that_is_sent_asks_for_exactly_what_is_read() -> None:
    asked = schema()["properties"]
    document = json.loads(opinion(1))
    assert asked["scores"]["required"] == list(document["scores"]) == list(asked["scores"]["properties"])
    assert asked["hard_rejects"]["required"] == list(document["hard_rejects"])
    assert asked["scores"]["additionalProperties"] is False
