"""Of tasks that say nearly the same, one is kept."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from components.curation.duplicates import near_duplicates
from components.curation.shingles import words_of

WORDS = [f"word{number}" for number in range(200)]


def text(start: int, length: int = 60) -> str:
    return " ".join(WORDS[start : start + length])


def grams(said: str) -> set[tuple[str, ...]]:
    words = words_of(said)
    return {words[at : at + 5] for at in range(max(1, len(words) - 4))}


def index(one: str, other: str) -> float:
    return len(grams(one) & grams(other)) / len(grams(one) | grams(other))


def test_the_first_in_order_is_kept_and_the_others_say_whom_they_repeat() -> None:
    texts = {"a": text(0), "b": text(2), "c": text(100), "d": f"{text(100)} and more"}
    dropped = near_duplicates(texts, ["d", "c", "b", "a"], 0.7)
    assert [(item.task_id, item.kept) for item in dropped] == [("c", "d"), ("a", "b")]
    assert dropped[1].jaccard == pytest.approx(index(texts["a"], texts["b"]))


def test_short_texts_are_duplicates_only_of_themselves() -> None:
    texts = {"a": "list files", "b": "List files!", "c": "list folders", "d": ""}
    assert [(item.task_id, item.kept) for item in near_duplicates(texts, list(texts), 0.5)] == [("b", "a")]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="in \\(0, 1\\]"):
        near_duplicates({}, [], 0.0)
    with pytest.raises(ValueError, match="every task"):
        near_duplicates({"a": "x"}, ["a", "b"], 0.5)


@settings(max_examples=10)
@example([49, 67], 0.5)  # 38 of 74: an index of bands that suit the threshold proposes it only mostly
@given(st.lists(st.integers(0, 140), min_size=1, max_size=12, unique=True), st.sampled_from([0.3, 0.5, 0.8]))
def test_no_two_kept_tasks_are_as_near_as_the_threshold_and_no_task_is_dropped_for_less(
    starts: list[int], threshold: float
) -> None:
    texts = {f"t{start:03}": text(start) for start in starts}
    dropped = near_duplicates(texts, list(texts), threshold)
    for item in dropped:
        assert item.jaccard == pytest.approx(index(texts[item.task_id], texts[item.kept]))
        assert item.jaccard >= threshold
    gone = {item.task_id for item in dropped}
    kept = [task for task in texts if task not in gone]
    assert {item.kept for item in dropped} <= set(kept)
    pairs = [(one, other) for at, one in enumerate(kept) for other in kept[:at]]
    assert all(index(texts[one], texts[other]) < threshold for one, other in pairs)
