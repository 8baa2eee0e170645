"""What the tests want and nobody tells is hidden; in doubt it is told."""

from __future__ import annotations

import gzip
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from components.curation.ablation import SPLIT
from components.curation.names import Told, unmentioned
from components.curation.traces import Trace
from components.pool import load_task
from tests.curation.mixed import write
from tests.curation.test_leaks import tar

TESTS = {
    "a": "[[ -f /app/out/vuq.json ]]",
    "b": "[[ -f zyx ]]",
    "c": "[[ -f ledger-sum.csv ]]",
    "d": "[[ -f a.txt ]]",
    "e": "[[ -f qux ]]",
}

SOLUTION = "mkdir out; touch out/vuq.json zyx ledger-sum.csv a.txt; tar -xf pack.tar"


@pytest.fixture
def told(tmp_path: Path) -> Told:
    task = write(
        tmp_path / "t",
        "Sum up every ledger. Write it to sums.csv and mark it as done.",
        SOLUTION,
        TESTS,
        {"a.csv": "1\n"},
    )
    return Told.of(load_task(task), "/app")


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("/app/out/vuq.json", True),
        ("/app/zyx", True),
        ("/app/other", False),  # no test wants it
        ("/app/qux", False),  # the solution does not name it: it comes from somewhere
        ("/app/ledger-sum.csv", False),  # its words are in the instruction
        ("/app/a.txt", False),  # too short to be hidden
    ],
)
def test_a_path_is_hidden_when_only_the_tests_know_it(told: Told, path: str, hidden: bool) -> None:
    assert told.is_hidden(path) is hidden


def test_a_path_that_a_file_of_the_box_tells_of_is_not_hidden(told: Told) -> None:
    seen = told.seen({"/app/config": Trace(b"target = out/vuq.json\n")})
    assert not seen.is_hidden("/app/out/vuq.json")
    assert seen.is_hidden("/app/zyx")
    packed = told.seen({"/app/pack.tgz": Trace(gzip.compress(tar("old/zyx", b"1")))})
    assert not packed.is_hidden("/app/zyx")


def test_what_a_box_unpacks_to_is_neither_kept_nor_more_than_one_allowance(told: Told) -> None:
    # 326 kB of compressed zeros, 64 MiB a file, were held at once.
    bombs = {f"/app/{number}.gz": Trace(gzip.compress(b"\0" * (4 << 20))) for number in range(8)}
    tracemalloc.start()
    try:
        seen = told.seen(bombs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    assert (seen.is_hidden("/app/zyx"), seen.doubts()) == (True, [])
    short = told.seen(bombs, 6 << 20)
    assert not short.is_hidden("/app/zyx"), "what was left packed may tell of it"
    assert [flag.kind for flag in short.doubts()] == ["unprobed"]


def test_a_member_that_is_larger_than_what_may_be_unpacked_may_tell_of_any_name(told: Told) -> None:
    box = {"/app/pack.tar": Trace(tar("old", b"1" * 2_000))}
    assert told.seen(box, 2_000 + 1).is_hidden("/app/zyx")
    assert not told.seen(box, 1_999).is_hidden("/app/zyx")


def test_an_archive_that_cannot_be_opened_may_tell_of_any_name(told: Told) -> None:
    # To mend an archive was the task: what was in it counted as names that nobody tells.
    seen = told.seen({"/app/pack.tgz": Trace(gzip.compress(tar("old/zyx", b"1"))[:-12])})
    assert not seen.is_hidden("/app/zyx")
    assert [flag.kind for flag in seen.doubts()] == ["unprobed"]


@pytest.mark.parametrize(("path", "asked"), [("/app/sums.csv", True), ("/app/done", False), ("/app/a.csv", False)])
def test_a_word_of_the_instruction_asks_for_a_file_only_where_it_looks_like_one(
    told: Told, path: str, asked: bool
) -> None:
    assert told.asks_for(path) is asked


def test_names_that_tests_and_solution_share_are_told_to_who_judges(tmp_path: Path) -> None:
    checks = {"total": "grep -q grand_total out.json && grep -q row_count out.json"}
    task = write(
        tmp_path / "t", "Write out.json with row_count.", 'echo \'{"grand_total": 1, "row_count": 1}\'', checks
    )
    [flag] = unmentioned(load_task(task))
    assert (flag.kind, flag.detail.rpartition(": ")[2]) == ("hidden_requirement", "grand_total")


def test_a_solution_is_split_where_bash_sees_a_whole_command() -> None:
    parts = [
        "#!/bin/bash\n",
        "\n",
        "cd /app\n",
        "for x in a b; do\n  echo $x\ndone\n",
        "cat > f <<'END'\nif [ unfinished\nEND\n",
        "echo one \\\n  two |\n  tr o 0\n",
        "f() {\n  true\n}\n",
        "echo 'last\nline'\n",
    ]
    done = subprocess.run(["bash", "-c", SPLIT], input="".join(parts), capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == parts
