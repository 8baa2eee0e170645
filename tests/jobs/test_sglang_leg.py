"""A leg of RL and an evaluation on a stock SGLang that the jobs start themselves, weights published by broadcast."""

from __future__ import annotations

import json
from typing import Any

from components.rollout import Origin, load_batch
from tests.jobs.conftest import SmallCampaign
from tests.sampler.real import SGLANG, START_TIMEOUT_S, real_sglang


@real_sglang
def test_a_leg_learns_from_what_a_stock_sglang_draws(campaign: SmallCampaign, pool: dict[str, Any]) -> None:
    campaign = campaign.variant(
        "sglang",
        "sampler.engine=sglang",
        f"sampler.sglang={json.dumps(SGLANG.model_dump(mode='json'))}",
        f"sampler.start_timeout_s={START_TIMEOUT_S}",
        "publish.method=collective",
        "rl.leg_steps=3",
        "ppo.critic.only_steps=0",
        "model.tie_word_embeddings=false",  # SGLang does not tie the output layer of this architecture
    )
    base = campaign.run("base", {"pool": pool["pool"]})
    inputs = {"pool": pool["pool"], "checkpoint": base["checkpoint"], "state": None, "critic": None, "first_step": 0}
    result = campaign.run("rl", inputs, index=1)
    assert result["step"] == 3
    for step in range(3):
        metrics = campaign.record(step)["metrics"]
        assert metrics["rollout/infra_faults"] == 0
        assert metrics["publish/lost"] == 0
        assert metrics["tito/drift"] == 0
        assert metrics["gap/engine_max"] < 1e-3
        batch = load_batch(campaign.store.tree(f"campaigns/{campaign.name}/rl/batches/{step:06d}"))
        new = {row.trial_id for row in batch.ledger.rows if row.origin in (Origin.DRAWN, Origin.RELAUNCHED)}
        drawn = {sample.weight_version for sample in batch.samples if sample.trial_id in new}
        assert drawn == {max(step - 1, 0)}, "only what was carried is older than the weights that were published last"
    asked = {"pool": pool["pool"], "checkpoint": result["checkpoint"], "trials": 2, "label": "leg-1"}
    assert campaign.run("evaluate", asked, index=3)["n"] == 2
