"""Reading Terminus-2's words: from an installation that is written as Harbor's is, in words of our own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from components.config import HarnessConfig
from components.errors import ConfigError, StopReason
from components.harness import Command, Progress, wording_for
from components.harness.harbor import read_harbor
from components.harness.loop import AgentLoop, Clock
from tests.harness.parts import FakePolicy, FakeTerminal, answer, trajectory

AGENT = """
class Agent(Base):
    @override
    def _limit_output_length(self, output: Text, max_bytes: int = 20) -> Text:
        return output if len(output) <= max_bytes else f"{output[:10]}..{output[-10:]}"

    def _get_error_response_type(self) -> Text:
        return "object" if self.options.parser_name == "json" else "element"

    def _get_completion_confirmation_message(self, terminal_output: Text) -> Text:
        return f"{terminal_output}|sure?"

    async def _summarize(self, chat: Chat, original_instruction: Text):
        summary_prompt = f"sum up {original_instruction}"
        response = await self.call(summary_prompt)
        question_prompt = f"{original_instruction}/{summary_response.content}/{current_screen}: ask"
        answer_request_prompt = "answer: " + model_questions
        handoff_prompt = "they say " + answers_response.content + "."

    async def _query_llm(self, chat: Chat):
        warnings_text = ""
        warnings_text = f" and {parse_result.warning}"
        limit_str = f"{output_limit} ids"
        error_msg = f"more than {limit_str}"
        error_msg += warnings_text

    async def _run_agent_loop(self, initial_prompt: Text):
        prompt = initial_prompt
        prompt = f"{feedback}; send a {self._get_error_response_type()}"
        observation = terminal_output
        observation = f"{feedback}; {self._limit_output_length(terminal_output)}"
"""
SESSION = """
class Session:
    async def get_incremental_output(self) -> str:
        if first:
            return f"SCREEN {visible_screen}"
        if found:
            return f"NEW {new_content}"
        return f"SCREEN {await self.screen()}"
"""
PARSER = """
import json
from dataclasses import dataclass

@dataclass
class Found:
    error: str = ""
    warning: str = ""
    commands: tuple = ()
    is_task_complete: bool = False
    analysis: str = ""
    plan: str = ""

@dataclass
class Keys:
    keystrokes: str
    duration: float

class TerminusJSONPlainParser:
    def parse_response(self, text):
        if text == "?":
            return Found("bad", "odd")
        fields = json.loads(text)
        keys = tuple(Keys(each["keystrokes"], each["duration"]) for each in fields["commands"])
        return Found("", "odd" if "odd" in fields else "", keys, fields["task_complete"])
"""


def install(place: Path, *, agent: str = AGENT) -> Path:
    folder = place / "lib" / "python3.12" / "site-packages" / "harbor" / "agents" / "terminus_2"
    (folder / "templates").mkdir(parents=True)
    (folder / "templates" / "terminus-json-plain.txt").write_text("{{}} {instruction} > {terminal_state}")
    (folder / "terminus_2.py").write_text(agent)
    (folder / "tmux_session.py").write_text(SESSION)
    (folder / "terminus_json_plain_parser.py").write_text(PARSER)
    return place


def test_every_text_is_the_installation_s(tmp_path):
    words = read_harbor(install(tmp_path))
    assert words.opening("do {it}", "$ ") == "{} do {it} > $ "
    assert (words.screen("s"), words.new_output("n")) == ("SCREEN s", "NEW n")
    assert words.observation("o") == "o"
    assert words.observation("o" * 30, ("odd",)) == "WARNINGS: odd; oooooooooo..oooooooooo"
    assert words.rejected("bad", ("odd",)) == "ERROR: bad\nWARNINGS: odd; send a object"
    assert words.rejected("bad") == "ERROR: bad; send a object"
    assert words.cut("?", 7) == "more than 7 ids and odd"
    assert words.cut(answer(), 7) == "more than 7 ids"
    assert words.confirm("o", ("odd",)) == "o|sure?"
    assert words.summary("it") == "sum up it"
    assert words.questions("it", "{sum}", "screen") == "it/{sum}/screen: ask"
    assert words.answers("why?") == "answer: why?"
    assert words.handoff("so") == "they say so."


def test_answers_are_read_by_its_parser_and_what_breaks_it_is_an_answer_that_cannot_be_read(tmp_path):
    words = read_harbor(install(tmp_path))
    assert words.parse("?").error == "bad"
    assert words.parse("?").warnings == ("odd",)
    read = words.parse('{"commands": [{"keystrokes": "a\\ud800", "duration": NaN}], "task_complete": 1}')
    assert read.commands == (Command("a?", 1.0),)
    assert read.task_complete is True
    assert words.parse("nothing").error.startswith("JSONDecodeError")


async def test_the_loop_speaks_in_its_words_and_its_keys_are_tmuxs(tmp_path):
    config = HarnessConfig(prompt_style="harbor", harbor=str(install(tmp_path)))
    policy, terminal = FakePolicy("?", answer().replace("[]", '[{"keystrokes": "C-c", "duration": 0}]')), FakeTerminal()
    running = AgentLoop(
        trajectory=trajectory(policy),
        terminal=terminal,
        wording=wording_for(config),
        config=config,
        progress=Progress(),
        clock=Clock(),
    )
    assert await running.run("it") is StopReason.COMPLETED
    assert terminal.sent == ["\x03"]
    assert policy.observations[1] == "ERROR: bad\nWARNINGS: odd; send a object"


def test_what_is_not_installed_or_written_otherwise_is_refused_with_its_place(tmp_path):
    with pytest.raises(ConfigError, match="no Harbor with Terminus-2"):
        read_harbor(tmp_path)
    for number, (old, new, problem) in enumerate(
        [
            ("handoff_prompt", "words", "handoff was found 0 times"),
            ("observation = terminal", "observation = f'{x}' + terminal", "warned was found 2 times"),
            ("_query_llm", "ask", "has no _query_llm"),
            ("class", "klass", "invalid syntax"),
        ]
    ):
        with pytest.raises(ConfigError, match=problem):
            read_harbor(install(tmp_path / str(number), agent=AGENT.replace(old, new)))


def test_harbors_words_need_a_harbor_and_its_way_of_looking():
    with pytest.raises(ValidationError, match="harbor is required"):
        HarnessConfig(prompt_style="harbor")
    with pytest.raises(ValidationError, match="refused without"):
        HarnessConfig(harbor="/opt/harbor")
    with pytest.raises(ValidationError, match="new_output history"):
        HarnessConfig(prompt_style="harbor", harbor="/opt/harbor", new_output="stream")
