"""A stored campaign of three trials, one of which does to its reader what a hostile task can."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from components.artifacts import LocalStore
from components.errors import StopReason
from components.records import AssertionOutcome, Reward, Sample, TaskRef, Trial, Turn, VerifierReport
from components.rollout import Ledger, Origin, Outcome, TokenFigures, dump_figures, save_batch, trial_rows
from components.tito import stitch
from tests.harness.parts import answer
from tests.rollout.test_atif import byte_tokenizer

CAMPAIGN = "m-s1"
BATCH = f"campaigns/{CAMPAIGN}/rl/batches/000003"
EVALUATION = f"campaigns/{CAMPAIGN}/evaluate/leg-1/trials"
HOSTILE = (
    "</pre></script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "'\"><svg/onload=document.title='owned'>",
    "<style>*{display:none}</style><meta http-equiv=refresh content=0;url=//evil>",
    "<a href=javascript:document.title='owned'>x</a>",
    "\x1b[2J\x1b]0;owned\x07\r\x08\x00",
    "\u202egnp.exe\u2066\u200b",
    "]]>--><!--<![CDATA[ &lt; &#60;script&#62;",
    "\u4f60\u597d \U0001f600 \u00e9",
)
GIANT = "A" * 200_000
TASK = TaskRef("pool", "task <b>1</b>", "d", "files", fail_to_pass=("made",), pass_to_pass=("kept",), difficulty="hard")


def turn(tokenizer, prompt: str, text: str, version: int = 3, **changes) -> Turn:
    ids, drawn = tokenizer.encode(prompt), tokenizer.encode(text)
    logprobs = -np.linspace(0.05, 5, len(drawn), dtype=np.float32)
    return Turn(np.int32(ids), np.int32(drawn), logprobs, None, version, "stop", **changes)


def trial(name: str, turns: list[Turn], *, passed: bool, task: TaskRef = TASK, **facts) -> Trial:
    said = {"made": AssertionOutcome.PASSED if passed else AssertionOutcome.FAILED, "kept": AssertionOutcome.PASSED}
    report = VerifierReport(said, passed, "assertions.jsonl")
    return Trial(name, task, turns, StopReason.COMPLETED, report, None, {"sample": 1.5}, {"commands": 2} | facts)


def figures_of(samples: list[Sample]) -> list[TokenFigures]:
    """A trainer that is 0.02 more sure than the sampler, and surprised by the first stream."""
    return [
        TokenFigures(
            sample.logprobs[sample.loss_mask] + np.float32(0.02),
            sample.logprobs[sample.loss_mask] + np.float32(0.03),
            np.full(sample.loss_mask.sum(), 0.3 if number == 0 else -0.05, np.float32),
            np.full(sample.loss_mask.sum(), 0.1, np.float32),
        )
        for number, sample in enumerate(samples)
    ]


def stored_campaign(folder: Path) -> LocalStore:
    """Trials `plain` (two turns, then a rewritten history) and `hostile` of a step that was learned, `judge` of an
    evaluation; `cut` was cancelled."""
    store = LocalStore(folder / "store")
    tokenizer = byte_tokenizer(folder / "model")
    store.put_tree(f"campaigns/{CAMPAIGN}/tokenizer", folder / "model")
    first = turn(tokenizer, "task\n$ ", answer("ls"))
    second = turn(tokenizer, "task\n$ " + answer("ls") + "a.txt\n$ ", answer(done=True))
    third = turn(tokenizer, "shorter\n$ ", "I did everything", opens=True)
    plain = trial("plain", [first, second, third], passed=True)
    said = {"analysis": "".join(HOSTILE), "plan": "", "commands": [{"keystrokes": "".join(HOSTILE)}]}
    text = json.dumps(said, ensure_ascii=False)
    evil = turn(tokenizer, "".join(HOSTILE) + GIANT, text)
    named = {"".join(HOSTILE[:2]): AssertionOutcome.FAILED, "kept": AssertionOutcome.PASSED}
    hostile = Trial(
        "hostile",
        TaskRef("pool", HOSTILE[0], "d", HOSTILE[1], difficulty=HOSTILE[2]),
        [evil],
        StopReason.TURN_LIMIT,
        VerifierReport(named, False, HOSTILE[0]),
        None,
        {HOSTILE[1]: 1.0},
        {"tampering": [f"planted {HOSTILE[0]}"], "left_running": [HOSTILE[1]], HOSTILE[2]: HOSTILE[5]},
    )
    rewards = [Reward(0.2, 1, 1, True), Reward(0.0, 0, 1, False)]
    samples = [each for one in (plain, hostile) for each in stitch(one.turns, tokenizer, trial_id=one.trial_id)]
    figures = figures_of(samples)
    ledger = Ledger(3)
    for name, task, outcome in (
        ("plain", plain.task, Outcome.ADMITTED),
        ("hostile", hostile.task, Outcome.ADMITTED),
        ("cut", TASK, Outcome.CANCELLED),
    ):
        ledger.launch(name, task, 1, origin=Origin.DRAWN)
        ledger.end(name, outcome)
    save_batch(folder / "batch", [plain, hostile], samples, rewards, ledger)
    store.put_tree(BATCH, folder / "batch")
    store.put_bytes(f"campaigns/{CAMPAIGN}/rl/judged/000003", dump_figures(samples, figures))
    store.put_json(f"campaigns/{CAMPAIGN}/rl/trials/000003", trial_rows([plain, hostile], rewards, samples, figures))

    judged, ledger = trial("judge", [first, second], passed=False), Ledger(0)
    ledger.launch("judge", TASK, 1, origin=Origin.DRAWN)
    ledger.end("judge", Outcome.ADMITTED)
    save_batch(folder / "trials", [judged], [], [Reward(0.0, 0, 1, False)], ledger)
    store.put_tree(EVALUATION, folder / "trials")
    return store
