"""Tasks of our own dialect as steps, and TOML."""

from __future__ import annotations

import tomllib
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config import PoolConfig
from components.errors import TaskError
from components.pool import Split, generate, read_outline
from components.pool.directory import write_task
from components.pool.toml_text import toml_text


def test_the_directory_of_an_outline_reads_back_as_that_outline(tmp_path: Path) -> None:
    tasks = generate(PoolConfig(), Split.TRAIN, seed=2)
    for _ in range(20):
        task = next(tasks)
        write_task(task, tmp_path / task.task_id)
        assert read_outline(tmp_path / task.task_id, task.outline.guards) == task.outline


@pytest.mark.parametrize("path", ["instruction.md", "solution/solve.sh", "tests/test.sh", "environment/Dockerfile"])
def test_a_task_that_is_not_ours_to_the_last_byte_is_refused(task_folder: Path, path: str) -> None:
    with (task_folder / path).open("a") as file:
        file.write("# one more line\n")
    with pytest.raises(TaskError, match="is not of our own dialect"):
        read_outline(task_folder, ())


VALUES = st.recursive(
    st.text()
    | st.integers(-(2**62), 2**62)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_what_is_written_as_toml_reads_back(document: dict) -> None:
    assert tomllib.loads(toml_text(document)) == document


def test_what_toml_has_no_word_for_is_refused() -> None:
    with pytest.raises(ValueError, match="None"):
        toml_text({"a": None})
