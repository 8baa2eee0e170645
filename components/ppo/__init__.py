"""PPO as pure functions on tensors (paper section 5).

Invariants of the whole package: no argument is ever changed; only positions with loss count; a quantity that cannot be
measured is NaN or absent, never 0.
"""

from components.ppo.corrections import icepop_weights, sequence_k3_weights, sequence_ratio_weights, tis_weights
from components.ppo.gae import advantages, length_adaptive_lambda, moments, place_terminal, whiten
from components.ppo.gap import logprob_gap
from components.ppo.groups import group_advantages, group_statistics
from components.ppo.hl_gauss import Bins, hl_gauss_loss
from components.ppo.objective import policy_loss, sequence_policy_loss, stream_means, token_logprobs, value_loss
from components.ppo.tally import Tally
from components.ppo.variance import explained_variance

__all__ = [
    "Bins",
    "Tally",
    "advantages",
    "explained_variance",
    "group_advantages",
    "group_statistics",
    "hl_gauss_loss",
    "icepop_weights",
    "length_adaptive_lambda",
    "logprob_gap",
    "moments",
    "place_terminal",
    "policy_loss",
    "sequence_k3_weights",
    "sequence_policy_loss",
    "sequence_ratio_weights",
    "stream_means",
    "tis_weights",
    "token_logprobs",
    "value_loss",
    "whiten",
]
