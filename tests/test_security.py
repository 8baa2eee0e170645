"""What docs/security.md says of the code, held over all of it: each rule, with the places that may depart from it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from components.cluster import REPOSITORY
from components.config import SamplerConfig
from components.config.sampler import PublishConfig
from tasks.site import Site
from tasks.stack import services
from tests.documents import claims, missing_tests

SOURCES = ("components", "tasks", "flows")
UNPICKLED = {
    "components/sandbox/host/wire.py",
    "components/trainer/ranks/wire.py",
    "components/trainer/ranks/__main__.py",
}
"""Between processes of one user: a socket pair, a socket in a folder that is its user's alone, or behind a token."""
UNPACKED = {"components/sandbox/unpack.py", "components/sandbox/zygote/transfer.py"}
"""The second unpacks within a box what the same box's like has packed."""
EVALUATED = {"components/harness/harbor.py"}
"""The texts of an installed Harbor, compiled from its own sources."""
OPEN = {"0.0.0.0"}
SUSPECT = re.compile(
    r"pickle|torch\.load|joblib|shelve|marshal|dill|yaml\.|\.extract(all)?\(|unpack_archive|(?<![\w.])(eval|exec)\("
    r"|\bshell=|os\.(system|popen)|0\.0\.0\.0|trust_remote_code"
)
"""What is looked for: a file without any of it need not be parsed."""


@cache
def nodes() -> tuple[tuple[str, ast.Call | ast.Constant], ...]:
    """Every call and every constant of the files that have anything to look at."""
    return tuple(
        (str(path.relative_to(REPOSITORY)), node)
        for folder in SOURCES
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if SUSPECT.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call | ast.Constant)
    )


@cache
def calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """Every call: its file, the dotted name of what is called, the call."""
    return tuple((file, dotted(node.func), node) for file, node in nodes() if isinstance(node, ast.Call))


def dotted(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return f"{dotted(called.value)}.{called.attr}"
    return called.id if isinstance(called, ast.Name) else "_"


def users(*names: str) -> set[str]:
    return {file for file, name, _ in calls() if name in names}


def given(argument: str) -> set[tuple[str, str]]:
    """Files and values of a named argument, wherever it is given."""
    return {
        (file, ast.unparse(keyword.value))
        for file, _, call in calls()
        for keyword in call.keywords
        if keyword.arg == argument
    }


def test_nothing_is_unpickled_but_between_processes_of_one_user() -> None:
    assert users("pickle.loads", "pickle.load", "pickle.Unpickler", "cloudpickle.loads") == UNPICKLED
    assert users("torch.load", "joblib.load", "shelve.open", "marshal.loads", "dill.loads") == set()
    assert {value for _, value in given("allow_pickle")} <= {"False"}
    assert {value for _, value in given("trust_remote_code")} <= {"False"}


def test_yaml_is_read_as_data() -> None:
    assert users("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all") == set()
    assert users("yaml.safe_load") != set()


def test_archives_are_unpacked_on_this_machine_by_the_one_function_that_follows_no_link() -> None:
    found = {file for file, name, _ in calls() if re.fullmatch(r"\w+\.(extract|extractall|unpack_archive)", name)}
    assert found == UNPACKED


def test_no_text_becomes_a_program() -> None:
    assert users("eval", "exec") <= EVALUATED
    assert users("os.system", "os.popen") == set()
    assert {value for _, value in given("shell")} <= {"False"}


def test_services_of_ours_listen_on_this_machine_alone(tmp_path: Path) -> None:
    site = Site.current({"LONGSHELL_HOME": str(tmp_path), "PREFECT_API_URL": "http://127.0.0.1:1/api"})
    (tmp_path / "stack").mkdir()
    for build in (services.prefect, services.mlflow, services.ray):
        words = build(site).argv
        assert any("127.0.0.1" in word for word in words), words
        assert not any(address in word for word in words for address in OPEN)
    assert site.ray_token.stat().st_mode & 0o077 == 0


def test_no_default_listens_to_everybody() -> None:
    spoken = {file for file, node in nodes() if isinstance(node, ast.Constant) and node.value in OPEN}
    assert spoken == set()
    assert PublishConfig().host == "127.0.0.1"
    assert SamplerConfig().urls == ()


@pytest.mark.parametrize("claim", claims("docs/security.md"), ids=lambda claim: claim.name)
def test_what_the_threat_model_names_exists(claim: object) -> None:
    assert missing_tests(claim) == []


def test_every_threat_names_its_defence_its_code_and_its_test() -> None:
    rows = claims("docs/security.md")
    assert len(rows) >= 25
    assert [row.name for row in rows if not row.code] == []
    assert [row.name for row in rows if not row.tests] == []
