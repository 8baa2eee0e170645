"""Result files as three versions of Harbor write them, by hand: for ends that the files in `harbor_left/` have not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

START = "2026-03-01T10:00:00Z"


def minute(number: int) -> str:
    return f"2026-03-01T10:{number:02}:00Z"


def result(version: str, task: str = "count-lines", **changes: Any) -> dict[str, Any]:
    """One trial that completed and was resolved, as `version` writes it."""
    found: dict[str, Any] = {
        "id": "00000000-0000-0000-0000-000000000001",
        "task_name": task,
        "trial_name": f"{task[:32]}__abc1234",
        "trial_uri": f"file:///jobs/run/{task}__abc1234",
        "task_id": {"path": f"/suite/{task}"},
        "source": "suite",
        "task_checksum": "c",
        "config": {"task": {"path": f"/suite/{task}"}, "trial_name": f"{task}__abc1234"},
        "agent_info": {"name": "terminus-2", "version": "2.0.0", "model_info": {"name": "policy"}},
        "agent_result": {
            "n_input_tokens": 900,
            "n_cache_tokens": 0,
            "n_output_tokens": 70,
            "cost_usd": None,
            "rollout_details": None,
            "metadata": {"n_episodes": 4, "api_request_times_msec": [1.0], "summarization_count": 0},
        },
        "verifier_result": {"rewards": {"reward": 1.0}},
        "exception_info": None,
        "started_at": START,
        "finished_at": minute(9),
        "environment_setup": {"started_at": START, "finished_at": minute(1)},
        "agent_setup": {"started_at": minute(1), "finished_at": minute(2)},
        "agent_execution": {"started_at": minute(2), "finished_at": minute(7)},
        "verifier": {"started_at": minute(7), "finished_at": minute(9)},
        "step_results": None,
    }
    if version != "0.7.0":  # the later ones tell the verifier's mode, a model's usage and whether the reward counts
        found |= {"verifier_environment_mode": "shared", "reward_valid": True, "schema_version": 1}
        found["agent_result"] |= {"model_usage": {"policy": {"n_input_tokens": 900}}}
    if version == "0.26.0":  # a task of a package is called by it
        found |= {"task_name": f"org/{task}", "started_at": "2026-03-01T10:00:00.000000+00:00"}
    return found | changes


def error(kind: str, message: str = "said") -> dict[str, str]:
    return {
        "exception_type": kind,
        "exception_message": message,
        "exception_traceback": "Traceback",
        "occurred_at": minute(8),
    }


def answer(*calls: str) -> dict[str, Any]:
    named = [{"tool_call_id": str(n), "function_name": name, "arguments": {}} for n, name in enumerate(calls)]
    return {"step_id": 1, "source": "agent", "message": "m", **({"tool_calls": named} if named else {})}


def write(folder: Path, document: dict[str, Any], steps: list[dict[str, Any]] | None = None, **files: str) -> Path:
    """A trial's folder; `files` are those of the verifier, by name with `_` for `.` and `-` for `__`."""
    (folder / "verifier").mkdir(parents=True)
    (folder / "agent").mkdir()
    (folder / "result.json").write_text(json.dumps(document))
    if steps is not None:
        whole = {"schema_version": "ATIF-v1.8", "agent": {"name": "terminus-2"}, "steps": steps}
        (folder / "agent" / "trajectory.json").write_text(json.dumps(whole))
    for name, text in files.items():
        (folder / "verifier" / name.replace("__", "-").replace("_", ".")).write_text(text)
    return folder
