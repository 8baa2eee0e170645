"""Trials as ATIF trajectories (Agent Trajectory Interchange Format), which Harbor's tools and others read.

Invariants: every sampled answer is exactly one agent step, with its ids and log-probs as they were drawn; what a
rewritten history repeats is marked as copied context, which must not be trained on. What was not measured is left out.

    python -m components.rollout.atif BATCH MODEL OUT     the trials of a kept batch, one file each
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from components.artifacts import checked
from components.errors import LongshellError, RecordError
from components.harness import parse_response
from components.records import Reward, Trial, Turn
from components.rollout.spool import load_batch
from components.tito import BpeTokenizer, Tokenizer

EXIT_REFUSED = 2
SCHEMA = "ATIF-v1.7"
"""The newest that Harbor 0.7.0, the paper's, reads; nothing of a later one is needed."""
CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
END = "<|im_end|>"
SOURCES = {"system": "system", "user": "user", "assistant": "agent"}
REWRITTEN = "The conversation starts anew: its history was rewritten, or another branch of the trial begins."


def to_atif(trial: Trial, tokenizer: Tokenizer, *, model: str, reward: Reward | None = None) -> dict[str, Any]:
    """The ATIF document of one trial.

    Args:
        tokenizer: that of the model that drew the trial.
        model: its name.

    Raises:
        RecordError: the trial has no turn, and so no step.
    """
    if not trial.turns:
        raise RecordError(f"trial {trial.trial_id} has no turn to write down")
    steps = _Steps(tokenizer)
    for turn in trial.turns:
        steps.add(turn)
    ended = {
        "task": trial.task.task_id,
        "stop": trial.stop,
        "fault": None if trial.fault is None else str(trial.fault),
        "outcome": None if trial.report is None else trial.report.outcome,
        "reward": None if reward is None else reward.value,
    }
    return {
        "schema_version": SCHEMA,
        "session_id": trial.trial_id,
        "trajectory_id": trial.trial_id,
        "agent": {"name": "longshell", "version": importlib.metadata.version("longshell"), "model_name": model},
        "steps": steps.written,
        "final_metrics": {
            "total_prompt_tokens": sum(len(turn.prompt_ids) for turn in trial.turns),
            "total_completion_tokens": sum(len(turn.completion_ids) for turn in trial.turns),
            "total_steps": len(steps.written),
        },
        "extra": {name: value for name, value in ended.items() if value is not None},
    }


@dataclass(slots=True)
class _Steps:
    """The steps of a trial, turn by turn."""

    tokenizer: Tokenizer
    written: list[dict[str, Any]] = field(default_factory=list)
    _said: set[tuple[str, str]] = field(default_factory=set)
    _stream: list[int] = field(default_factory=list)

    def add(self, turn: Turn) -> None:
        prompt = turn.prompt_ids.tolist()
        shared = len(self._stream)
        if self._stream and not turn.opens and prompt[:shared] == self._stream:
            self._observe(self._messages(prompt[shared:]))
        else:
            self._open(self._messages(prompt))
        self._answer(turn)
        self._stream = [*prompt, *turn.completion_ids.tolist()]

    def _messages(self, ids: Sequence[int]) -> list[tuple[str, str]]:
        """The messages among context ids; without the head of the answer that follows them."""
        text = self.tokenizer.decode(ids)
        found = [(SOURCES.get(role, "user"), content) for role, content in CHATML.findall(text)]
        if found and found[-1] == ("agent", ""):
            found.pop()
        return found or [("user", text)]  # A template of another kind: the text as it stands.

    def _open(self, messages: Sequence[tuple[str, str]]) -> None:
        if self.written:
            boundary = {"type": "compaction", "boundary": "replace"}
            self._step("system", REWRITTEN, extra={"context_management": boundary})
        for source, content in messages:
            copied = {"is_copied_context": True} if (source, content) in self._said else {}
            self._step(source, content, **copied)

    def _observe(self, messages: Sequence[tuple[str, str]]) -> None:
        last = self.written[-1]
        calls = [call["tool_call_id"] for call in last.get("tool_calls", ())]
        # Commands of one turn share one look at the terminal: only a single one can be named as its source.
        source = {"source_call_id": calls[0]} if len(calls) == 1 else {}
        last["observation"] = {"results": [{**source, "content": content} for _, content in messages]}
        self._said.update(messages)

    def _answer(self, turn: Turn) -> None:
        ids = turn.completion_ids.tolist()
        text = self.tokenizer.decode(ids).removesuffix(END)
        metrics: dict[str, Any] = {
            "prompt_tokens": len(turn.prompt_ids),
            "completion_tokens": len(ids),
            "completion_token_ids": ids,
            "extra": {"weight_version": turn.weight_version, "finish_reason": turn.finish_reason},
        }
        if np.isfinite(turn.logprobs).all():
            metrics["logprobs"] = turn.logprobs.tolist()
        calls = list(_calls(text, len(self.written) + 1)) if turn.finish_reason != "length" else []
        self._step("agent", text, metrics=metrics, llm_call_count=1, **({"tool_calls": calls} if calls else {}))

    def _step(self, source: str, message: str, **fields: Any) -> None:
        self.written.append({"step_id": len(self.written) + 1, "source": source, "message": message, **fields})
        self._said.add((source, message))


def _calls(text: str, step: int) -> Iterator[dict[str, Any]]:
    """What an answer of the native harness asked for, under the names that Terminus-2 gives it in ATIF."""
    parsed = parse_response(text)
    if parsed.error is not None:
        return
    for number, command in enumerate(parsed.commands, start=1):
        arguments = {"keystrokes": command.keystrokes, "duration": command.duration_s}
        yield {"tool_call_id": f"call_{step}_{number}", "function_name": "bash_command", "arguments": arguments}
    if parsed.task_complete:
        yield {"tool_call_id": f"call_{step}_task_complete", "function_name": "mark_task_complete", "arguments": {}}


def write_atif(batch: Path, model: Path, out: Path, *, name: str) -> list[Path]:
    """Writes the trials of a kept batch (`components.rollout.save_batch`) that have a turn, as OUT/<trial>.json.

    Args:
        model: folder of the checkpoint that drew them, for its tokenizer.
        name: the checkpoint's.

    Raises:
        StoreError: there is no such batch.
        CheckpointError: `model` has no tokenizer.
    """
    kept = load_batch(batch)
    tokenizer = BpeTokenizer.load(model)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for trial, reward in zip(kept.trials, kept.rewards, strict=True):
        if trial.turns:
            path = out / f"{trial.trial_id}.json"
            document = to_atif(trial, tokenizer, model=name, reward=reward)
            write_whole(path, json.dumps(document, ensure_ascii=False, indent=1))
            written.append(path)
    return written


def write_whole(path: Path, text: str) -> None:
    """A whole file or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 where there is no such batch or checkpoint, or nothing can be written."""
    parser = argparse.ArgumentParser(prog="python -m components.rollout.atif", description=__doc__)
    parser.add_argument("batch", type=Path, help="folder of a kept batch, a step's or an evaluation's trials")
    parser.add_argument("model", type=Path, help="folder of a checkpoint, for its tokenizer")
    parser.add_argument("out", type=Path, help="folder that the files are written to")
    arguments = parser.parse_args(argv)
    try:
        name = arguments.model.absolute().name  # A store's own folder has the name of its digest.
        written = write_atif(checked(arguments.batch), checked(arguments.model), arguments.out, name=name)
    except LongshellError as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    except OSError as error:
        print(f"{error.filename or arguments.out}: {error.strerror}", file=sys.stderr)
        return EXIT_REFUSED
    print(f"{len(written)} trajectories in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
