"""The diagnosis of what a campaign has done so far."""

from __future__ import annotations

from prefect import flow

from components.config import CampaignConfig
from tasks.defaults import MINIATURE
from tasks.diagnose import diagnose as examine
from tasks.drive import stop_jobs
from tasks.find import claim, find_scores
from tasks.results import Diagnosis


@flow(name="diagnose", flow_run_name="diagnose-{config.name}-s{config.seed}", on_cancellation=[stop_jobs])
def diagnose(config: CampaignConfig = MINIATURE) -> Diagnosis:
    """Findings, figures and a report from the committed records and evaluations."""
    claim(config, begin=False)
    return examine(config, find_scores(config))


if __name__ == "__main__":
    from tasks.launch import main

    raise SystemExit(main(diagnose))
