"""A grown pool of nothing."""

from tests.fake_jobs.stages import model, run


def stage(store, spec):
    assert store.exists(spec["inputs"]["pool"])
    key = model(store, f"campaigns/{spec['campaign']}/grown")
    rejections = [{"task": "a", "operator": "chain", "reason": "few_turns", "detail": "no turn more than its parent"}]
    rounds = [{"round": 1, "tasks": 4}]
    return {"grown": key, "digest": "e" * 16, "tasks": 4, "rounds": rounds, "rejections": rejections}


if __name__ == "__main__":
    run(stage)
