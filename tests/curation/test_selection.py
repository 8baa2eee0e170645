"""Who is selected, why the others are not, and what the selection is made of."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import PoolConfig, SelectionConfig
from components.curation import Candidate, assertion_statistics, composition, select
from components.curation.selection import UNNAMED
from components.pool import Split, generate, load_task
from components.pool.directory import write_task


def candidate(name: str, quality: float, category: str = "files", **groups: object) -> Candidate:
    return Candidate(name, quality, category, **groups)  # type: ignore[arg-type]


def test_the_best_are_taken_under_caps_and_everyone_else_has_a_reason() -> None:
    pool = [
        candidate("a", 0.90, parent="p"),
        candidate("b", 0.95, parent="p"),
        candidate("c", 0.99, "other", parent="q", cohort="k"),
        candidate("d", 0.85, cohort="k"),
        candidate("e", 0.80),
        candidate("f", 0.80, family="text"),
    ]
    found = select(pool, 3, SelectionConfig(per_parent=1, per_cohort=1))
    assert [each.task_id for each in found.selected] == ["c", "b", "e"]
    assert {each.task: (each.reason, each.detail) for each in found.left_out} == {
        "a": ("cap_parent", "place 3 of 6, quality 0.900: 1 better ones of parent p are selected"),
        "d": ("cap_cohort", "place 4 of 6, quality 0.850: 1 better ones of cohort k are selected"),
        "f": ("rank", "place 6 of 6, quality 0.800: 3 better ones are selected"),
    }
    assert [each.task_id for each in select(pool, 9, SelectionConfig(per_category=2)).selected] == ["c", "b", "a"]


groups = st.none() | st.sampled_from("xyz")
candidates = st.builds(
    Candidate,
    st.integers(0, 10**6).map(str),
    st.sampled_from([0.8, 0.9, 1.0]),
    st.sampled_from("uv"),
    groups,
    groups,
    groups,
    st.integers(0, 40),
    st.booleans(),
)


@settings(max_examples=30)
@given(
    st.lists(candidates, max_size=30, unique_by=lambda each: each.task_id),
    st.integers(0, 20),
    st.builds(
        SelectionConfig, *[], **{f"per_{name}": st.none() | st.integers(1, 4) for name in ("category", "family")}
    ),
)
def test_a_selection_holds_its_caps_names_everyone_once_and_does_not_depend_on_the_order(
    pool: list[Candidate], count: int, caps: SelectionConfig
) -> None:
    found = select(pool, count, caps)
    names = [each.task_id for each in found.selected] + [each.task for each in found.left_out]
    assert sorted(names) == sorted(each.task_id for each in pool)
    assert len(found.selected) <= count
    for name, limit in (("category", caps.per_category), ("family", caps.per_family)):
        sizes = Counter(getattr(each, name) for each in found.selected)
        del sizes[None]
        assert limit is None or all(size <= limit for size in sizes.values())
    shuffled = random.Random(0).sample(pool, len(pool))
    assert select(shuffled, count, caps) == found


def test_the_composition_stands_beside_the_papers() -> None:
    pool = [candidate("a", 1, "Debugging"), candidate("b", 1, "Debugging"), candidate("c", 1), candidate("d", 1)]
    rows = {row["category"]: row for row in composition(pool)}
    assert (rows["Debugging"]["tasks"], rows["Debugging"]["share"], rows["Debugging"]["target"]) == (2, 0.5, 0.0126)
    assert (rows["files"]["share"], rows["files"]["target"]) == (0.5, None)
    assert rows["Version control"] == {
        "category": "Version control",
        "tasks": 0,
        "binary_only": 0,
        "share": 0.0,
        "target": 0.093,
    }
    assert rows[UNNAMED]["tasks"] is None
    assert sum(row["target"] or 0 for row in rows.values()) == pytest.approx(1)


def test_the_implied_scale_is_the_90th_percentile_of_assertions() -> None:
    pool = [candidate(str(n), 1, assertions=n) for n in range(1, 11)]
    assert assertion_statistics(pool) == {
        "tasks": 10,
        "min": 1,
        "median": 5.5,
        "p90": 9,
        "max": 10,
        "implied_scale": 9,
        "binary_only": 0,
    }
    assert assertion_statistics([*pool, candidate("b", 1, assertions=1, binary_only=True)]) == {
        **assertion_statistics(pool),
        "binary_only": 1,
    }
    assert assertion_statistics([])["implied_scale"] is None


def test_groups_are_read_from_a_tasks_lineage_and_absent_where_it_names_none(tmp_path) -> None:
    write_task(next(iter(generate(PoolConfig(), Split.TRAIN, seed=3))), tmp_path / "t")
    manifest = tmp_path / "t" / "task.toml"
    manifest.write_text(manifest.read_text().replace("[metadata]", '[metadata]\nfamily = "text"\ncohort = 7'))
    found = Candidate.of(load_task(tmp_path / "t"), 0.9)
    assert (found.family, found.parent, found.cohort, found.quality) == ("text", None, "7", 0.9)
