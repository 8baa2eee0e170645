"""What may not be trained on is taken out of a folder before any task is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.curation import Benchmark, screen
from components.errors import TaskError
from tests.curation.test_contamination import BREAD, PLANETS, REWORDED, task


def test_contaminated_tasks_and_near_duplicates_are_taken_out_with_their_reasons(tmp_path: Path) -> None:
    for name, text in (("planets", PLANETS), ("llamas", "Count the llamas."), ("yaks", "Count the yaks.")):
        task(tmp_path / "heldout" / name, text)
    heldout = Benchmark(tmp_path / "heldout")
    folder = tmp_path / "train"
    for name, text in (("bread", BREAD), ("bun", f"{BREAD} Hurry."), ("copy", PLANETS), ("stars", REWORDED)):
        task(folder / name, text)
    left_out = screen(folder, [heldout], jaccard=0.1, near_duplicate=0.8)
    assert [(each.task, each.reason) for each in left_out] == [
        ("copy", "contaminated"),
        ("stars", "contaminated"),
        ("bun", "near_duplicate"),
    ]
    assert "with the instruction of heldout/planets: 'every file below" in left_out[0].detail
    assert left_out[2].detail.startswith("of bread, Jaccard index 0.9")
    assert [path.name for path in folder.iterdir()] == ["bread"]


def test_near_duplicates_stay_where_nobody_minds(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    for name in ("bread", "bun"):
        task(folder / name, BREAD)
    assert screen(folder, [], jaccard=0.1, near_duplicate=None) == []


def test_a_folder_of_which_nothing_may_be_trained_on_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    folder = task(tmp_path / "train" / "copy", PLANETS).parent
    with pytest.raises(TaskError, match="no task may be trained on"):
        screen(folder, [Benchmark(folder)], jaccard=0.1, near_duplicate=0.8)
    assert (folder / "copy").is_dir()
