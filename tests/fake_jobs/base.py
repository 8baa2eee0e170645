"""A base model."""

from tests.fake_jobs.stages import model, run


def stage(store, spec):
    assert store.exists(spec["inputs"]["pool"])
    return {"checkpoint": model(store, f"campaigns/{spec['campaign']}/base/model"), "step": 0, "metrics": {}}


if __name__ == "__main__":
    run(stage)
