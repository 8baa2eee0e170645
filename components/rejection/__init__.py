"""Rejection sampling: SFT data made of graded trials, of the checkpoint's own or of a teacher's."""

from components.rejection.account import Account
from components.rejection.filters import Graded, LeftOut, Reason, Selection, choose, faulted
from components.rejection.rendering import check_rendered, check_sampled
from components.rejection.teacher import BudgetSpent, Teacher

__all__ = [
    "Account",
    "BudgetSpent",
    "Graded",
    "LeftOut",
    "Reason",
    "Selection",
    "Teacher",
    "check_rendered",
    "check_sampled",
    "choose",
    "faulted",
]
