"""Rollouts of one step: scheduling, admission, the ledger, and batches as files."""

from components.rollout.ledger import Ledger, LedgerRow, Outcome
from components.rollout.metrics import rollout_metrics, trial_tokens
from components.rollout.scheduler import Finish, FinishReason, Launch, Plan, StepScheduler, Wait
from components.rollout.spool import SpooledBatch, load_batch, save_batch
from components.rollout.step import Attempt, RunTrial, StepResult, plan_of, run_step, trial_id

__all__ = [
    "Attempt",
    "Finish",
    "FinishReason",
    "Launch",
    "Ledger",
    "LedgerRow",
    "Outcome",
    "Plan",
    "RunTrial",
    "SpooledBatch",
    "StepResult",
    "StepScheduler",
    "Wait",
    "load_batch",
    "plan_of",
    "rollout_metrics",
    "run_step",
    "save_batch",
    "trial_id",
    "trial_tokens",
]
