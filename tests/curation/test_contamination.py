"""A benchmark's task is found in a pool however it was renamed or reworded; what tasks share with everyone is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.curation.__main__ import main
from components.curation.contamination import WINDOW, Benchmark, Contamination, contaminations, summary
from components.curation.shingles import windows, words_of
from components.errors import TaskError

BENCHMARK = Path(__file__).parents[3] / "shared" / "data" / "terminal-bench-2"
BOILERPLATE = """#!/bin/bash
apt-get update && apt-get install -y curl
curl -LsSf https://installer.invalid/uv/install.sh | sh
uvx --with pytest==8.4.1 pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
PLANETS = (
    "Every file below /srv/observatory holds one night of measurements. Merge them into /srv/planets.csv, sorted "
    "by right ascension, drop what was measured twice, and write the number of dropped lines to /srv/dropped.txt."
)
REWORDED = (
    "Below /srv/observatory every file holds one night of measurements. Merge them all into /srv/planets.csv, sorted "
    "by right ascension, drop what was measured more than once, and write how many lines were dropped to "
    "/srv/dropped.txt."
)
BREAD = (
    "A bakery keeps its recipes as YAML under /home/baker. Some of them name an oven that was sold last year. Move "
    "these to /home/baker/old and print the name of each recipe once, with the oven that should replace the sold one."
)


def task(folder: Path, instruction: str, solution: str = "", tests: str = BOILERPLATE) -> Path:
    for path, text in (("instruction.md", instruction), ("solution/solve.sh", solution), ("tests/test.sh", tests)):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


@pytest.fixture
def benchmark(tmp_path: Path) -> Benchmark:
    suite = tmp_path / "suite"
    task(
        suite / "planets",
        PLANETS,
        "sort -u /srv/observatory/* > /srv/planets.csv; wc -l < /srv/lost > /srv/dropped.txt",
    )
    task(suite / "short", "Print hello world to /app/out.txt")
    for number in range(3):
        task(suite / f"other{number}", f"Task number {number} of this suite is about {number} llamas.")
    return Benchmark(suite)


def found(folder: Path, benchmark: Benchmark, threshold: float = 0.1) -> list[Contamination]:
    return contaminations([folder], [benchmark], threshold).get(folder.name, [])


def test_a_copy_under_another_name_is_quoted(tmp_path: Path, benchmark: Benchmark) -> None:
    [evidence] = found(task(tmp_path / "stars", f"You are an astronomer.\n\n{PLANETS.upper()}"), benchmark)
    assert (evidence.benchmark, evidence.benchmark_task, evidence.part) == ("suite", "planets", "instruction")
    assert evidence.measure == "windows"
    assert evidence.quote == "every file below srv observatory holds one night of measurements merge them into"
    assert 0.85 < evidence.value < 1, "four words of it are its own"


def test_what_was_reworded_is_found_by_its_five_grams(tmp_path: Path, benchmark: Benchmark) -> None:
    [evidence] = found(task(tmp_path / "stars", REWORDED), benchmark)
    assert (evidence.benchmark_task, evidence.part, evidence.measure) == ("planets", "instruction", "jaccard")
    assert evidence.value == pytest.approx(_jaccard(REWORDED, PLANETS))
    assert found(tmp_path / "stars", benchmark, threshold=0.9) == []


def _jaccard(ours: str, theirs: str) -> float:
    """Of word 5-grams, by sets of tuples."""
    one, other = ({tuple(w[i : i + 5]) for i in range(len(w) - 4)} for w in (words_of(ours), words_of(theirs)))
    return len(one & other) / len(one | other)


def test_another_task_is_clean_though_it_shares_the_boilerplate_of_the_benchmark(
    tmp_path: Path, benchmark: Benchmark
) -> None:
    assert found(task(tmp_path / "bread", BREAD, "grep -l sold /home/baker/*"), benchmark) == []


def test_a_solution_or_tests_that_were_taken_over_are_found_alone(tmp_path: Path, benchmark: Benchmark) -> None:
    stolen = "set -e\nsort -u /srv/observatory/* > /srv/planets.csv\nwc -l < /srv/lost > /srv/dropped.txt"
    [evidence] = found(task(tmp_path / "bread", BREAD, stolen), benchmark)
    assert (evidence.part, evidence.measure) == ("solution", "windows")


def test_a_text_shorter_than_a_window_is_a_copy_when_it_is_the_same(tmp_path: Path, benchmark: Benchmark) -> None:
    [evidence] = found(task(tmp_path / "a", "print  HELLO world, to /app/out.txt!"), benchmark)
    assert (evidence.benchmark_task, evidence.measure, evidence.value) == ("short", "copy", 1.0)
    assert found(task(tmp_path / "b", "Print goodbye to /app/out.txt"), benchmark) == []


def test_a_canary_is_told_without_its_benchmark(tmp_path: Path) -> None:
    guid = "0f6a4a52-5b6d-4a9c-8f41-3d2b7c1e9a10"
    folder = task(tmp_path / "bread", BREAD, f"# suite-canary GUID {guid}\necho")
    [evidence] = contaminations([folder], [], 0.1)["bread"]
    assert (evidence.benchmark, evidence.benchmark_task, evidence.part) == ("canary", guid, "solution")


def test_links_out_of_the_task_and_binary_files_are_not_read(tmp_path: Path, benchmark: Benchmark) -> None:
    folder, stolen = task(tmp_path / "bread", BREAD), tmp_path / "suite" / "planets" / "solution" / "solve.sh"
    (folder / "solution" / "link.sh").symlink_to(stolen)
    (folder / "solution" / "loop").symlink_to("loop")
    (folder / "solution" / "data.bin").write_bytes(b"\0" + stolen.read_bytes())
    assert found(folder, benchmark) == []


def test_what_is_hidden_behind_a_link_within_the_task_or_a_byte_that_is_no_text_is_read(
    tmp_path: Path, benchmark: Benchmark
) -> None:
    text = (tmp_path / "suite" / "planets" / "solution" / "solve.sh").read_bytes()
    for name in ("linked", "odd"):
        folder = task(tmp_path / name, BREAD)
        if name == "linked":
            (folder / "environment").mkdir()
            (folder / "environment" / "data").write_bytes(text)
            (folder / "solution" / "run").symlink_to("../environment/data")
        else:
            (folder / "solution" / "run").write_bytes(text + b" \xff\xfe")
        assert [evidence.part for evidence in found(folder, benchmark)] == ["solution"]


def test_a_folder_without_tasks_is_no_benchmark(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(TaskError, match="has no task"):
            Benchmark(folder)


def test_a_threshold_out_of_range_is_refused(tmp_path: Path, benchmark: Benchmark) -> None:
    for threshold in (0.0, 1.5):
        with pytest.raises(ValueError, match="in \\(0, 1\\]"):
            contaminations([tmp_path], [benchmark], threshold)


@given(st.lists(st.sampled_from("abc"), max_size=40), st.lists(st.sampled_from("abc"), max_size=40))
def test_windows_are_equal_where_their_words_are(ours: list[str], theirs: list[str]) -> None:
    hashes = [windows(words, WINDOW).tolist() for words in (ours, theirs)]
    texts = [[tuple(w[i : i + WINDOW]) for i in range(len(w) - WINDOW + 1)] for w in (ours, theirs)]
    assert [len(each) for each in hashes] == [len(each) for each in texts]
    known = dict(zip(hashes[0] + hashes[1], texts[0] + texts[1], strict=True))
    assert len(known) == len(set(texts[0] + texts[1])), "one hash a window, one window a hash"


def test_the_command_says_what_and_why(
    tmp_path: Path, benchmark: Benchmark, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = tmp_path / "pool"
    task(pool / "stars", PLANETS)
    task(pool / "bread", BREAD)
    task(pool / "toast", f"{BREAD} Hurry.")
    asked = [str(pool), "--benchmark", str(tmp_path / "suite"), "--near-duplicates", "0.8"]
    assert main(asked) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("stars: windows 1.000 with the instruction of suite/planets: 'every file")
    assert lines[1].startswith("toast: near duplicate of bread (Jaccard 0.9")
    assert json.loads(lines[-1]) == {"tasks": 3, "contaminated": 1, "near_duplicates": 1}

    assert main([*asked, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["by_benchmark"] == {"suite": 1}
    assert document["contaminated"]["stars"][0]["benchmark_task"] == "planets"

    shutil.rmtree(pool / "stars")
    shutil.rmtree(pool / "toast")
    assert main(asked) == 0
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "has no task: no" in capsys.readouterr().err


@pytest.mark.skipif(not BENCHMARK.is_dir(), reason="the public benchmark's tasks are not part of the repository")
def test_public_tasks_are_found_renamed_and_reworded(tmp_path: Path) -> None:
    suite = Benchmark(BENCHMARK)
    originals = sorted(path.parent for path in BENCHMARK.glob("*/instruction.md"))
    for original in originals:
        copy = tmp_path / f"renamed-{original.name}"
        shutil.copytree(original, copy)
        for path in (path for path in copy.rglob("*") if path.suffix in (".md", ".sh", ".py")):
            lines = path.read_text().splitlines()
            path.write_text("\n".join(line for line in lines if "canary" not in line.lower()))
        words = (copy / "instruction.md").read_text().split(" ")
        words[9::10] = [f"really {word}" for word in words[9::10]]  # No 13 of the original's words stand in a row.
        (copy / "instruction.md").write_text(" ".join(words))
    result = contaminations(sorted(tmp_path.iterdir()), [suite], 0.1)
    for original in originals:
        evidence = {item.part: item for item in sorted(result[f"renamed-{original.name}"], key=lambda item: item.value)}
        assert evidence.keys() == {"instruction", "solution", "tests"}
        assert {item.benchmark_task for item in evidence.values()} == {original.name}, "most of all it repeats that"
    assert summary(result) == {BENCHMARK.name: len(originals)}
