"""Our bodies and answers against the protocol types in the files of SGLang wheels, which are read but not imported.

`bootstrap.sh` fetches 0.5.12.post1; LONGSHELL_SGLANG_FILES names a folder of another version (`uv pip install --no-deps
--target FOLDER sglang==0.5.23`).
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from components.records import Sampling
from components.sampler import GroupAddress, ModelGeometry, SGLangClient, TensorSpec
from components.sampler.client import _generate_body
from components.sampler.engine import Answer
from components.sampler.server.wire import ModelLimits, parse_delivery, parse_generate, parse_group, render_answer

LIMITS = ModelLimits(vocab=100, context=64, eos_ids=frozenset([1]))
FOLDERS = [Path(sys.prefix) / "sglang-files", *map(Path, filter(None, [os.environ.get("LONGSHELL_SGLANG_FILES")]))]
SESSION = {"/begin_weight_update", "/end_weight_update"}
"""Asked of every version, and answered 404 by those before 0.5.23."""


class Recorder(SGLangClient):
    """Keeps what it would send; every answer is a success."""

    def __init__(self) -> None:
        super().__init__("http://nowhere", model=ModelGeometry(100, 2, 4, 2, 64))
        self.sent: list[tuple[str, str, Any]] = []

    async def _send(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, str]:
        self.sent.append((method, path, body))
        return 200, '{"success": true, "weight_version": "3", "model_path": "/m", "enable_return_routed_experts": true}'


async def everything() -> Recorder:
    """A client that has made each of its calls."""
    client = Recorder()
    body = _generate_body([1, 2, 3], Sampling(0.5, 0.9, 20), 4, [2], 3)
    await client._call("POST", "/generate", body, 1.0)
    await client.abort_all()
    await client.pause()
    await client.flush_cache()
    await client.update_weights("/m", 3)
    await client.ranks()
    await client.join_group(GroupAddress("g", "127.0.0.1", 2_000, 2, "gloo"), 1)
    await client.begin_update()
    await client.receive([TensorSpec("w", "float32", (2, 2))], "g", 3, last=True)
    await client.end_update(3)
    await client.leave_group("g")
    await client.resume()
    await client.info()
    await client.probe(routing=True)
    await client.healthy()
    return client


class Wheel:
    """The protocol of one version, as far as its syntax trees tell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sglang"

    @cache  # noqa: B019  (two of them, for the time of a test run)
    def tree(self, name: str) -> ast.Module:
        return ast.parse((self.folder / name).read_text())

    def routes(self) -> dict[tuple[str, str], str | None]:
        """From (method, path) to the class of the body, None where the handler takes none."""
        found: dict[tuple[str, str], str | None] = {}
        for node in ast.walk(self.tree("srt/entrypoints/http_server.py")):
            if not isinstance(node, ast.AsyncFunctionDef):
                continue
            bodies = [_class_of(argument.annotation) for argument in node.args.args if argument.arg == "obj"]
            for call in (d for d in node.decorator_list if isinstance(d, ast.Call)):
                for method, path in _served(call):
                    found[method, path] = bodies[0] if bodies else None
        return found

    def fields(self, name: str, file: str = "srt/managers/io_struct.py") -> set[str]:
        """Annotated names of a class and of its bases in the same file."""
        classes = {node.name: node for node in ast.walk(self.tree(file)) if isinstance(node, ast.ClassDef)}
        node = classes[name]
        own = {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
        return own.union(*(self.fields(base, file) for base in bases))

    def sampling_params(self) -> set[str]:
        """What `SamplingParams` takes: constructor arguments, or fields."""
        file = "srt/sampling/sampling_params.py"
        for node in ast.walk(self.tree(file)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
        return self.fields("SamplingParams", file)


def _class_of(annotation: ast.expr | None) -> str:
    """`Body` of `obj: Body` and of `obj: Annotated[Body, ...]`."""
    assert annotation is not None
    names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
    return next(name for name in names if name != "Annotated")


def _served(decorator: ast.Call) -> list[tuple[str, str]]:
    """(method, path) of `@app.post(path)` or `@app.api_route(path, methods=[...])`."""
    if not (
        isinstance(decorator.func, ast.Attribute) and decorator.args and isinstance(decorator.args[0], ast.Constant)
    ):
        return []
    methods = [keyword.value for keyword in decorator.keywords if keyword.arg == "methods"]
    names = [decorator.func.attr.upper()] if not methods else ast.literal_eval(methods[0])
    return [(name, decorator.args[0].value) for name in names]


@pytest.fixture(scope="module", params=FOLDERS, ids=[folder.name for folder in FOLDERS])
def wheel(request: pytest.FixtureRequest) -> Wheel:
    if not (request.param / "sglang").is_dir():
        pytest.skip(f"{request.param} holds no SGLang")
    return Wheel(request.param)


async def test_every_call_of_the_client_is_a_route_and_every_key_a_field(wheel: Wheel) -> None:
    routes = wheel.routes()
    sent = (await everything()).sent
    assert len({path for _, path, _ in sent}) > 10
    for method, path, body in sent:
        if path in SESSION and (method, path) not in routes:
            continue
        assert (method, path) in routes
        kind = routes[method, path]
        if body:
            assert kind is not None, f"{path} takes no body"
            assert body.keys() <= wheel.fields(kind), path


async def test_every_sampling_key_is_a_parameter(wheel: Wheel) -> None:
    params = next(body for _, path, body in (await everything()).sent if path == "/generate")["sampling_params"]
    assert params.keys() <= wheel.sampling_params()


@pytest.fixture(scope="module")
def api_types(wheel: Wheel) -> ModuleType:
    path = wheel.folder / "api/v1/api_types.py"
    if not path.is_file():
        pytest.skip("types that check values came with 0.5.23")
    # By path: importing the package would need its whole GPU stack.
    spec = importlib.util.spec_from_file_location("sglang_api_types", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_the_client_sends_has_the_right_types(api_types: ModuleType) -> None:
    body = _generate_body([1, 2, 3], Sampling(), 4, [2], 0)
    assert api_types.GenerateRequest.from_json_value(body).input_ids is not None


def test_what_the_server_answers_has_the_right_types(api_types: ModuleType) -> None:
    body = _generate_body([1, 2, 3], Sampling(), 2, [2], 0)
    (call,), _ = parse_generate(body, LIMITS)
    answer = Answer(
        request=call.request,
        output_ids=np.array([4, 5], dtype=np.int32),
        logprobs=np.array([-1, -2], dtype=np.float32),
        routing=np.zeros((4, 2, 2), dtype=np.uint8),
        finish={"type": "length", "length": 2},
        cached_tokens=0,
        input_logprobs=None,
    )
    rendered = json.loads(json.dumps(render_answer(call, answer, "3", 0.1)))
    assert api_types.GenerateResponse.from_json_value(rendered) is not None


async def test_the_server_accepts_what_the_client_sends() -> None:
    bodies = {path: body for _, path, body in (await everything()).sent}
    ((call,), batched) = parse_generate(bodies["/generate"], LIMITS)
    assert not batched
    assert call.routing_start == 3
    request = call.request
    assert (request.temperature, request.top_p, request.top_k, request.max_new_tokens) == (0.5, 0.9, 20, 4)
    assert request.stop_ids == {1, 2}, "end of sequence stops too"
    assert parse_group(bodies["/init_weights_update_group"]) == (GroupAddress("g", "127.0.0.1", 2_000, 2, "gloo"), 1)
    delivered = parse_delivery(bodies["/update_weights_from_distributed"])
    assert delivered == ([TensorSpec("w", "float32", (2, 2))], "g", "3")
