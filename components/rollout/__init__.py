"""Rollouts of one step: scheduling, admission, the ledger, and batches as files."""

from components.rollout.account import TokenFigures, TrialRow, dump_figures, load_figures, trial_rows
from components.rollout.barrier import Barrier, BehindBarrier
from components.rollout.carryover import Return, Unfinished, returns
from components.rollout.finished import Finished, FinishedTrials
from components.rollout.journal import Journals
from components.rollout.ledger import Ledger, LedgerRow, Origin, Outcome, by_class
from components.rollout.metrics import rollout_metrics, trial_tokens
from components.rollout.resumption import Continuation, Interrupted
from components.rollout.scheduler import Finish, FinishReason, Launch, Plan, StepScheduler, Tail, Wait, tolerated
from components.rollout.spool import SpooledBatch, load_batch, save_batch
from components.rollout.step import Attempt, Rollout, RunTrial, StepResult, plan_of, trial_id

__all__ = [
    "Attempt",
    "Barrier",
    "BehindBarrier",
    "Continuation",
    "Finish",
    "FinishReason",
    "Finished",
    "FinishedTrials",
    "Interrupted",
    "Journals",
    "Launch",
    "Ledger",
    "LedgerRow",
    "Origin",
    "Outcome",
    "Plan",
    "Return",
    "Rollout",
    "RunTrial",
    "SpooledBatch",
    "StepResult",
    "StepScheduler",
    "Tail",
    "TokenFigures",
    "TrialRow",
    "Unfinished",
    "Wait",
    "by_class",
    "dump_figures",
    "load_batch",
    "load_figures",
    "plan_of",
    "returns",
    "rollout_metrics",
    "save_batch",
    "tolerated",
    "trial_id",
    "trial_rows",
    "trial_tokens",
]
