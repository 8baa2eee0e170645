"""Terminus-2's words, read at run time from an installed Harbor (`prompt_style: harbor`), for exact parity with it.

Harbor needs another Python than ours and is never imported: its parser is a module of the standard library alone and is
loaded by its path; the texts are taken out of its sources as expressions and evaluated. Nothing of it is kept here.

Invariant: every text is found once, or the installation is refused by a ConfigError that names what was not found.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

from components.errors import ConfigError
from components.harness.keys import typed
from components.harness.parse import DEFAULT_DURATION_S, Command, ParsedTurn

AGENT = "lib/python3.*/site-packages/harbor/agents/terminus_2"
SOURCES = ("terminus_2.py", "tmux_session.py")
TEXTS = {
    "rejected": ("_run_agent_loop", "prompt"),
    "warned": ("_run_agent_loop", "observation"),
    "cut_limit": ("_query_llm", "limit_str"),
    "cut_warnings": ("_query_llm", "warnings_text"),
    "cut": ("_query_llm", "error_msg"),
    "summary": ("_summarize", "summary_prompt"),
    "questions": ("_summarize", "question_prompt"),
    "answers": ("_summarize", "answer_request_prompt"),
    "handoff": ("_summarize", "handoff_prompt"),
}
"""Text -> the function and the variable that it is assigned to there."""
FUNCTIONS = ("_limit_output_length", "_get_completion_confirmation_message", "_get_error_response_type")
OUTPUT_FUNCTION = "get_incremental_output"
OUTPUTS = {"new_output": "new_content", "screen": "visible_screen"}
"""Text -> the variable that it shows, in what OUTPUT_FUNCTION returns."""


@dataclass(frozen=True, slots=True)
class HarborWording:
    """The texts and the parser of one installation. See `components.harness.prompt.Wording`."""

    template: str
    texts: dict[str, CodeType]
    functions: dict[str, Callable[..., Any]]
    parser: Any

    @property
    def separator(self) -> str:
        return "\n"

    def parse(self, text: str) -> ParsedTurn:
        try:
            found = self.parser.parse_response(text)
        except Exception as error:  # A foreign parser: what it stumbles over is an answer that cannot be read.
            return ParsedTurn(error=f"{type(error).__name__}: {error}")
        warnings = (found.warning,) if found.warning else ()
        if found.error:
            return ParsedTurn(warnings=warnings, error=found.error)
        commands = tuple(_command(item.keystrokes, item.duration) for item in found.commands)
        return ParsedTurn(str(found.analysis), str(found.plan), commands, bool(found.is_task_complete), warnings)

    def keys(self, keystrokes: str) -> str:
        return typed(keystrokes)

    def limited(self, output: str) -> str:
        return str(self.functions["_limit_output_length"](None, output))

    def opening(self, instruction: str, terminal: str) -> str:
        return self.template.format(instruction=instruction, terminal_state=terminal)

    def new_output(self, text: str) -> str:
        return self._say("new_output", new_content=text)

    def screen(self, text: str) -> str:
        return self._say("screen", visible_screen=text)

    def observation(self, output: str, warnings: tuple[str, ...] = ()) -> str:
        if not warnings:
            return self.limited(output)  # Once more, as Terminus-2 does, with what it makes of the first marker.
        feedback = f"WARNINGS: {warnings[0]}"
        agent = SimpleNamespace(_limit_output_length=self.limited)
        return self._say("warned", self=agent, feedback=feedback, terminal_output=output)

    def rejected(self, error: str, warnings: tuple[str, ...] = ()) -> str:
        feedback = "\n".join([f"ERROR: {error}", *(f"WARNINGS: {warning}" for warning in warnings)])
        kind = self.functions["_get_error_response_type"]
        agent = SimpleNamespace(_get_error_response_type=functools.partial(kind, _AGENT))
        return self._say("rejected", self=agent, feedback=feedback)

    def cut(self, text: str, tokens: int) -> str:
        warnings = self.parse(text).warnings
        told = self._say("cut_warnings", parse_result=SimpleNamespace(warning=warnings[0])) if warnings else ""
        return self._say("cut", limit_str=self._say("cut_limit", output_limit=tokens)) + told

    def confirm(self, output: str, warnings: tuple[str, ...] = ()) -> str:
        return str(self.functions["_get_completion_confirmation_message"](_AGENT, output))

    def summary(self, instruction: str) -> str:
        return self._say("summary", original_instruction=instruction)

    def questions(self, instruction: str, summary: str, screen: str) -> str:
        response = SimpleNamespace(content=summary)
        return self._say(
            "questions", original_instruction=instruction, summary_response=response, current_screen=screen
        )

    def answers(self, questions: str) -> str:
        return self._say("answers", model_questions=questions)

    def handoff(self, answers: str) -> str:
        return self._say("handoff", answers_response=SimpleNamespace(content=answers))

    def _say(self, name: str, /, **values: Any) -> str:
        return str(eval(self.texts[name], {}, values))


_AGENT = SimpleNamespace(options=SimpleNamespace(parser_name="json"), _parser_name="json")
"""What the functions read of their agent, in the versions that are known (0.7.0 to 0.26.0)."""


@functools.cache
def read_harbor(environment: Path) -> HarborWording:
    """The words of the Harbor in a virtual environment.

    Raises:
        ConfigError: there is none, or its Terminus-2 is not written as those that are known.
    """
    found = sorted(environment.glob(AGENT))
    if not found:
        raise ConfigError([f"no Harbor with Terminus-2 in {environment}"], "harness.harbor")
    folder = found[0]
    try:
        template = (folder / "templates" / "terminus-json-plain.txt").read_text(encoding="utf-8")
        trees = [ast.parse((folder / name).read_text(encoding="utf-8")) for name in SOURCES]
        parser = _load(folder / "terminus_json_plain_parser.py").TerminusJSONPlainParser()
    except (OSError, SyntaxError, ImportError, AttributeError) as error:
        raise ConfigError([f"{folder}: {error}"], "harness.harbor") from error
    known = {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    problems = [f"{folder}: Terminus-2 has no {name}" for name in _needed() if name not in known]
    if problems:
        raise ConfigError(problems, "harness.harbor")
    candidates = {text: _assigned(known[function], name) for text, (function, name) in TEXTS.items()}
    candidates |= {text: _returned(known[OUTPUT_FUNCTION], name) for text, name in OUTPUTS.items()}
    problems = [f"{folder}: {text} was found {len(each)} times" for text, each in candidates.items() if len(each) != 1]
    if problems:
        raise ConfigError(problems, "harness.harbor")
    texts = {text: compile(ast.Expression(each[0]), str(folder), "eval") for text, each in candidates.items()}
    return HarborWording(template, texts, {name: _function(known[name]) for name in FUNCTIONS}, parser)


def _needed() -> set[str]:
    return {*FUNCTIONS, OUTPUT_FUNCTION, *(function for function, _ in TEXTS.values())}


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"harbor_{path.stem}", path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "and that one is not a namespace"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _assigned(function: ast.AST, name: str) -> list[ast.expr]:
    """The texts that a function composes and assigns to a variable."""
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        and isinstance(node.value, ast.JoinedStr | ast.BinOp)
    ]


def _returned(function: ast.AST, name: str) -> list[ast.expr]:
    """The texts that a function returns around one variable."""
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Return)
        and isinstance(node.value, ast.JoinedStr)
        and {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)} == {name}
    ]


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Callable[..., Any]:
    """A function of the sources on its own, without its decorators and annotations."""
    bare = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(bare, ast.FunctionDef), "the functions that are needed are plain ones"
    bare.decorator_list, bare.returns = [], None
    for argument in bare.args.args:
        argument.annotation = None
    names: dict[str, Any] = {}
    exec(compile(ast.Module([bare], []), node.name, "exec"), names)
    function: Callable[..., Any] = names[node.name]
    return function


def _command(keystrokes: str, duration_s: float) -> Command:
    duration = duration_s if math.isfinite(duration_s) else DEFAULT_DURATION_S
    return Command(keystrokes.encode("utf-8", "replace").decode("utf-8"), duration)
