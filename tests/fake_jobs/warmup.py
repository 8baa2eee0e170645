"""A warm critic."""

from tests.fake_jobs.stages import commit, model, run


def stage(store, spec):
    assert store.exists(spec["inputs"]["pool"])
    assert store.exists(spec["inputs"]["checkpoint"])
    total = spec["config"]["ppo"]["critic"]["warmup"]["steps"]
    for step in range(total):
        commit(store, spec, step, total)
    return {"critic": model(store, f"campaigns/{spec['campaign']}/warmup/critic"), "step": 2, "metrics": {}}


if __name__ == "__main__":
    run(stage)
