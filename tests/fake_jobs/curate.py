"""A pool of nothing."""

from tests.fake_jobs.stages import model, run


def stage(store, spec):
    key = model(store, f"campaigns/{spec['campaign']}/pool")
    return {"pool": key, "digest": "d" * 16, "accepted": 9, "rejected": 1, "train": 6, "heldout": 3}


if __name__ == "__main__":
    run(stage)
