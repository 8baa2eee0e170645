"""PPO as pure functions on tensors (paper section 5).

Invariants of the whole package: no argument is ever changed; only positions with loss count; a quantity that cannot be
measured is NaN or absent, never 0.
"""

from components.ppo.gae import advantages, group_advantages, moments, place_terminal, whiten
from components.ppo.gap import logprob_gap
from components.ppo.objective import policy_loss, token_logprobs, value_loss
from components.ppo.tally import Tally
from components.ppo.variance import explained_variance

__all__ = [
    "Tally",
    "advantages",
    "explained_variance",
    "group_advantages",
    "logprob_gap",
    "moments",
    "place_terminal",
    "policy_loss",
    "token_logprobs",
    "value_loss",
    "whiten",
]
