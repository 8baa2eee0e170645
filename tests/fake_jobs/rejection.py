"""Samples of nothing."""

from components.naming import samples_key
from tests.fake_jobs.stages import model, run


def stage(store, spec):
    assert store.exists(spec["inputs"]["pool"])
    assert store.exists(spec["inputs"]["checkpoint"])
    key = model(store, samples_key(spec["campaign"]))
    counts = {"tried": 8, "graded": 8, "passed": 5, "pass_rate": 0.6, "kept": 4, "streams": 4, "tasks": 2}
    counts |= {"tasks_kept": 2, "passes": 4, "left_out": {"bar": 3, "duplicate": 1}, "teacher": None}
    told = [{"trial": "t", "task": "a", "fate": "bar", "detail": "0 of 2 assertions, bar 1"}]
    return {"samples": key, "trials": f"{key}.json", "told": told, **counts}


if __name__ == "__main__":
    run(stage)
