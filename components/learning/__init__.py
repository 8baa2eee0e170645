"""The learner: what is done with demonstrations and with a batch of graded trajectories."""

from components.learning.admission import damaged
from components.learning.ppo_step import LearnResult, learn
from components.learning.staleness import kept, staleness_metrics
from components.learning.supervised import Supervised

__all__ = ["LearnResult", "Supervised", "damaged", "kept", "learn", "staleness_metrics"]
