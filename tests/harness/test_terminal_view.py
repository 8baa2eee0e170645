"""What a policy is shown of a real shell in a real box."""

from __future__ import annotations

from pathlib import Path

from components.config import HarnessConfig, SandboxConfig
from components.errors import StopReason
from components.harness import run_trial
from components.sandbox import SandboxBackend, SandboxSpec
from tests.harness.parts import FakePolicy, PlainTask, answer, trajectory

VERDICT = 'printf \'{"nonce":"%s","finished":true}\\n\' "$LONGSHELL_NONCE"\n'


async def test_a_policy_sees_what_is_new_and_the_screen_once_the_history_lost_its_beginning(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    (tmp_path / "test.sh").write_text(VERDICT)
    policy = FakePolicy(answer("echo hi"), answer("head -c 30000 /dev/zero | tr '\\0' =; echo"), answer("seq 5000"))
    done = await run_trial(
        PlainTask(tmp_path, SandboxSpec()),
        trial_id="t1",
        backend=backend,
        trajectory=trajectory(policy, "\n"),
        config=HarnessConfig(max_context_tokens=80_000, confirm_completion=False, patience_s=20),
        sandbox=SandboxConfig(),
        agent_timeout_s=30,
        verifier_timeout_s=30,
    )
    assert done.stop is StopReason.COMPLETED, done.fault
    opening, echoed, wide, counted = policy.observations
    assert opening.endswith("Terminal:\nThe terminal's screen:\n$")
    assert echoed == "New output of the terminal:\n$ echo hi\nhi\n$"
    screen = "\n".join(map(str, range(4962, 5001)))
    assert counted == f"The terminal's screen:\n{screen}\n$"
    assert wide.startswith("New output of the terminal:\n$ head -c 30000 /dev/zero | tr '\\0' =; echo\n" + "=" * 160)
    assert wide.endswith("=\n$")
    assert "bytes left out" in wide
    assert len(wide) < 10_100
