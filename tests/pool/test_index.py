"""The pool's index, its order and its cursor."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import PoolConfig
from components.errors import TaskError
from components.pool import Cursor, Pool, Split, build_pool, index_folder, write_index
from components.records import TaskRef


def pool_of(folder: Path, count: int) -> Pool:
    return write_index(folder, [TaskRef("p", f"t{i}", "d", "files") for i in range(count)])


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    return pool_of(tmp_path_factory.mktemp("forty"), 40)


def test_an_epoch_visits_every_task_once_in_an_order_of_its_own(forty: Pool) -> None:
    first, second = forty.permutation(1, 0).tolist(), forty.permutation(1, 1).tolist()
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    assert first != list(range(40)), "sequential reading is an error"
    assert forty.permutation(1, 0).tolist() == first
    assert forty.permutation(2, 0).tolist() != first


def test_reading_a_pool_in_its_stored_order_is_refused(forty: Pool) -> None:
    for read in (list, iter, sorted):
        with pytest.raises(TypeError, match="ask `draw`"):
            read(forty)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1_000), st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_a_draw_holds_no_task_twice_and_continues_from_its_cursor_alone(
    forty: Pool, seed: int, counts: list[int]
) -> None:
    cursor = Cursor(seed)
    for count in counts:
        refs, after = forty.draw(cursor, count)
        assert len({ref.task_id for ref in refs}) == count
        assert after.position >= cursor.position + count
        assert forty.draw(Cursor(cursor.seed, cursor.position), count) == (refs, after)
        cursor = after


def test_an_epoch_drawn_in_parts_is_the_permutation(forty: Pool) -> None:
    cursor, drawn = Cursor(3), []
    for _ in range(4):
        refs, cursor = forty.draw(cursor, 10)
        drawn += [ref.task_id for ref in refs]
    assert drawn == [f"t{index}" for index in forty.permutation(3, 0)]


def test_drawing_more_than_the_pool_holds_is_refused(forty: Pool) -> None:
    with pytest.raises(ValueError, match="cannot draw 41 distinct tasks from a pool of 40"):
        forty.draw(Cursor(0), 41)


def test_a_sample_is_the_same_every_time(forty: Pool) -> None:
    assert forty.sample(8, 5) == forty.sample(8, 5)
    assert forty.sample(8, 5) != forty.sample(8, 6)


def test_the_index_keeps_every_field_of_a_reference(tmp_path: Path) -> None:
    ref = TaskRef("p", "t", "d", "text", ("a", "b"), ("x", "y"), ("x",), ("y",), "hard")
    assert write_index(tmp_path, [ref]).refs == (ref,)


def test_a_pool_without_index_or_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"pool\.parquet: cannot be read"):
        Pool(tmp_path)
    (tmp_path / "pool.parquet").write_bytes(b"not parquet")
    with pytest.raises(TaskError, match=r"pool\.parquet: cannot be read"):
        Pool(tmp_path)
    with pytest.raises(TaskError, match="holds no task"):
        write_index(tmp_path, [])


def test_a_task_that_changed_since_it_was_indexed_is_refused(tmp_path: Path) -> None:
    pool = build_pool(PoolConfig(), Split.TRAIN, seed=1, count=2, folder=tmp_path / "train")
    assert pool.load("train-00001").ref == pool.refs[1]
    (pool.folder / "train-00001" / "instruction.md").write_text("1:something else\n")
    with pytest.raises(TaskError, match="changed since it was indexed"):
        pool.load("train-00001")
    with pytest.raises(TaskError, match="is not in"):
        pool.load("train-00007")


def test_indexing_lists_the_problems_of_every_task(tmp_path: Path) -> None:
    pool = build_pool(PoolConfig(), Split.TRAIN, seed=1, count=3, folder=tmp_path / "train")
    (pool.folder / "train-00000" / "instruction.md").unlink()
    (pool.folder / "train-00002" / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError) as caught:
        index_folder(pool.folder)
    assert caught.value.problems == (
        "train-00000/instruction.md: missing",
        "train-00002/tests/: test.sh is missing",
    )


def test_building_the_same_pool_again_is_free_and_another_over_it_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pools" / "heldout"
    first = build_pool(PoolConfig(), Split.HELDOUT, seed=1, count=5, folder=folder)
    assert build_pool(PoolConfig(), Split.HELDOUT, seed=1, count=5, folder=folder).refs == first.refs
    with pytest.raises(TaskError, match="holds another pool"):
        build_pool(PoolConfig(), Split.HELDOUT, seed=2, count=5, folder=folder)
    assert [path.name for path in folder.parent.iterdir()] == ["heldout"], "nothing half-written is left"
    with pytest.raises(TaskError, match="not a generated pool"):
        build_pool(PoolConfig(), Split.TRAIN, seed=1, count=1, folder=tmp_path)
