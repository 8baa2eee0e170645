"""A task whose own tests are a pytest, with steps of ours after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.harness import verify_result
from components.pool.outline import Check, Outline, Step
from components.records import AssertionOutcome
from components.sandbox import SandboxBackend
from components.synthesis.extension import Extension
from tests.harness.parts import PlainTask
from tests.harness.test_forgery import PYTEST, PYTHON
from tests.sandbox.conftest import needs_root

TESTS = "def test_word(): assert open('word').read() == 'fig\\n'\ndef test_there(): assert open('there')\n"
MORE = Outline((Step("copy", "Copy word to more.", "cp word more", (Check("equals", ("equals", "more", "fig")),)),), {})
PASSED, FAILED = AssertionOutcome.PASSED, AssertionOutcome.FAILED
OURS, VERDICT, WORD, THERE = (
    "1-copy:equals",
    "origin:verdict",
    "test_outputs.py::test_word",
    "test_outputs.py::test_there",
)


@pytest.mark.nightly
@needs_root
@pytest.mark.parametrize(
    ("work", "outcomes"),
    [
        ("touch there; echo fig > word; cp word more", {OURS: PASSED, VERDICT: PASSED, WORD: PASSED, THERE: PASSED}),
        ("touch there; echo fig > word", {OURS: FAILED, VERDICT: PASSED, WORD: PASSED, THERE: PASSED}),
        ("echo fig > word; cp word more", {OURS: PASSED, VERDICT: FAILED, WORD: PASSED, THERE: FAILED}),
    ],
)
async def test_every_test_of_the_pytest_is_told_beside_ours(
    backend: SandboxBackend, tmp_path: Path, work: str, outcomes: dict[str, AssertionOutcome]
) -> None:
    files = Extension(tmp_path, "/app", "Do it.", "true\n", PYTEST).files(MORE)
    for name in ("test.sh", "origin.sh"):
        (tmp_path / name).write_text(files[f"tests/{name}"])
    (tmp_path / "test_outputs.py").write_text(TESTS)
    box = await backend.start(PYTHON)
    await box.exec(["/bin/bash", "-c", work], timeout_s=10)
    report = (await verify_result(box, PlainTask(tmp_path, PYTHON), timeout_s=20)).report
    await box.stop()
    assert {name.removeprefix("../tests/"): said for name, said in report.assertions.items()} == outcomes
    assert report.outcome is (set(outcomes.values()) == {PASSED})
