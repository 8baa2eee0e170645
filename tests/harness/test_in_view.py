"""What a verifier finds at hand in its view, run by the Pythons that images have."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

IN_VIEW = Path(__file__).parents[2] / "components" / "harness" / "in_view"
PYENV = Path.home() / ".pyenv" / "versions"
TELL = "import json, sys; print(json.dumps([__file__, sys.argv[1:], sys.path[0], sys.path[-1]]))"


@pytest.fixture(scope="module", params=["3.8", "3.9", "3.10", "this"])
def python(request: pytest.FixtureRequest) -> str:
    if request.param == "this":
        return sys.executable
    found = [*map(str, sorted(PYENV.glob(f"{request.param}.*/bin/python"))), shutil.which(f"python{request.param}")]
    for place in filter(None, found):
        if subprocess.run([place, "-c", ""], capture_output=True, check=False).returncode == 0:
            return place
    pytest.skip(f"no Python {request.param} is installed here")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a verifier whose pytest only tells where it was found; in the working folder is another one."""
    site, work = tmp_path / "site", tmp_path / "work"
    (site / "pytest").mkdir(parents=True)
    (site / "pytest" / "__init__.py").touch()
    (site / "pytest" / "__main__.py").write_text(TELL)
    work.mkdir()
    for name in ("pytest.py", "json.py", "runpy.py"):
        (work / name).write_text("print('[\"planted\"]'); raise SystemExit")
    return {"PYTHONPATH": f"{IN_VIEW}:{site}", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize(
    "options", [["-m", "pytest"], ["-mpytest"], ["-um", "pytest"], ["-W", "ignore", "-Xfaulthandler", "-m", "pytest"]]
)
def test_the_working_folder_does_not_give_pytest_its_modules(
    python: str, environment: dict[str, str], tmp_path: Path, options: list[str]
) -> None:
    # Before Python 3.11 there is no -P: an agent's /app/pytest.py was what ran.
    words = ["-m", "not slow", "test_a.py"]
    done = subprocess.run(
        [python, *options, *words], cwd=tmp_path / "work", env=environment, capture_output=True, check=True
    )
    where, heard, _, last = json.loads(done.stdout)
    assert where == str(tmp_path / "site" / "pytest" / "__main__.py")
    assert (heard, last) == (words, str(tmp_path / "work"))


def test_other_programs_find_their_modules_where_they_look_for_them(
    python: str, environment: dict[str, str], tmp_path: Path
) -> None:
    work = tmp_path / "mine"
    work.mkdir()
    (work / "mine.py").write_text(TELL)
    for options in (["-m", "mine", "-m", "pytest"], ["mine.py", "-m", "pytest"]):
        done = subprocess.run([python, *options], cwd=work, env=environment, capture_output=True, check=True)
        assert json.loads(done.stdout)[1] == ["-m", "pytest"]


def test_the_plugin_is_loaded_by_every_python_and_speaks(python: str, environment: dict[str, str]) -> None:
    # Its annotations could not be evaluated before Python 3.10: no pytest of theirs began at all.
    speak = "import longshell_report as plugin; plugin.say(collected=[]); print(plugin.CHANNEL[0])"
    line = f"exec 3>&1; {python} -c '{speak}' 4<<< secret"
    done = subprocess.run(["/bin/bash", "-c", line], env=environment, capture_output=True, check=True)
    assert done.stdout == b'{"nonce": "secret", "collected": []}\n3\n'
