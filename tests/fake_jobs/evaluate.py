"""A score that grows with the index."""

from tests.fake_jobs.stages import run


def stage(store, spec):
    inputs, rate = spec["inputs"], 0.1 + 0.1 * (spec["index"] % 10)
    assert store.exists(inputs["checkpoint"])
    return {
        "suite": "heldout",
        "harness": "native",
        "profile": "miniature",
        "series": "heldout.miniature.native",
        "label": inputs["label"],
        "checkpoint": inputs["checkpoint"],
        "n": inputs["trials"],
        "pass_rate": rate,
        "stderr": 0.02,
        "mean_reward": rate,
        "assertions_passed": rate,
        "turns_mean": 4.0,
        "infra_rate": 0.0,
        "metrics": {
            f"eval/heldout.miniature.native/{name}": value for name, value in (("resolved", rate), ("stderr", 0.02))
        },
        "score": {"resolved": rate},
    }


if __name__ == "__main__":
    run(stage)
