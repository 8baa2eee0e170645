"""A leg that commits its steps, and continues at its last committed one.

`<store>/../slow` makes steps slow, `<store>/../hold-step-<n>` holds the leg before its step n.
"""

import time
from pathlib import Path

from tests.fake_jobs.stages import commit, model, run


def stage(store, spec):
    inputs, count = spec["inputs"], spec["config"]["rl"]["leg_steps"]
    assert store.exists(inputs["checkpoint"])
    assert inputs["state"] is None or store.exists(inputs["state"])
    assert inputs["critic"] is None or store.exists(inputs["critic"])
    assert (inputs["critic"] is None) == (spec["config"]["ppo"]["critic"]["warmup"] is None or spec["index"] > 1)
    steps = range(inputs["first_step"], inputs["first_step"] + count)
    prefix = f"campaigns/{spec['campaign']}/rl"
    for step in steps:
        if store.exists(f"{prefix}/steps/{step:06d}/record.json"):
            continue
        if (Path(store.url).parent / "slow").exists():
            time.sleep(1.0)
        while (Path(store.url).parent / f"hold-step-{step}").exists():
            time.sleep(0.1)
        model(store, f"{prefix}/steps/{step:06d}/state")
        commit(store, spec, step, count)
        print(f"INFO step {step} committed", flush=True)
    key = model(store, f"{prefix}/legs/{spec['index']}/checkpoint")
    state = f"{prefix}/steps/{steps[-1]:06d}/state"
    return {"checkpoint": key, "state": state, "step": steps[-1] + 1, "metrics": {}, "launched": 70, "cancelled": 6}


if __name__ == "__main__":
    run(stage)
