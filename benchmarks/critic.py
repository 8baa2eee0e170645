"""What the critic's warm-up brings: explained variance over the first steps of RL, cold and warm, by the real stages.

Both legs start from one SFT checkpoint, on the same tasks in the same order; they differ in the critic alone. The warm
one begins with the weights that `ppo.critic.warmup` leaves. Takes the time of a small campaign: 7 minutes of an idle
machine. With `--sft STORE CAMPAIGN` it begins with that campaign's SFT checkpoint, and no base model is trained.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from components.artifacts import ArtifactStore, open_store
from components.cluster import REPOSITORY, Cluster, JobSpec
from components.config import CampaignConfig, load
from components.joblog import LogLine
from tasks.site import Site
from tasks.stack import ports
from tasks.stack.supervisor import Stack

STEPS, WARMUP = 12, 30
SETTINGS = ("ppo.critic.optimizer={lr: 3.0e-3, weight_decay: 0.0, warmup_steps: 5}",)
"""Of both legs. At the miniature's own 1.2e-2 the first step of fresh moments undoes what the warm-up taught."""
METRIC = "critic/explained_variance"
EARLY = 4
"""Steps whose mean is given apart: what the actor's first updates rest on."""


class Stages:
    """Runs stages of one campaign; each may be given another's results."""

    def __init__(self, cluster: Cluster, store: ArtifactStore, config: CampaignConfig) -> None:
        self._cluster = cluster
        self._config = config
        self.store = store

    def run(self, campaign: str, stage: str, **inputs: Any) -> Mapping[str, Any]:
        """The result of one stage of `campaign`."""
        spec = JobSpec(stage, campaign, 1, self._config.model_dump(mode="json"), inputs)
        return self._cluster.follow(spec, self._cluster.submit(spec, {}).id, _tell, lambda: None)

    def values(self, campaign: str) -> list[float]:
        """Explained variance of each step of RL."""
        keys = [f"campaigns/{campaign}/rl/steps/{step:06d}/record.json" for step in range(STEPS)]
        measured = [self.store.get_json(key)["metrics"].get(METRIC) for key in keys]
        return [math.nan if value is None else value for value in measured]


def contrast(stages: Stages, sft: str | None) -> dict[str, Any]:
    """Trains what is missing, then both legs."""
    pool = stages.run("cold", "curate")["pool"]
    if sft is None:
        base = stages.run("cold", "base", pool=pool)["checkpoint"]
        sft = stages.run("cold", "sft", pool=pool, checkpoint=base)["checkpoint"]
    begin = {"pool": pool, "checkpoint": sft, "state": None, "first_step": 0}
    critic = stages.run("warm", "warmup", **begin, critic=None)["critic"]
    stages.run("cold", "rl", **begin, critic=None)
    stages.run("warm", "rl", **begin, critic=critic)
    return {name: summary(stages.values(name)) for name in ("cold", "warm")}


def _tell(line: LogLine) -> None:
    print(line.text, file=sys.stderr, flush=True)


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Of one leg: the first step's value, means, and how many steps lie below 0."""
    return {
        "first": round(values[0], 3),
        "early_mean": round(sum(values[:EARLY]) / EARLY, 3),
        "mean": round(sum(values) / len(values), 3),
        "negative_steps": sum(value < 0 for value in values),
        "series": [round(value, 3) for value in values],
    }


def main() -> None:
    """Prints {"cold": {…}, "warm": {…}, …}."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sft", nargs=2, metavar=("STORE", "CAMPAIGN"), help="begin with this campaign's checkpoint")
    parser.add_argument("--warmup", type=int, default=WARMUP, help="steps of the warm-up")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="changes to the miniature, of both legs")
    asked = parser.parse_args()
    warmup = f"ppo.critic.warmup={{steps: {asked.warmup}, tasks: 640}}"
    overrides = [*SETTINGS, *asked.overrides, warmup, "rl.legs=1", f"rl.leg_steps={STEPS}"]
    config = load(REPOSITORY / "configs" / "miniature.yaml", overrides)
    with tempfile.TemporaryDirectory(prefix="lsb-") as home:
        free = {name: ports.any_free() for name in ports.USUAL}
        site = Site(Path(home), f"{home}/store", f"sqlite:///{home}/mlflow.db", "components.jobs", ports=free)
        store = site.store()
        sft = None
        if asked.sft:
            url, campaign = asked.sft
            sft = "given/sft"
            store.put_tree(sft, open_store(url).tree(f"campaigns/{campaign}/sft/checkpoint"))
        with Stack(site, lambda line: None).session(["ray"]):
            figures = contrast(Stages(site.cluster(store), store, config), sft)
    run = {"steps": STEPS, "warmup_steps": asked.warmup, "changes": [*SETTINGS, *asked.overrides]}
    print(json.dumps({**figures, **run, "machine": describe()}))


if __name__ == "__main__":
    main()
