"""A tuned model."""

from components.naming import checkpoint_key
from tests.fake_jobs.stages import model, run


def stage(store, spec):
    assert store.exists(spec["inputs"]["pool"])
    assert store.exists(spec["inputs"]["checkpoint"])
    assert ("samples" in spec["inputs"]) == (spec["config"]["sft"]["rejection"] is not None)
    return {"checkpoint": model(store, checkpoint_key(spec["campaign"], "sft")), "step": 0, "metrics": {}}


if __name__ == "__main__":
    run(stage)
