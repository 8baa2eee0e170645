"""A process that runs steps of a leg's rollouts, to be killed: real boxes, a journal, an agent that follows a script.

`python -m tests.jobs.rolling FOLDER STEPS [leave]`, with a pool in FOLDER/pool. What a step hands to the next is in
FOLDER, as a leg has it in its store; a step whose batch is there is not run again. Told to `leave`, it leaves its boxes
as a leg does that another follows.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from components.config import load
from components.gateway import Prompt, Trajectory
from components.harness import Written, run_trial, template_for
from components.jobs import rollouts
from components.jobs.hosts import open_hosts
from components.pool import Cursor
from components.records import Sampling, Trial
from components.rollout import Barrier, BehindBarrier, Continuation
from components.sandbox.host import LoggedBackend
from tests.harness.parts import ByteTokenizer, answer

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"
TURNS = 6
OVERRIDES = (
    "rollout.batch=4",
    "rollout.oversample=1.0",
    "rollout.concurrency=8",
    "rollout.reattach_s=300",
    "reward.credit=count",
    "harness={prompt_style: longshell, max_turns: 12, max_context_tokens: 16384, max_turn_tokens: 512}",
    "model.max_position_embeddings=16384",
    "sampler.context_tokens=16384",
    "trainer.micro_batch_tokens=16384",
    "model.vocab_size=260",
)


class Scripted:
    """Types a line that only this trial's turn types into a file, then shows the file; thinks for a moment.

    Half of the trials think longer: when a batch is full they are in the middle of their turns.
    """

    def __init__(self, trial_id: str, barrier: Barrier) -> None:
        self._trial_id = trial_id
        self._barrier = barrier

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Written:
        turn, node = 0, prompt.after
        while node is not None:
            turn, node = turn + 1, node.prompt.after
        slow_s = 0.3 if int(self._trial_id[-1], 16) >= 8 else 0.0
        await asyncio.sleep(0.02 + int(self._trial_id[turn], 16) / 100 + slow_s)
        marker = f"turn-{turn}-of-{self._trial_id}"
        last = turn == TURNS - 1
        commands = ["cat /tmp/seen"] if last else [f"sleep 0.0{turn}; echo {marker} >> /tmp/seen"]
        text = answer(done=True) if turn >= TURNS else answer(*commands)
        ids = np.asarray([*ByteTokenizer().encode(text), 257], np.int32)
        start = prompt.history.routing_start(self._barrier.version)
        rows = np.tile(np.uint8([turn % 4, 4 + turn % 4]), (len(prompt) + len(ids) - 1 - start, 2, 1))
        logprobs = -np.frombuffer(os.urandom(len(ids)), np.uint8).astype(np.float32) - 1  # drawn again, it is another
        return Written(ids, logprobs, "stop", rows, start, self._barrier.version)


@asynccontextmanager
async def world(config: Any, checkpoint: Path, state: Path, drawing: Any, *, boxes: Path) -> AsyncIterator[Any]:
    """The world of a leg, whose sampler is a script."""
    hosts = await open_hosts(config, boxes)
    template = template_for(ByteTokenizer(), config.harness)

    async def run(attempt: Any, sampling: Any, *, capture: bool, barrier: Barrier, past: Continuation) -> Trial:
        policy = BehindBarrier(Scripted(attempt.trial_id, barrier), barrier, attempt.time)
        return await run_trial(
            attempt.task,
            trial_id=attempt.trial_id,
            backend=LoggedBackend(hosts, past),
            trajectory=Trajectory(past.answering(policy), template, sampling=sampling),
            config=config.harness,
            sandbox=config.sandbox,
            agent_timeout_s=config.rollout.agent_timeout_s,
            verifier_timeout_s=config.rollout.verifier_timeout_s,
            progress=attempt.progress,
            time=attempt.time,
            ending=past,
        )

    try:
        fleet = SimpleNamespace(metrics=dict, close=partial(asyncio.sleep, 0))
        yield SimpleNamespace(tokenizer=ByteTokenizer(), run=run, fleet=fleet, backend=hosts, hosts=hosts)
    finally:
        await hosts.close()


async def steps(folder: Path, last: int, *, leave: bool) -> None:
    """Steps up to, not including, `last`, from the first whose record is not there."""
    rollouts.open_world = world  # type: ignore[assignment]
    config = load(MINIATURE, [*OVERRIDES, *json.loads((folder / "overrides.json").read_text())])
    places = (str(folder / name) for name in ("scratch", "state", "finished"))
    actor = rollouts.Rollouts("c", config.model_dump(mode="json"), str(folder / "pool"), "checkpoint", 0, *places)
    record: dict[str, Any] = {"cursor": asdict(Cursor(1)), "unfinished": []}
    for step in range(last):
        path = folder / f"record-{step}.json"
        if not path.exists():
            batch = folder / f"batch-{step}"
            record = await actor.generate(step, step, record["cursor"], record["unfinished"], str(batch))
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(record))
            temporary.rename(path)
            await asyncio.sleep(0.2)  # what is carried waits, as for an update
        record = json.loads(path.read_text())
    if leave:
        await actor.leave()
        os._exit(0)  # as Ray ends an actor
    await actor.close()


if __name__ == "__main__":
    asyncio.run(steps(Path(sys.argv[1]), int(sys.argv[2]), leave="leave" in sys.argv[3:]))
