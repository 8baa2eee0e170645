"""From what a verifier reported to the scalar that is trained on (paper Eq 20, Algorithm 2).

Invariants: a verdict that was not written is absent, never 0; an assertion counts as passed only if everything said of
it says so; where the report cannot be used the reward falls back to the binary outcome and names the cause.
"""

from components.reward.dense import dense_reward
from components.reward.report import ASSERTION_FILES, MOST_CHARS, VERDICT_FILES, parse_report, read_files, read_report
from components.reward.stream import read_began

__all__ = [
    "ASSERTION_FILES",
    "MOST_CHARS",
    "VERDICT_FILES",
    "dense_reward",
    "parse_report",
    "read_began",
    "read_files",
    "read_report",
]
