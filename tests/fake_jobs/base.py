"""A base model."""

from components.naming import checkpoint_key
from tests.fake_jobs.stages import model, run


def stage(store, spec):
    assert store.exists(spec["inputs"]["pool"])
    return {"checkpoint": model(store, checkpoint_key(spec["campaign"], "base")), "step": 0, "metrics": {}}


if __name__ == "__main__":
    run(stage)
