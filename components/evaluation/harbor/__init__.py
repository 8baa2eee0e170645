"""The bridge to a real Harbor: its own environment, its jobs against our endpoint, its results as our trials."""

from components.evaluation.harbor.install import VERSION, find_python, harbor_environment
from components.evaluation.harbor.job import AGENT, MODEL, job_config, run_job
from components.evaluation.harbor.results import HarborTrial, missing, read_job, remove_snares

__all__ = [
    "AGENT",
    "MODEL",
    "VERSION",
    "HarborTrial",
    "find_python",
    "harbor_environment",
    "job_config",
    "missing",
    "read_job",
    "remove_snares",
    "run_job",
]
