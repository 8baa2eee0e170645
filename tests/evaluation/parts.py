"""Small task directories."""

from __future__ import annotations

from pathlib import Path

MANIFEST = """version = "1.0"
[metadata]
category = "{category}"
difficulty = "{difficulty}"
[agent]
timeout_sec = {agent_s}
[verifier]
timeout_sec = {verifier_s}
"""


def write_task(
    folder: Path,
    *,
    agent_s: float = 60,
    verifier_s: float = 30,
    category: str = "files",
    difficulty: str = "easy",
    dockerfile: str = "FROM longshell-miniature\nWORKDIR /app\n",
    instruction: str = "Write done into /app/out.\n",
    test: str | None = '#!/bin/bash\n[ "$(cat /app/out)" = done ] && echo 1 || echo 0\n',
) -> Path:
    """A task; `test` prints its reward, and None leaves the verifier out."""
    (folder / "environment").mkdir(parents=True)
    (folder / "task.toml").write_text(
        MANIFEST.format(category=category, difficulty=difficulty, agent_s=agent_s, verifier_s=verifier_s)
    )
    (folder / "instruction.md").write_text(instruction)
    (folder / "environment" / "Dockerfile").write_text(dockerfile)
    if test is not None:
        (folder / "tests").mkdir()
        script = folder / "tests" / "test.sh"
        script.write_text(test.replace("echo 1 || echo 0", "r=1 || r=0\necho $r > /logs/verifier/reward.txt"))
        script.chmod(0o755)
    return folder
