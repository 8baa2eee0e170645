"""Faults that the samplers of other projects had (the public report is named)."""

from __future__ import annotations

from pathlib import Path

from components.sampler.engine import Request
from tests.sampler.conftest import Oracle
from tests.sampler.test_engine import agrees, engine, prompt, run


def test_logprobs_are_tempered_and_taken_before_top_p_and_top_k(model_folder: Path, oracle: Oracle) -> None:
    # miles #1345, slime #2085/#2297, prime-rl #679, vime #69: log-probs at temperature 1, or renormalised after top-p.
    answers = run(
        engine(model_folder),
        Request("half", prompt(1, 20), 20, temperature=0.5),
        Request("cut", prompt(2, 20), 20, top_p=0.4, top_k=5),
    )
    agrees(answers["half"], oracle, temperature=0.5)
    agrees(answers["cut"], oracle)
