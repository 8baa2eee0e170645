"""Runs Harbor's own Terminus-2, with Harbor's Python, at a real tmux of this machine: one scenario after another.

Usage: PYTHON terminus_worker.py SCENARIOS.json FOLDER. Each scenario names its server, its limits and its instruction.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

PROFILE = """
PS1='$ '
unset PROMPT_COMMAND HISTFILE
bind 'set enable-bracketed-paste off'
cd app
"""


class Here:
    """What Terminus-2 uses of an environment: commands, run on this machine in a folder of their own."""

    default_user = None
    session_id = "here"
    skills_dir = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app").mkdir(parents=True)
        (folder / ".bash_profile").write_text(PROFILE)
        (folder / ".tmux.conf").touch()
        kept = {name: os.environ[name] for name in ("PATH",)}
        self.variables = kept | {"HOME": str(folder), "TMUX_TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        from harbor.environments.base import ExecResult

        process = await asyncio.create_subprocess_exec(
            *("/bin/bash", "-c", command),
            cwd=self.folder,
            env=self.variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)

    async def prompted(self) -> None:
        for _ in range(200):
            shown = await self.exec("tmux capture-pane -p -t terminus-2")
            if shown.stdout.startswith("$"):
                return
            await asyncio.sleep(0.05)
        raise RuntimeError("the shell shows no prompt")


async def play(scenario: dict, folder: Path) -> None:
    from harbor.agents.terminus_2 import Terminus2
    from harbor.models.agent.context import AgentContext

    here = Here(folder)
    agent = Terminus2(
        logs_dir=folder,
        model_name="hosted_vllm/scripted",
        api_base=scenario["url"],
        parser_name="json",
        record_terminal_session=False,
        max_turns=scenario["max_turns"],
        proactive_summarization_threshold=scenario["threshold"],
        model_info={
            "max_input_tokens": scenario["context"],
            "max_output_tokens": scenario["max_output"],
            "input_cost_per_token": 0.0,
            "output_cost_per_token": 0.0,
        },
    )
    try:
        await agent.setup(here)
        await here.prompted()
        await agent.run(scenario["instruction"], here, AgentContext())
    finally:
        await here.exec("tmux kill-server")


async def main(scenarios: list[dict], folder: Path) -> None:
    for number, scenario in enumerate(scenarios):
        await play(scenario, folder / str(number))


if __name__ == "__main__":
    os.environ |= {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOSTED_VLLM_API_KEY": "none"}
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])))
