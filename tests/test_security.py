"""What docs/security.md says of the code, held over all of it: each rule, with the places that may depart from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
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
    "components/trainer/ranks/wire.py",
    "components/trainer/ranks/__main__.py",
}
"""Between processes of one user, over a socket pair."""
UNPACKED = {"components/sandbox/zygote/transfer.py"}
"""It unpacks within a box what the same box's like has packed. Elsewhere `components.sandbox.unpack` does."""
OPENED = {"components/sandbox/docker/tools.py", "components/sandbox/zygote/transfer.py"}
"""Where `tarfile.open` is called: to write; and within a box. Elsewhere archives are read as `archive.Archive`."""
EVALUATED = {"components/harness/harbor.py"}
"""The texts of an installed Harbor, compiled from its own sources."""
SERIALIZERS = ("pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal")
"""Modules whose data is a program: who imports one may read with it, however it spells that."""
UNPACKING = re.compile(r"^(?!components\.).*\.(extract|extractall|unpack_archive)$")
SHELLS = (
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    "asyncio.create_subprocess_shell",
)
OPEN = {"0.0.0.0", "::", ""}
"""What a socket takes for every address of its machine, where a host is expected."""
HOSTS = {"host", "hostname", "address", "bind", "listen", "interface"}
WRITTEN_OPEN = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d.])|\[::\]")
"""The same within a text, which nothing but a listener has a use for."""
SUSPECT = re.compile(
    r"pickle|joblib|shelve|marshal|dill\b|\bload\b|yaml|[. ]extract(all)?\b|unpack_archive|(?<![\w.])(eval|exec)\b"
    r"|tarfile|shell=|_shell\b|os\b.*(system|popen)|get(status)?output|trust_remote_code"
    r"|0\.0\.0\.0|\[::\]|[\"']::[\"']|\(\s*(?!\"{3})[\"']{2}|=\s*[\"']{2}[^\"']"
)
"""What is looked for: a file without any of it need not be parsed."""


@dataclass(frozen=True)
class Source:
    """A file, by what it imports, names, calls and says."""

    file: str
    nodes: tuple[ast.AST, ...]

    @classmethod
    def of(cls, file: str, text: str) -> Source:
        return cls(file, tuple(ast.walk(ast.parse(text))))

    @cached_property
    def imported(self) -> dict[str, str]:
        """Names, with the dotted names of what they stand for."""
        names = {}
        for node in self.nodes:
            for alias in node.names if isinstance(node, ast.Import) else ():
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                names[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"  # type: ignore[attr-defined]
        return names

    @cached_property
    def named(self) -> set[str]:
        """Dotted names of all that it imports or speaks of, called or not."""
        spoken = {self.dotted(node) for node in self.nodes if isinstance(node, ast.Name | ast.Attribute)}
        return spoken | set(self.imported.values())

    def dotted(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self.dotted(node.value)}.{node.attr}"
        return self.imported.get(node.id, node.id) if isinstance(node, ast.Name) else "_"

    def given(self, argument: str) -> set[str]:
        """Values of a named argument, wherever it is given."""
        keywords = (node for node in self.nodes if isinstance(node, ast.keyword) and node.arg == argument)
        return {ast.unparse(keyword.value) for keyword in keywords}

    @cached_property
    def open(self) -> set[str]:
        """What it says that a listener would take for every address."""
        documented = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        said = [node for node in self.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        found = {node.value for node in said if id(node) not in documented and WRITTEN_OPEN.search(str(node.value))}
        hosts = {node.value for node in self._hosts() if isinstance(node, ast.Constant)}
        return {str(host) for host in found | (hosts & OPEN)}

    def _hosts(self) -> Iterator[ast.expr | None]:
        """Where a host is expected: by an argument's or a variable's name, or first in a tuple that a call is given."""
        for node in self.nodes:
            match node:
                case ast.Call():
                    yield from (one.elts[0] for one in node.args if isinstance(one, ast.Tuple) and len(one.elts) > 1)
                case ast.keyword(arg=str(name), value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value) if (
                    name in HOSTS
                ):
                    yield value
                case ast.arguments():
                    yield from (value for name, value in _defaults(node) if name in HOSTS)


def _defaults(said: ast.arguments) -> Iterator[tuple[str, ast.expr | None]]:
    named = [one.arg for one in (*said.posonlyargs, *said.args)]
    yield from zip(named[len(named) - len(said.defaults) :], said.defaults, strict=True)
    yield from zip([one.arg for one in said.kwonlyargs], said.kw_defaults, strict=True)


@cache
def sources() -> tuple[Source, ...]:
    """The files that have anything to look at."""
    return tuple(
        Source.of(str(path.relative_to(REPOSITORY)), text)
        for folder in SOURCES
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if SUSPECT.search(text := path.read_text())
    )


def unpickling(found: Iterable[Source]) -> set[str]:
    """Files that import a module whose data is a program."""
    return {
        source.file
        for source in found
        if any(name.partition(".")[0] in SERIALIZERS for name in source.imported.values())
    }


def users(found: Iterable[Source], *names: str) -> set[str]:
    return {source.file for source in found if source.named & set(names)}


def unpacking(found: Iterable[Source]) -> set[str]:
    """Files that speak of an archive's members being unpacked, whatever the archive is called."""
    return {source.file for source in found if any(UNPACKING.search(name) for name in source.named)}


def given(argument: str) -> set[str]:
    return {value for source in sources() for value in source.given(argument)}


def test_nothing_is_unpickled_but_between_processes_of_one_user() -> None:
    assert unpickling(sources()) == UNPICKLED
    assert users(sources(), "torch.load") == set()
    assert given("allow_pickle") <= {"False"}
    assert given("trust_remote_code") <= {"False"}


def test_yaml_is_read_as_data() -> None:
    assert users(sources(), *(f"yaml.{name}" for name in ("load", "unsafe_load", "full_load", "load_all"))) == set()
    assert users(sources(), "yaml.safe_load") != set()


def test_archives_are_unpacked_on_this_machine_by_the_one_function_that_follows_no_link() -> None:
    assert unpacking(sources()) == UNPACKED


def test_archives_are_read_on_this_machine_by_the_one_class_that_bounds_what_they_say() -> None:
    assert users(sources(), "tarfile.open") == OPENED


def test_no_text_becomes_a_program() -> None:
    assert users(sources(), "eval", "exec") <= EVALUATED
    assert users(sources(), *SHELLS) == set()
    assert given("shell") <= {"False"}


def test_services_of_ours_are_told_to_listen_on_this_machine_alone(tmp_path: Path) -> None:
    site = Site.current({"LONGSHELL_HOME": str(tmp_path), "PREFECT_API_URL": "http://127.0.0.1:1/api"})
    (tmp_path / "stack").mkdir()
    for build in (services.prefect, services.mlflow, services.ray):
        words = build(site).argv
        assert any("127.0.0.1" in word for word in words), words
        assert not any(WRITTEN_OPEN.search(word) or word in OPEN for word in words), words
    assert site.ray_token.stat().st_mode & 0o077 == 0


def test_no_default_listens_to_everybody() -> None:
    assert {source.file: source.open for source in sources() if source.open} == {}
    assert PublishConfig().host == "127.0.0.1"
    assert SamplerConfig().urls == ()


PASSED_ONCE = (
    "from pickle import loads\nloads(b'')",
    "import pickle as p\nread = p.loads",
    "import cloudpickle",
    "from torch import load",
    "import torch as t\nt.load(x)",
    "from yaml import load\nload(x)",
    "self._tar.extractall(x)",
    "tarfile.open(x).extractall()",
    "from shutil import unpack_archive",
    "run = exec",
    "from os import system as run",
    "subprocess.getoutput(x)",
    "socket.bind(('::', 80))",
    "socket.bind(('', 80))",
    "f'http://0.0.0.0:{port}'",
    "serve('tcp://[::]:80')",
    "serve(host='')",
    "def serve(port: int, host: str = ''): ...",
    "class Settings:\n    host: str = '::'",
)


@pytest.mark.parametrize("text", PASSED_ONCE)
def test_an_ordinary_spelling_of_what_is_forbidden_is_seen(text: str) -> None:
    assert SUSPECT.search(text), "the file would not be parsed"
    source = Source.of("file", text)
    forbidden = ("torch.load", "yaml.load", "eval", "exec", *SHELLS)
    found = (unpickling([source]), users([source], *forbidden), unpacking([source]), source.open)
    assert sum(map(bool, found)) == 1, found


def test_what_only_looks_alike_is_left_alone() -> None:
    text = (
        "'''Listens on 0.0.0.0 if told to.'''\nimport json as p\n"
        "p.loads(x)\nbox.exec(x)\n'::'.join(x)\nserve(host='127.0.0.1', name='')"
    )
    source = Source.of("file", text)
    assert not (unpickling([source]) | users([source], "eval", "exec") | unpacking([source]) | source.open)


@pytest.mark.parametrize("claim", claims("docs/security.md"), ids=lambda claim: claim.name)
def test_what_the_threat_model_names_exists(claim: object) -> None:
    assert missing_tests(claim) == []


def test_every_threat_names_its_defence_its_code_and_its_test() -> None:
    rows = claims("docs/security.md")
    assert len(rows) >= 25
    assert [row.name for row in rows if not row.code] == []
    assert [row.name for row in rows if not row.tests] == []
