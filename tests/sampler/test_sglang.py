"""The command line of a replica, and that the parser of the stock wheel takes it."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from components.config import SamplerConfig, SGLangConfig, load
from components.config.sampler import HARMFUL, OWNED
from components.sampler.command import Place, sglang_command

FILES = Path(sys.prefix) / "sglang-files/sglang/srt"
PLACE = Place("10.0.0.7", 21_000, 21_001, 5)
CONFIGS = Path(__file__).parents[2] / "configs"


def command(routing: bool = True, slots: int = 64, **settings: Any) -> list[str]:
    config = SamplerConfig(engine="sglang", sglang=SGLangConfig(**settings), slots=slots, context_tokens=4_096)
    return sglang_command(config, Path("/models/m"), weight_version=0, place=PLACE, routing=routing)


def values(line: list[str]) -> dict[str, str]:
    """From each flag to what follows it; a switch is followed by nothing."""
    following = [*line[1:], ""]
    return {x: "" if y.startswith("--") else y for x, y in zip(line, following, strict=True) if x.startswith("--")}


def stock_parser() -> argparse.ArgumentParser:
    """`ServerArgs.add_cli_args` of the wheel, rebuilt from its syntax tree: names, types, choices and switches."""
    tree = ast.parse((FILES / "server_args.py").read_text())
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                constants[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    (method,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "add_cli_args"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    for node in ast.walk(method):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if (
            node.func.attr == "add_argument"
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "parser"
        ):
            _add(parser, node, constants)
    return parser


def _add(parser: argparse.ArgumentParser, call: ast.Call, constants: dict[str, Any]) -> None:
    names = [ast.literal_eval(argument) for argument in call.args]
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    options: dict[str, Any] = {}
    action = given.get("action")
    if isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
        parser.add_argument(*names, action=action.value)
        return
    if isinstance(kind := given.get("type"), ast.Name) and kind.id in ("int", "float", "str"):
        options["type"] = {"int": int, "float": float, "str": str}[kind.id]
    choices = given.get("choices")
    if isinstance(choices, ast.Name) and choices.id in constants:  # others are computed
        options["choices"] = constants[choices.id]
    elif isinstance(choices, ast.List):
        options["choices"] = ast.literal_eval(choices)
    if isinstance(action, ast.Attribute):  # argparse.BooleanOptionalAction
        options = {"action": argparse.BooleanOptionalAction}
    if isinstance(nargs := given.get("nargs"), ast.Constant):
        options["nargs"] = nargs.value
    parser.add_argument(*names, **options)


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    if not FILES.is_dir():
        pytest.skip(f"{FILES} holds no SGLang")
    return stock_parser()


PAPER = SGLangConfig(
    tp=8,
    dp=4,
    expert_parallel="deepep",
    deepep_mode="normal",
    deterministic=True,
    attention_backend="fa3",
    memory_fraction=0.85,
    memory_saver=True,
    fp32_lm_head=True,
    arguments=("--cuda-graph-max-bs", "64", "--moe-runner-backend=deep_gemm"),
)


@pytest.mark.parametrize("settings", [SGLangConfig(), SGLangConfig(tp=4, expert_parallel="plain"), PAPER], ids="123")
def test_the_stock_parser_takes_every_flag_for_what_it_is_meant(
    parser: argparse.ArgumentParser, settings: SGLangConfig
) -> None:
    line = command(**settings.model_dump())
    taken, rest = parser.parse_known_args(line[3:])
    assert rest == [], "no flag of the wheel"
    assert (taken.model_path, taken.host, taken.port, taken.nccl_port) == ("/models/m", "10.0.0.7", 21_000, 21_001)
    assert (taken.tensor_parallel_size, taken.random_seed, taken.weight_version) == (settings.tp, 5, "0")
    assert taken.enable_return_routed_experts
    assert taken.skip_tokenizer_init
    assert taken.enable_deterministic_inference == settings.deterministic
    assert taken.enable_dp_attention == (settings.dp > 1)
    assert taken.enable_memory_saver == settings.memory_saver
    assert (taken.moe_a2a_backend == "deepep") == (settings.expert_parallel == "deepep")
    assert (taken.expert_parallel_size == settings.tp) == (settings.expert_parallel != "none")
    if settings is PAPER:
        assert (taken.data_parallel_size, taken.deepep_mode, taken.attention_backend) == (4, "normal", "fa3")
        assert (taken.mem_fraction_static, taken.cuda_graph_max_bs) == (0.85, 64)


def test_every_flag_that_is_named_in_a_refusal_is_one_of_the_wheel(parser: argparse.ArgumentParser) -> None:
    known = set(parser._option_string_actions)
    assert {*OWNED, *HARMFUL} <= known


def test_what_a_flag_is_for_is_passed_only_when_it_is_asked_for() -> None:
    plain = values(command(routing=False))
    assert "--enable-return-routed-experts" not in plain
    assert not {"--dp-size", "--ep-size", "--moe-a2a-backend", "--attention-backend", "--enable-memory-saver"} & {
        *plain
    }
    assert plain["--chunked-prefill-size"] == "512"
    assert plain["--max-running-requests"] == "64"


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"tp": 8, "dp": 3, "expert_parallel": "deepep"}, "dp 3 does not divide tp 8"),
        ({"tp": 8, "dp": 2}, "dp needs expert_parallel: deepep"),
        ({"expert_parallel": "plain"}, "expert_parallel: plain needs tp > 1"),
        ({"tp": 2, "deepep_mode": "normal"}, "deepep_mode is of expert_parallel: deepep"),
        ({"deterministic": True, "attention_backend": "torch_native"}, "deterministic needs attention_backend"),
        ({"arguments": ("--tp", "8")}, "--tp is set by sampler.sglang.tp"),
        ({"arguments": ("--weight-version=7",)}, "--weight-version is set by Longshell"),
        ({"arguments": ("--enable-hierarchical-cache",)}, "stale routed experts"),
        ({"arguments": ("--enable-eplb",)}, "relabels experts"),
        ({"arguments": ("--pp-size", "2")}, "not published to pipeline ranks"),
        ({"arguments": ("--speculative-algorithm", "EAGLE")}, "does not count its tokens"),
    ],
)
def test_what_cannot_work_is_refused_with_the_configuration(settings: dict[str, Any], refused: str) -> None:
    with pytest.raises(ValidationError, match=refused):
        SGLangConfig(**settings)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"engine": "sglang", "urls": ("http://a:1", "http://b:1"), "replicas": 2}, "urls are the replicas"),
        ({"engine": "sglang", "urls": ("http://a:1", "http://a:1")}, "a url is given twice"),
        ({"replicas": 2, "min_healthy": 3}, r"min_healthy 3 is more than there are replicas \(2\)"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(changes: dict[str, Any], refused: str) -> None:
    with pytest.raises(ValidationError, match=refused):
        SamplerConfig(**changes)


@pytest.mark.parametrize("name", ["t1-122b", "qwen3-30b-a3b"])
def test_the_samplers_of_the_cluster_configurations_are_lines_that_the_wheel_takes(
    parser: argparse.ArgumentParser, name: str
) -> None:
    config = load(CONFIGS / f"{name}.yaml").sampler
    line = sglang_command(config, Path("/m"), weight_version=0, place=PLACE, routing=True)
    assert parser.parse_known_args(line[3:])[1] == []
